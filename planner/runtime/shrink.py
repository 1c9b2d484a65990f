"""A plan made small enough for the processes of one computer: every degree above one becomes two, structure stays."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import Fault, PlannerError
from planner.units import Json

MOST_RANKS = 16
"""Processes that a check starts at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A scaled-down plan."""

    replicate: int
    """Groups of data ranks that hold the same states."""
    shard: int
    """Data ranks over which states are sharded."""
    level: int
    """State sharding, 0 to 3."""
    tp: int
    pp: int
    schedule: str
    visits: tuple[int, ...]
    """Layers of every chunk in the order in which a token meets them."""
    sequence_parallel: bool
    recompute: bool
    """Every layer is computed again in the backward pass."""
    cuts: dict[str, str]
    """Operator to ``column``, ``row`` or ``whole``: how tp splits its weight."""
    grouped: bool
    """Fewer key/value heads than query heads."""
    gated: bool
    collectives: dict[str, int]
    """What the plan predicts of tp in a step of the small model, by phase and kind; see :func:`predicted`."""

    @property
    def dp(self) -> int:
        return self.replicate * self.shard

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def layers(self) -> int:
        return sum(self.visits)


COLUMN = {
    "attn.q": ("heads", "head_dim"),
    "attn.kv": ("kv_heads",),
    "mlp.up": ("ffn",),
    "project": ("vocab",),
    "lookup": ("vocab",),
}
ROW = {"attn.out": ("heads", "head_dim"), "mlp.down": ("ffn",)}


def shrink(settings: Json) -> Small:
    """The small plan of a ``dtensor.json``.

    Raises:
        PlannerError: parts that are not run yet: experts, context parallelism, other blocks than a Llama's (W06).
    """
    _refuse(settings)
    mesh, states, schedule = settings["mesh"], settings["states"], settings["schedule"]
    two = {axis: min(size, 2) for axis, size in mesh.items()}
    hybrid = states["level"] > 0 and states["replicate"] > 1 and states["shard"] > 1
    replicate = 2 if hybrid or (two["dp"] == 2 and states["shard"] == 1) else 1
    shard = 2 if states["shard"] > 1 and states["level"] > 0 else 1
    if states["level"] == 0:
        replicate, shard = two["dp"], 1
    alone = two["tp"] * replicate * shard == 1
    pp = min(mesh["pp"], 4 if alone else 2)
    layer = next(b for b in settings["blocks"].values() if "attn.q" in b["operators"])
    operators = {
        name: op for b in settings["blocks"].values() for name, op in b["operators"].items()
    }
    sizes = layer["sizes"]
    visits = _visits([len(visit) for visit in settings["stages"]], pp, schedule["chunks"])
    return Small(
        replicate=replicate,
        shard=shard,
        level=states["level"],
        tp=two["tp"],
        pp=pp,
        schedule=schedule["name"],
        visits=visits,
        sequence_parallel=_splits_stream(layer),
        recompute=all(op["recomputed"] for op in layer["operators"].values()),
        cuts={name: _cut(name, op) for name, op in operators.items() if name in {**COLUMN, **ROW}},
        grouped=sizes["kv_heads"] < sizes["heads"],
        gated="gates" in str(operators["mlp.up"]) or "gates" in sizes,
        collectives=predicted(settings, layer, sum(visits)),
    )


def _refuse(settings: Json) -> None:
    faults = []
    for axis, size in (*settings["experts"].items(), ("cp", settings["mesh"]["cp"])):
        if size > 1:
            fix = f"shardwright plan … --pin {axis}=1"
            faults.append(
                Fault("W06", f"{axis} {size} is not run yet; only priced and exported.", (fix,))
            )
    for name, block in settings["blocks"].items():
        if "moe.router" in block["operators"] or "attn.kv_up" in block["operators"]:
            faults.append(
                Fault("W06", f"layers '{name}' are not run yet: only those of Llama-like models.")
            )
    if faults:
        raise PlannerError(*faults)


def _visits(sizes: list[int], pp: int, chunks: int) -> tuple[int, ...]:
    """One layer a chunk; two in those that hold more than the least, so that unequal stages stay unequal."""
    count = pp * chunks
    kept = [sizes[index * len(sizes) // count] for index in range(count)]
    if len(set(sizes)) > 1 and len(set(kept)) == 1:
        kept[-1] += 1
    return tuple(1 + (size > min(kept)) for size in kept)


def _splits_stream(layer: Json) -> bool:
    return layer["operators"]["norm1"]["outputs"]["normed1"].get("tp") == "shard(seq)"


def _cut(name: str, op: Json) -> str:
    dim = op["split"].get("tp")
    if dim in COLUMN.get(name, ()):
        return "column"
    return "row" if dim in ROW.get(name, ()) else "whole"


def predicted(settings: Json, layer: Json, layers: int) -> dict[str, int]:
    """Collectives of tp that the plan has in a step of so many layers, as plain DTensor issues them.

    Two differences of DTensor are taken into account: it keeps an input that it gathered, so that the backward pass
    does not gather it again as Megatron does, and its loss wants whole logits: a gather where the plan reduces a loss.
    """
    ends = [b for b in settings["blocks"].values() if b["layers"] in ("embedding", "head")]
    found: dict[str, int] = {}
    for block, times in [(layer, layers), *((end, 1) for end in ends)]:
        moves = [
            (op, item)
            for op, values in block["operators"].items()
            for item in values["collectives"]
            if item["axis"] == "tp"
        ]
        gathered = {
            item["tensor"]
            for _, item in moves
            if (item["phase"], item["kind"]) == ("forward", "all-gather")
        }
        for op, item in moves:
            again = item["phase"] == "backward" and item["kind"] == "all-gather"
            if again and item["tensor"] in gathered:
                continue
            kind = "all-gather" if op == "loss" else item["kind"]
            key = f"{item['phase']} {kind}"
            found[key] = found.get(key, 0) + times
    return found
