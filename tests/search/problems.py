"""Random small problems, and the whole space of one of them by plain enumeration.

Nothing here goes through the search: what a column may hold is written out once more, in the words of its documents.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from planner.candidates import OFFLOAD, SCHEDULES, Candidates
from planner.graph.architecture import Architecture, Attention, Experts, LatentAttention, Layer, Mlp
from planner.graph.blocks import build_model
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.recipe import Recipe
from planner.search.pins import parse_pins
from planner.trainers.registry import TRAINERS
from planner.trainers.rules import allowed
from planner.trainers.trainer import Task

MORE = float(os.environ.get("MORE_EXAMPLES", "1"))
"""Factor on the examples of random tests of cost and search: ``MORE_EXAMPLES=20 python -m pytest tests/search``."""
COLUMNS = tuple(name for name in Candidates.__dataclass_fields__ if name != "operators")
LAYOUT = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "recompute", "offload")
"""Rows that agree on these are one layout of the answer."""
TIES = ("tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "offload", "recompute")
TIES += ("sharding", "shard_group", "sp", "order")
MOST_MICRO_BATCH = 32
PRECISIONS = ("bf16", "fp16", "fp8", "fp32")


def examples(count: int) -> settings:
    """The same examples in every run, unless there are to be more or fewer of them."""
    number = max(1, round(count * MORE))
    return settings(max_examples=number, deadline=None, derandomize=MORE == 1)


def log_floats(low: float, high: float):
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10.0**x))


@st.composite
def chips(draw) -> Chip:
    peak = draw(log_floats(1e13, 2e15))
    shares = {"bf16": 1.0, "fp16": 1.0, "fp8": 2.0, "fp32": 0.1}
    return Chip(
        name="chip",
        memory_bytes=80e9,
        memory_bandwidth=draw(log_floats(2e11, 8e12)),
        peak={name: peak * share for name, share in shares.items()},
        matmul_efficiency=dict.fromkeys(shares, draw(st.floats(0.3, 0.9))),
        matmul_latency=draw(log_floats(1e-7, 1e-5)),
        matmul_sharpness=draw(st.floats(1.0, 6.0)),
        attention_efficiency=draw(st.floats(0.2, 0.8)),
        memory_efficiency=draw(st.floats(0.5, 0.95)),
        launch=draw(log_floats(1e-7, 1e-5)),
        price=draw(st.sampled_from([None, 2.5])),
    )


@st.composite
def clusters(draw, most: int = 16) -> Cluster:
    """One to three levels of random size, bandwidth and latency; chips need not fill them."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(0, 2))):
        inner = sizes[-1] if sizes else 1
        sizes.append(inner * draw(st.integers(2, 8 if not sizes else 3)))
    levels = tuple(
        Level(
            name=f"level{index}",
            size=size,
            bandwidth=draw(log_floats(1e9, 9e11)),
            efficiency=draw(st.floats(0.4, 1.0)),
            latency=draw(log_floats(1e-7, 1e-4)),
            ramp_bytes=draw(st.sampled_from([0.0, 1e5, 4e6])),
            oversubscription=draw(st.sampled_from([1.0, 1.0, 4.0])),
            full_mesh=size is not None and draw(st.booleans()),
            all_to_all_doubling=draw(st.sampled_from([1.0, 1.0, 0.88])),
        )
        for index, size in enumerate([*sizes, None])
    )
    host = draw(st.sampled_from([1, 2, 4, 8]))
    count = draw(
        st.one_of(st.sampled_from([1, 2, 4, 8, min(most, 16), most]), st.integers(1, most))
    )
    return Cluster(
        name="cluster",
        chip=draw(chips()),
        num_chips=count,
        levels=levels,
        chips_per_host=host,
        host_bandwidth=5e10,
        host_memory=3e7,
    )


@st.composite
def attentions(draw) -> Attention | LatentAttention:
    heads = draw(st.sampled_from([1, 2, 4, 6, 8]))
    if draw(st.integers(0, 5)) == 0:
        q_latent = draw(st.sampled_from([None, 96]))
        return LatentAttention(
            heads=heads, q_latent=q_latent, kv_latent=64, nope_dim=32, rope_dim=16, value_dim=32
        )
    shares = [d for d in (1, 2, 3, 4, 6, 8) if heads % d == 0]
    return Attention(
        heads=heads,
        kv_heads=draw(st.sampled_from(shares)),
        head_dim=draw(st.sampled_from([16, 64, 128])),
        window=draw(st.sampled_from([None, None, 16])),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.sampled_from(["none", "none", "head", "all"])),
    )


@st.composite
def feed_forwards(draw) -> Mlp | Experts:
    gated = draw(st.booleans())
    if draw(st.integers(0, 2)):
        return Mlp(width=draw(st.sampled_from([64, 96, 1024, 14336])), gated=gated)
    count = draw(st.sampled_from([2, 4, 6, 8]))
    return Experts(
        count=count,
        top_k=draw(st.integers(1, min(count, 3))),
        width=draw(st.sampled_from([32, 96, 1536])),
        shared_width=draw(st.sampled_from([0, 0, 64])),
        gated=gated,
    )


