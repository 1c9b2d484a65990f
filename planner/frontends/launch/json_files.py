"""JSON configurations: Galvatron, and the argument list that we export for Megatron-LM."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from planner.errors import PlannerError, listed
from planner.frontends.launch import megatron
from planner.frontends.launch.found import Reader, TrainerFile, without_defaults
from planner.frontends.launch.shell import words_to_options
from planner.units import Json

KINDS = ("gpipe", "pipedream_flush")
GALVATRON = frozenset({
    "pp_deg", "tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint", "global_bsz", "chunks",
    "pp_division", "pipeline_type", "default_dp_type", "vtp", "vsp", "embed_sdp", "vocab_sdp", "cp_sizes_enc",
    "ep_sizes_enc", "tp_of_ep_sizes_enc", "vcp", "world_size",
})  # fmt: skip


def parsed(path: str, text: str) -> dict[str, Json]:
    """A JSON object.

    Raises:
        PlannerError: no JSON, or no object (W03).
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlannerError.of("W03", f"is not JSON: {error}.", where=path) from None
    if not isinstance(data, dict):
        raise PlannerError.of("W03", "holds no JSON object.", where=path)
    return data


def read_megatron(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """The argument list that ``export --to megatron`` writes beside the shell file."""
    words = [str(word) for key in ("plan", "model") for word in data.get(key) or ()]
    world = data.get("world_size")
    return megatron.read(path, words_to_options(words), {"WORLD_SIZE": str(world)} if world else {})


def read_galvatron(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """Galvatron, both dialects; layers that differ cannot be priced as one layout."""
    r = Reader(path, data)
    r.unknown(GALVATRON, "Galvatron's strategy")
    lists = {key: _numbers(r, key) for key in ("tp_sizes_enc", "dp_types_enc", "use_sp", "checkpoint",
                                               "cp_sizes_enc", "ep_sizes_enc", "tp_of_ep_sizes_enc")}  # fmt: skip
    lengths = {len(values) for values in lists.values() if values}
    if len(lengths) > 1:
        r.fault("W03", f"its lists have {sorted(lengths)} entries; each has one a layer.")
    for key, values in lists.items():
        if len(set(values)) > 1:
            r.notes.append(
                f"{key} differs between layers; priced as {_most(values)} in all of them"
            )
    tp, cp = _most(lists["tp_sizes_enc"], 1), _most(lists["cp_sizes_enc"], 1)
    pp = r.degree("pp_deg")
    default = {"ddp": 0, "zero2": 2, "zero3": 3}.get(r.text("default_dp_type", default="ddp"))
    r.silently(default is None, f"default_dp_type '{r.text('default_dp_type')}' is taken and means nothing.",
               "It can be ddp, zero2 or zero3.")  # fmt: skip
    if _most(lists["use_sp"], 0):
        r.notes.append("not priced: tp ranks as Ulysses (use_sp); priced as tensor parallelism")
    layout: dict[str, int | str] = {
        "tp": tp, "pp": pp, "cp": cp, "ep": _most(lists["ep_sizes_enc"], 1),
        "etp": _most(lists["tp_of_ep_sizes_enc"], 1),
        "zero": 3 if _most(lists["dp_types_enc"], 0) else default or 0,
        "recompute": "full" if _most(lists["checkpoint"], 0) else "none",
        "schedule": "gpipe" if r.text("pipeline_type") == "gpipe" else "1f1b", "sp": "on" if tp > 1 else "off",
    }  # fmt: skip
    chips = r.number("world_size") or None
    batch, turns = r.number("global_bsz"), r.degree("chunks")
    if chips and batch:
        dp = max(chips // math.prod((tp, pp, cp)), 1)
        layout |= {"dp": dp, "mbs": max(batch // (dp * turns), 1)}
        r.silently(batch % (dp * turns) > 0, f"global_bsz {batch} is no multiple of dp {dp} × chunks {turns}.",
                   "Micro-batches then have unequal sizes.")  # fmt: skip
    division = tuple(_numbers(r, "pp_division"))
    _silent(
        r, lengths, division, batch // max(int(layout.get("dp", 1)), 1) if chips else batch, turns
    )
    trainer = "torchtitan" if layout["zero"] else "megatron"
    r.done()
    return TrainerFile(
        path=path, program="galvatron", trainer=trainer, layout=without_defaults(layout), chips=chips,
        global_batch=batch or None, stages=division if len(set(division)) > 1 else None,
        notes=tuple(r.notes), faults=tuple(r.faults),
    )  # fmt: skip


def _silent(
    r: Reader, lengths: set[int], division: tuple[int, ...], batch: int, turns: int
) -> None:
    """What Galvatron takes without a word."""
    kind = r.text("pipeline_type", default="gpipe")
    r.silently(kind not in KINDS, f"pipeline_type '{kind}' is taken and means nothing.",
               f"It can be {listed(KINDS)}.")  # fmt: skip
    r.silently(0 < batch < turns, f"chunks {turns} is more than the {batch} sequences of a data rank.",
               "Micro-batches without a sequence are left out.")  # fmt: skip
    layers = max(lengths, default=0)
    r.silently(bool(division) and sum(division) != layers > 0,
               f"pp_division holds {sum(division)} layers, and the lists have {layers}.",
               "Its own check compares them with an assertion that never fails.")  # fmt: skip


def _numbers(r: Reader, key: str) -> list[int]:
    text = r.text(key)
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        r.fault("W03", f"{key} is {text[:40]!r}; Galvatron reads numbers with commas between.")
        return []


def _most(values: list[int], default: int = 0) -> int:
    return max(set(values), key=values.count) if values else default
