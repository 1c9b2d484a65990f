"""From a row to a task and a layout: what the row states is pinned, what it leaves open is told."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from planner.calibrate.as_run import as_run
from planner.calibrate.divisions import division
from planner.calibrate.generators import generator
from planner.calibrate.mixtures import parts_of
from planner.calibrate.modules import recomputed_modules, whole_layers
from planner.calibrate.networks import cluster_of
from planner.calibrate.remat import hosted, offload
from planner.calibrate.runs import Run
from planner.calibrate.shapes import NotPricedError, architecture
from planner.calibrate.software import Software, bf16_weights, optimizer_of, software_of
from planner.calibrate.spellings import PRECISION_WORDS, recomputed
from planner.calibrate.traits import traits_of
from planner.candidates import OFFLOAD, RECOMPUTE, SCHEDULES, Candidates, single
from planner.errors import PlannerError
from planner.graph.adapters import with_adapters
from planner.graph.architecture import Architecture
from planner.graph.blocks import build_model
from planner.graph.generator import ImageGenerator, build_generator
from planner.graph.model import Model
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster
from planner.recipe import Lora, Precision, Recipe
from planner.trainers.rules import broken
from planner.trainers.trainer import Cut, Task
from planner.units import Json

PRECISIONS: tuple[Precision, ...] = ("fp4", "fp8", "bf16", "fp16", "fp32")
"""From narrow to wide: where a chip lacks one, what ran there ran in the next that it has."""
_LAST_STAGE = re.compile(r"layers on the last stage: (\d+)")
_FSDP_UNDER_DP = re.compile(r"FSDP=(\d+) GPUs .*with DP on top")
UNLOOPED = ("gpipe", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
"""Schedules of stages of one chunk that rows name and that are priced as such, beside 1F1B."""
SCHEDULE_WORDS = {"afab": "gpipe", "zb1p": "zb-1p", "zb2p": "zb-2p", "zbh1": "zb-h1"}
ENDS = 2
"""Chunks that may be without layers: one of the embedding, one of the head."""
INTERLEAVED, ONE_F_ONE_B = SCHEDULES.index("interleaved"), SCHEDULES.index("1f1b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row ready to be priced."""

    run: Run
    task: Task
    layout: Candidates
    """One row."""
    software: Software
    assumed: tuple[str, ...]
    """What the row left open, and the value that was taken."""
    broken: tuple[str, ...]
    """Rules of our trainer that the run broke; it happened nevertheless."""
    num_params: int
    division: tuple[int, ...] = ()
    """Layers of every stage, where the row lists them."""
    pools: tuple[Cluster, ...] = ()
    """Chips of each kind in the order of their ranks, where there are several kinds; the task has the first of them."""
    traits: Mapping[str, Json]
    """Facts of software and run that no field of the task holds."""


@dataclass(slots=True)
class _Open:
    """Collects what a row leaves open."""

    texts: list[str] = field(default_factory=list)

    def take(self, name: str, stated: int | None, default: int, shown: str = "") -> int:
        if stated is not None:
            return int(stated)
        self.texts.append(f"{name} {shown or default}")
        return default


def case_of(run: Run) -> Case:
    """Everything that pricing a row needs.

    Raises:
        NotPricedError: a missing fact, a model or a chip that we do not describe.
    """
    software = software_of(run)
    made = generator(run)
    arch = architecture(run, software) if made is None else None
    pools, assumed = clusters_of(run)
    cluster = pools[0]
    found = _Open(list(assumed))
    if software.guessed:
        found.texts.append(f"trainer {software.trainer.name}")
    layout = _layout(run, software, found)
    recipe = _recipe(run, software, cluster.chip, layout, found)
    try:
        for pool in pools:
            pool.chip.peak_for(recipe.precision)
    except PlannerError as error:
        raise NotPricedError(f"unsupported precision: {error.faults[0].what}") from None
    if made is not None:
        recipe = replace(recipe, seq=made.side**2)
        model, num_params = _generator(made)
    else:
        assert arch is not None
        model, num_params = _model(arch, recipe.seq, recipe.fused_attention, recipe.lora)
    traits = traits_of(run, software)
    task = Task(
        model=model,
        cluster=cluster,
        recipe=recipe,
        trainer=as_run(software, traits),
        memory_limit=cluster.chip.memory_bytes,
        copy_kv=True,
        cut=_cut(run),
    )
    row = single(**layout)
    return Case(
        run=run,
        task=task,
        layout=row,
        software=software,
        assumed=tuple(found.texts),
        broken=tuple(rule.name for rule, _ in broken(task, row)),
        num_params=num_params,
        division=division(run, made),
        pools=pools if len(pools) > 1 else (),
        traits=traits,
    )