@st.composite
def architectures(draw, most_layers: int = 6) -> Architecture:
    kinds = tuple(
        Layer(
            name=f"kind{index}",
            attention=draw(attentions()),
            mlp=draw(feed_forwards()),
            parallel=draw(st.integers(0, 4)) == 0,
            post_norms=draw(st.integers(0, 4)) == 0,
        )
        for index in range(draw(st.sampled_from([1, 1, 1, 2])))
    )
    count = draw(st.integers(1, most_layers))
    layers = tuple(draw(st.integers(0, len(kinds) - 1)) for _ in range(count))
    return Architecture(
        name="random",
        hidden=draw(st.sampled_from([64, 192, 1024, 8192])),
        vocab=draw(st.sampled_from([100, 1024, 50257, 128256])),
        max_seq=4096,
        kinds=kinds,
        layers=layers,
        norm=draw(st.sampled_from(["rms", "layer"])),
        tied=draw(st.integers(0, 3)) == 0,
        positions=draw(st.sampled_from([0, 0, 4096])),
        dropout=draw(st.integers(0, 3)) == 0,
        mtp=draw(st.sampled_from([0, 0, 0, 1])),
    )


@st.composite
def recipes(draw, batches=(1, 2, 3, 4, 5, 6, 8, 12, 16, 60, 96)) -> Recipe:
    return Recipe(
        global_batch=draw(st.sampled_from(batches)),
        seq=draw(st.sampled_from([16, 32, 48, 96, 512, 4096])),
        precision=draw(st.sampled_from(("bf16", "bf16", "bf16", *PRECISIONS))),
        optimizer=draw(st.sampled_from(["adamw", "adamw", "sgd", "adamw-8bit", "adamw-bf16"])),
        fused_attention=draw(st.integers(0, 3)) > 0,
    )


@dataclass(frozen=True, slots=True, repr=False)
class Drawn(Task):
    """A task that a failing test shows in a few lines."""

    def __repr__(self) -> str:
        blocks = {block.name: block.sizes for block in self.model.blocks}
        head = f"{self.trainer.name}: layers {self.model.layers} of {blocks}"
        return f"<{head}, {self.cluster}, {self.recipe}, {self.memory_limit} bytes>"

    def _repr_pretty_(self, printer, _cycle) -> None:
        printer.text(repr(self))


@st.composite
def tasks(draw, most_chips: int = 16, most_layers: int = 6) -> Task:
    arch, recipe = draw(architectures(most_layers)), draw(recipes())
    return Drawn(
        model=build_model(arch, recipe.seq, fused=recipe.fused_attention),
        cluster=draw(clusters(most_chips)),
        recipe=recipe,
        trainer=draw(st.sampled_from(TRAINERS)),
        memory_limit=80e9,
        copy_kv=draw(st.integers(0, 3)) == 0,
    )


@st.composite
def pins(draw, task: Task, most: int = 3) -> tuple[str, ...]:
    """Some pins, possible and impossible ones."""
    count = task.cluster.num_chips
    parts = [d for d in range(1, count + 1) if count % d == 0]
    degrees = st.sampled_from(parts)
    values = {
        **dict.fromkeys(("dp", "tp", "pp", "cp", "shard-group"), degrees),
        "ep": st.sampled_from([1, 2, 3, 4]),
        "etp": st.sampled_from([1, 2, 4]),
        "vpp": st.integers(1, 4),
        "micro-batch": st.sampled_from([1, 2, 3, 4, 8]),
        "zero": st.integers(0, 3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "sp": st.sampled_from(["on", "off"]),
        "order": st.sampled_from(["-".join(order) for order in task.trainer.orders]),
        "schedule": st.sampled_from(["gpipe", "1f1b", "interleaved"]),
        "offload": st.sampled_from(["any", *OFFLOAD]),
    }
    only_equal = {"sp", "order", "schedule", "offload"}
    chosen = draw(st.lists(st.sampled_from(sorted(values)), max_size=most, unique=True))
    compares = st.sampled_from(["=", "=", "<=", ">=", "<", ">"])
    return tuple(
        f"{name}{'=' if name in only_equal else draw(compares)}{draw(values[name])}"
        for name in chosen
    )


def table(rows: list[tuple[int, ...]]) -> Candidates:
    """Tuples of the columns of ``COLUMNS`` as candidates."""
    array = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))
    columns = dict(zip(COLUMNS, array.T, strict=True))
    known = {"sp": columns["sp"].astype(bool), "operators": np.zeros(len(array), dtype=np.int64)}
    return Candidates(**(columns | known))


