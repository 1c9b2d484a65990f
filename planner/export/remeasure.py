"""The script that measures what a plan predicts: twenty steps, and one row that ``shardwright evaluate`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from planner.export.files import File
from planner.export.shape import Shape, shape_of
from planner.export.view import View, commented, header
from planner.units import Json

STEPS, WARM = 20, 5
"""Steps that are run, and those at the beginning that are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """How a trainer is started for a few steps, and where its log says what they took."""

    framework: str
    """Program and release, as a row names it."""
    command: str
    """Shell command; ``$LAUNCH`` holds the options of torchrun for the nodes at hand."""
    seconds: str
    """Pattern of a step's time, one group."""
    seconds_unit: float = 1.0
    """Seconds of one unit of that group; negative for a rate, whose tokens a chip and second are divided out."""
    memory: str = ""
    """Pattern of the largest memory so far, one group; empty where the log does not say."""
    memory_gib: float = 1.0
    """GiB of one unit of that group."""


def remeasure(
    view: View, how: Remeasured, environment: Mapping[str, str] | None = None, overlap: str = ""
) -> File:
    """``remeasure.sh`` for one trainer; ``overlap`` names what hides communication, as rows do."""
    row = measured_row(view, how.framework)
    row["parallel"]["overlap"] = overlap or None
    exports = "".join(f"export {key}={value}\n" for key, value in (environment or {}).items())
    chips = min(view.world, view.plan.cluster.levels[0].size if view.plan.cluster.levels else 1)
    per_node = max(1, chips)
    text = _SCRIPT.format(
        about=commented(
            [
                f"{STEPS} steps of this plan; the last line is a row for: shardwright evaluate ROWS.jsonl",
                *header(view, how.framework),
            ]
        ),
        exports=exports,
        nodes=max(1, view.world // per_node),
        per_node=per_node,
        command=how.command,
        reader=_reader(how, row, view),
    )
    return File("remeasure.sh", text, executable=True)


def _reader(how: Remeasured, row: dict[str, Json], view: View) -> str:
    tokens = view.plan.recipe.global_batch * view.plan.recipe.seq / view.world
    return _READER.format(
        row=json.dumps(row, ensure_ascii=False, indent=1).replace("null", "None").replace("true", "True")
        .replace("false", "False"),
        seconds=how.seconds, unit=how.seconds_unit, tokens=tokens, memory=how.memory,
        gib=how.memory_gib, warm=WARM,
    )  # fmt: skip


def measured_row(view: View, framework: str) -> dict[str, Json]:
    """A row of a measured run, everything but what is measured."""
    plan, d, shape = view.plan, view.degrees, shape_of(view)
    moe = shape.experts > 0
    return {
        "id": f"remeasured-{plan.fingerprints.model}-{plan.fingerprints.cluster}",
        "source": f"remeasure.sh of {plan.made_by}",
        "group": f"{plan.cluster.name} {framework} {plan.model.name}",
        "model": _model_facts(shape, plan.model.name, plan.recipe.seq),
        "hardware": {
            "chip": plan.cluster.chip, "chip_key": plan.cluster.chip, "num_chips": view.world, **_network(view),
        },
        "parallel": {
            "dp": d.dp, "tp": d.tp, "pp": d.pp, "cp": d.cp, "ep": d.ep if moe else None,
            "etp": d.etp if moe else None, "vpp": d.vpp, "sp": d.sequence_parallel, "zero": view.level,
            "zero_group": d.shard_group, "micro_batch": d.micro_batch,
            "global_batch": plan.recipe.global_batch, "recompute": d.recompute,
            "schedule": d.schedule if d.pp > 1 else "none", "precision": plan.recipe.precision,
            "framework": framework, "offload": None if d.offload == "none" else d.offload,
        },
        "measured": {},
    }  # fmt: skip


def _network(view: View) -> dict[str, Json]:
    """The network between nodes, where the plan has one: what a row does not state is assumed."""
    levels = view.plan.cluster.levels
    if len(levels) < 2 or view.world <= levels[0].size:
        return {}
    return {"inter": f"{levels[-1].bandwidth * 8 / 1e9:g} Gb/s per GPU"}


def _model_facts(shape: Shape, name: str, seq: int) -> dict[str, Json]:
    facts: dict[str, Json] = {
        "name": name,
        "type": "moe" if shape.experts else "llama" if shape.norm == "rms" else "gpt",
        "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads,
        "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "ffn": shape.ffn or shape.expert_ffn,
        "gated": shape.gated, "vocab": shape.vocab, "seq": seq, "tied_embeddings": shape.tied,
    }  # fmt: skip
    if shape.experts:
        facts |= {
            "experts": shape.experts, "top_k": shape.top_k, "moe_ffn": shape.expert_ffn,
            "shared_ffn": shape.shared_ffn, "dense_layers": sum(shape.dense),
        }  # fmt: skip
    if shape.latent:
        facts["mla"] = {
            "q_lora": shape.q_latent or None, "kv_lora": shape.kv_latent, "qk_nope": shape.nope_dim,
            "qk_rope": shape.rope_dim, "v_head": shape.value_dim,
        }  # fmt: skip
    if shape.mtp:
        facts["mtp_layers"] = shape.mtp
    return facts


_SCRIPT = """#!/usr/bin/env bash
{about}# On every node: NODE_RANK=… MASTER_ADDR=… ./remeasure.sh
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
{exports}NODES="${{NODES:-{nodes}}}" PER_NODE="${{PER_NODE:-{per_node}}}"
LAUNCH="--nnodes $NODES --nproc-per-node $PER_NODE --node-rank ${{NODE_RANK:-0}}"
LAUNCH="$LAUNCH --master-addr ${{MASTER_ADDR:-127.0.0.1}} --master-port ${{MASTER_PORT:-29500}}"
LOG="${{LOG:-remeasure.log}}"
if [ "${{1:-}}" != --read ]; then
  {command} "$@" 2>&1 | tee "$LOG"
fi
python3 - "$LOG" <<'READER'
{reader}READER
"""
_READER = """import json, re, statistics, sys
row = {row}
text = open(sys.argv[1], encoding="utf-8", errors="replace").read()
unit, tokens, warm = {unit!r}, {tokens!r}, {warm!r}
found = [float(value.replace(",", "")) for value in re.findall(r'''{seconds}''', text)]
steps = [value * unit if unit > 0 else tokens / value for value in found][warm:]
if not steps:
    sys.exit("the log has no times of steps beyond the first {warm}: was the run stopped?")
row["measured"]["step_time_s"] = statistics.median(steps)
sizes = [float(value) for value in re.findall(r'''{memory}''', text)] if r'''{memory}''' else []
if sizes:
    row["measured"]["mem_gib_per_chip"] = max(sizes) * {gib!r}
print(json.dumps(row))
"""