def clusters_of(run: Run) -> tuple[tuple[Cluster, ...], tuple[str, ...]]:
    """The cluster of a row, or its pools where it ran on chips of several kinds; and what had to be assumed.

    Raises:
        NotPricedError: as :func:`planner.calibrate.networks.cluster_of`.
    """
    parts, told = parts_of(run)
    if not parts:
        cluster, assumed = cluster_of(run.hardware)
        return (cluster,), assumed
    found = [cluster_of(part) for part in parts]
    pools = tuple(cluster for cluster, _ in found)
    return pools, (*told, *(text for _, texts in found for text in texts))


@lru_cache(maxsize=1024)
def _model(arch: Architecture, seq: int, fused: bool, lora: Lora | None) -> tuple[Model, int]:
    """The graph and its parameters, once for all rows that share them."""
    model = build_model(arch, seq, fused=fused)
    count = model.num_params
    return (with_adapters(model, lora.rank, lora.targets) if lora else model), count


@lru_cache(maxsize=64)
def _generator(made: ImageGenerator) -> tuple[Model, int]:
    model = build_generator(made)
    return model, model.num_params


def _cut(run: Run) -> Cut:
    """Layers of the last stage, where the row counts them, and whether all stages share embedding and head."""
    told = _LAST_STAGE.search(str(run.parallel.other("pp_partition") or ""))
    return Cut(
        last=int(told[1]) if told and (run.parallel.vpp or 1) == 1 else None,
        whole=whole_layers(run),
        hosted=hosted(run),
        shared_ends="vocabulary parallel" in (run.parallel.schedule or ""),
    )