def as_tuples(rows: Candidates) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(rows, name).tolist() for name in COLUMNS), strict=True))


def enumerated(task: Task, pins=()) -> Candidates:
    """Every combination of values, before any rule: what a row may hold, column by column."""
    fixed = {
        pin.column: pin.value for pin in parse_pins(pins, task.trainer).pins if pin.compare == "="
    }
    count, batch = task.cluster.num_chips, task.recipe.global_batch
    numbers = range(1, count + 1)
    experts = max((int(size) for size in task.model.sizes("experts")), default=1)
    chunks = [(1, SCHEDULES.index("1f1b"))]
    if fixed.get("schedule") == SCHEDULES.index("gpipe"):
        chunks = [(1, SCHEDULES.index("gpipe"))]
    chunks += [(v, SCHEDULES.index("interleaved")) for v in range(2, task.model.num_layers + 3)]
    batches = [b for b in range(1, MOST_MICRO_BATCH + 1) if batch % b == 0]
    batches = [fixed["micro_batch"]] if "micro_batch" in fixed else batches
    moved = {0}
    if any(text.startswith("offload") for text in pins):
        moved = {*task.trainer.offload.kinds, fixed.get("offload", 0)}
    found = []
    for dp, tp, pp, cp in product(numbers, repeat=4) if count <= 4 else _factors(count):
        if dp * tp * pp * cp != count:
            continue
        columns = product(
            range(1, experts + 1) if experts > 1 else [1],
            {1, tp, fixed.get("etp", 1)} if "etp" not in fixed else {fixed["etp"]},
            chunks if pp > 1 else chunks[:1],
            batches,
            (0, 1) if tp > 1 else (0,),
            range(4),
            range(len(task.trainer.orders)) if pp > 1 and dp > 1 else (0,),
            range(3),
            moved,
        )
        for ep, etp, (vpp, schedule), mbs, sp, sharding, order, recompute, away in columns:
            for group in _groups(dp * cp, sharding, fixed):
                row = (dp, tp, pp, cp, ep, etp, vpp, mbs, sharding, group, recompute, sp, order)
                found.append((*row, schedule, away))
    return table(found)


def _factors(count: int) -> list[tuple[int, int, int, int]]:
    parts = [d for d in range(1, count + 1) if count % d == 0]
    triples = [(a, b, c) for a, b, c in product(parts, repeat=3) if count % (a * b * c) == 0]
    return [(count // (a * b * c), a, b, c) for a, b, c in triples]


def _groups(data: int, sharding: int, fixed: dict[str, int]) -> list[int]:
    """All data ranks; where weights are sharded also every part of them of two or more; a pin: what it says."""
    if "shard_group" in fixed:
        return [fixed["shard_group"]]
    if sharding < 3 or data == 1:
        return [data]
    return [g for g in range(2, data + 1) if data % g == 0]


def space_of(task: Task, pins=()) -> Candidates:
    """The rows that rules and pins leave."""
    read = parse_pins(pins, task.trainer)
    task = replace(task, copy_kv=task.copy_kv or read.copy_kv)
    rows = enumerated(task, pins)
    keeps = allowed(task, rows)
    for pin in read.pins:
        keeps &= pin.keeps(getattr(rows, pin.column).astype(np.int64))
    return rows.take(keeps)


def opens(texts) -> bool:
    """Whether pins add rows that are not looked at without them."""
    names = ("schedule", "shard-group", "etp", "micro-batch", "offload")
    return any(text.startswith(names) for text in texts)


def kept_by(task: Task, texts, rows: Candidates) -> np.ndarray:
    """Which rows of the space without pins these pins keep."""
    keeps = np.ones(len(rows), dtype=bool)
    for pin in parse_pins(texts, task.trainer).pins:
        keeps &= pin.keeps(getattr(rows, pin.column).astype(np.int64))
    return keeps


def nine_digits(value: float) -> float:
    return float(f"{value:.8e}")


def ranked(rows: Candidates, step: np.ndarray) -> list[int]:
    """Indices, best first: by step to nine digits, fewer axes, then smaller columns in the documented order."""
    names = as_tuples(rows)

    def key(index: int):
        row = dict(zip(COLUMNS, names[index], strict=True))
        axes = sum(row[axis] > 1 for axis in ("dp", "tp", "pp", "cp", "ep"))
        return (nine_digits(step[index]), axes, *(row[name] for name in TIES))

    return sorted(range(len(rows)), key=key)


def best_layouts(rows: Candidates, step: np.ndarray, top: int) -> list[int]:
    """The first ``top`` of the ranking that differ as layouts."""
    names = np.stack([getattr(rows, name) for name in LAYOUT], axis=1)
    chosen, seen = [], set()
    for index in ranked(rows, step):
        if tuple(names[index]) not in seen and len(chosen) < top:
            seen.add(tuple(names[index]))
            chosen.append(index)
    return chosen