def _layout(run: Run, software: Software, found: _Open) -> dict[str, int]:
    p = run.parallel
    if p.tp is None and p.pp is None and p.dp is None:
        raise NotPricedError("missing fact: how the model was divided")
    chips = run.hardware.num_chips or 1
    tp, pp, cp = found.take("tp", p.tp, 1), found.take("pp", p.pp, 1), found.take("cp", p.cp, 1)
    if pp > 1 and p.global_batch is None:
        raise NotPricedError("missing fact: global batch of a pipeline")
    others = tp * pp * cp
    dp = found.take("dp", p.dp, max(chips // others, 1))
    if dp * others != chips:
        raise NotPricedError(
            f"missing fact: dp {dp} × tp {tp} × pp {pp} × cp {cp} is not {chips} chips"
        )
    vpp = found.take("vpp", p.vpp, 1) if pp > 1 else 1
    layers = run.model.layers
    if layers is not None and layers + ENDS < pp * vpp:
        raise NotPricedError(
            f"missing fact: {layers} layers do not fill pp {pp} × vpp {vpp} chunks"
        )
    spread = _most_experts(run, dp) if software.experts_over_data else 1
    sparse = (run.model.experts or 0) > 1
    ep = found.take("ep", p.ep, spread) if sparse else 1
    usual = tp if software.experts_as_dense and (dp * cp) % ep == 0 else 1
    etp = found.take("etp", p.etp, usual) if sparse and tp > 1 else 1
    if (dp * cp * tp) % (ep * etp):
        raise NotPricedError(f"missing fact: ep {ep} × etp {etp} does not divide a stage's chips")
    sp_default = software.sequence_parallel and tp > 1
    sp = found.take("sp", p.sp, sp_default, "on" if sp_default else "off") if tp > 1 else 0
    micro = _micro_batch(run, software, dp, found)
    vpp = _virtual(run, vpp, dp * micro, found)
    return {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "vpp": vpp,
        "sp": sp,
        "micro_batch": micro,
        "sharding": _sharding(run, software, found),
        "shard_group": _shard_group(run, dp * cp),
        "recompute": _recompute(run, found),
        "offload": _offload(run, found),
        "schedule": _schedule(run, vpp, found),
    }  # fmt: skip


def _most_experts(run: Run, dp: int) -> int:
    """The largest expert degree that divides both experts and data ranks."""
    return math.gcd(run.model.experts or 1, dp)


def _virtual(run: Run, vpp: int, ranks: int, found: _Open) -> int:
    """Chunks a stage; a schedule that our interleaving cannot run is priced without them."""
    batch, pp = run.parallel.global_batch, run.parallel.pp or 1
    if vpp == 1 or batch is None or batch // ranks % pp == 0:
        return vpp
    found.texts.append(f"vpp 1, as {batch // ranks} micro-batches are no multiple of {pp} stages")
    return 1


def _micro_batch(run: Run, software: Software, dp: int, found: _Open) -> int:
    """Sequences of a micro-batch; where nobody says, all that a data rank gets if there is no pipeline."""
    stated, batch = run.parallel.micro_batch, run.parallel.global_batch
    if software.per_chip_batch and batch and batch % dp == 0:
        return batch // dp
    if stated is not None and not stated.is_integer():
        raise NotPricedError(f"missing fact: micro-batch {stated:g} is no number of sequences")
    whole = None if stated is None else int(stated)
    most = batch // dp if batch else whole
    if most == 0:
        raise NotPricedError(f"missing fact: global batch {batch} does not reach {dp} data ranks")
    if whole is not None and most is not None and whole > most:
        found.texts.append(f"micro-batch {most}, as the global batch has no more")
        return most
    one_pass = (run.parallel.pp or 1) == 1 and run.parallel.zero == 3
    return found.take("micro-batch", whole, most if one_pass and most else 1)


def _sharding(run: Run, software: Software, found: _Open) -> int:
    stated = run.parallel.zero
    if stated == 3 and software.name == "torchtitan" and (run.parallel.pp or 1) > 1:
        found.texts.append("zero 2, as weights stay gathered between stages")
        return 2
    if isinstance(stated, int) and 0 <= stated <= 3:
        return stated
    trainer = software.trainer
    if software.sharding is not None:
        return found.take("zero", None, software.sharding)
    old = software.attention == "unfused"
    default = 3 if min(trainer.shardings) > 0 else 0 if old else 1
    return found.take("zero", None, default)


def _shard_group(run: Run, data: int) -> int:
    """Ranks that share states: a field of its own, or ``FSDP=128 GPUs … with DP on top`` in the notes."""
    told = _FSDP_UNDER_DP.search(run.remarks)
    p = run.parallel
    for size in (p.zero_group, p.fsdp_group, p.fsdp_degree, told and int(told[1])):
        if size and size > 1 and data % int(size) == 0:
            return int(size)
    return data


def _recompute(run: Run, found: _Open) -> int:
    word = (run.parallel.recompute or "").lower()
    if whole_layers(run) is not None:
        return RECOMPUTE.index("none")
    if not word:
        usual = 1 if recomputed_modules(run) else 0
        return found.take("recompute", None, usual, RECOMPUTE[usual])
    again = recomputed(word)
    if again != word:
        found.texts.append(f"recompute '{word}' priced as {again or 'selective'}")
    return RECOMPUTE.index(again or "selective")


def _offload(run: Run, found: _Open) -> int:
    kinds, words = offload(run), run.parallel.offload
    if kinds == "none" and words and recomputed(words) != "none":
        found.texts.append(f"offload '{words}' not priced")
    return OFFLOAD.index(kinds)


def _schedule(run: Run, vpp: int, found: _Open) -> int:
    word = (run.parallel.schedule or "none").lower()
    word = SCHEDULE_WORDS.get(word, word)
    priced = INTERLEAVED if vpp > 1 else ONE_F_ONE_B
    if word in UNLOOPED and vpp == 1:
        return SCHEDULES.index(word)
    if word not in ("none", SCHEDULES[priced]) and (run.parallel.pp or 1) > 1:
        found.texts.append(f"schedule '{word}' priced as {SCHEDULES[priced]}")
    return priced


def _recipe(
    run: Run, software: Software, chip: Chip, layout: Mapping[str, int], found: _Open
) -> Recipe:
    ranks = layout["dp"] * layout["micro_batch"]
    batch = found.take("global batch", run.parallel.global_batch, ranks)
    if batch % ranks:
        found.texts.append(f"global batch {batch} is no multiple of {ranks}")
    return Recipe(
        global_batch=batch,
        seq=run.model.seq or 0,
        precision=_precision(run, chip, found),
        optimizer=optimizer_of(run, software),
        master_weights=run.parallel.other("master_weights") is not False and not bf16_weights(run),
        fused_attention=software.fused,
        lora=_lora(run, found),
    )


def _lora(run: Run, found: _Open) -> Lora | None:
    """Adapters of a run that trains nothing else; MLPerf's fp8 runs store frozen weights so (NeMo's fp8_params)."""
    tuned = str(run.parallel.other("finetune") or run.parallel.other("task") or "").lower()
    if "lora" not in tuned and "lora" not in run.model.name.lower():
        return None
    words = f"{run.model.name} {run.remarks}".lower()
    rank = re.search(r"(?:rank|lora r) ?(\d+)", words)
    if rank is None:
        found.texts.append("LoRA rank 16")
    targets: tuple[str, ...] = ("attention",)
    if "attention" not in words:
        targets = ("attention", "mlp")
        found.texts.append("adapters on attention and mlp")
    bits: Literal[4, 8, 16] = 4 if re.search(r"qlora|4-bit|nf4", f"{tuned} {words}") else 16
    if "mlperf" in run.source.lower() and "fp8" in (run.parallel.precision or "").lower():
        bits = 8
        found.texts.append("frozen weights stored in fp8")
    return Lora(rank=int(rank[1]) if rank else 16, targets=targets, bits=bits)


def _precision(run: Run, chip: Chip, found: _Open) -> Precision:
    word = (run.parallel.precision or "").lower()
    named = next((name for part, name in PRECISION_WORDS if part in (word or "bf16")), None)
    if named is None:
        raise NotPricedError(f"unsupported precision: {word}")
    wider = PRECISIONS[PRECISIONS.index(named) :]
    precision = next((name for name in wider if name in chip.peak), named)
    if not word:
        found.texts.append(f"precision {precision}")
    elif precision not in word:
        found.texts.append(f"precision '{word}' priced as {precision}")
    return precision
