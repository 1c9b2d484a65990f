"""One candidate taken apart: where its step and its memory go, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from planner.candidates import OFFLOAD, RECOMPUTE, SCHEDULES, SHARDING
from planner.cost.block import FAMILIES, block_structure
from planner.cost.cut import Cut
from planner.cost.memory import TERMS, StageMemory
from planner.cost.operator_cost import operator_cost
from planner.cost.partition import by_stage, distinct_blocks, even_cut
from planner.cost.prices import (
    Mix,
    Prices,
    accumulation_seconds,
    block_seconds,
    copies,
    state_seconds,
)
from planner.cost.setting import Setting, setting
from planner.cost.step import StageTimes, makespans, memory_of_stages, stage_times
from planner.graph.operator import Block
from planner.plan.schema import Degrees, Stage, Term
from planner.search.stage_sends import stage_sends
from planner.search.stages.stated import label
from planner.trainers.rules.pipeline import equal_chunks
from planner.units import Array, IntArray

LABELS = {
    "compute": "compute",
    "recompute": "recompute",
    "tp": "tp collectives",
    "cp": "cp exchange",
    "ep": "ep all-to-alls",
    "weights": "weight gathers",
    "gradients": "dp gradients",
    "offload": "host memory",
    "other": "optimizer, other",
    "bubble": "pipeline bubble",
    "sends": "pp sends",
    "jitter": "pipeline jitter",
}
"""Parts of a step and the words for them."""
MEMORY_LABELS = {"working": "working set", "buffers": "buffers, slack"}


@dataclass(frozen=True, slots=True, eq=False)
class Breakdown:
    """One candidate, taken apart."""

    prices: Prices
    """A table of one row; of stages on pools of different chips, as the busiest one sees it."""
    times: StageTimes
    memory: StageMemory
    terms: tuple[Term, ...]
    """Parts of the step; their values sum to ``step``."""
    step: float
    makespan: float
    """Seconds of all micro-batches through all stages."""
    unsent: float
    """The same if sends took no time."""

    @property
    def paid(self) -> int:
        """Chips that are paid for: all of the cluster; of stages on several pools those that train."""
        p = self.prices
        return p.task.cluster.num_chips if p.mix is None else int(p.rows.ranks[0])

    @property
    def busiest(self) -> int:
        """The stage that works longest."""
        return int(np.argmax(_work(self.times)))

    @property
    def busy(self) -> float:
        """Seconds that it works for one micro-batch."""
        return float(_work(self.times).max())

    @property
    def last(self) -> int:
        """The stage whose gradients and optimizer end last."""
        return int(np.argmax(self.times.exposed_states[0] + self.times.update[0]))

    def seconds(self, name: str) -> float | None:
        """A part of the step by its id; None where the step has no such part."""
        return next((term.value for term in self.terms if term.name == name), None)

    @property
    def launches(self) -> float:
        """Seconds of compute in which the chip waits for the host to launch its operators."""
        p = self.prices
        s, m = setting(p.task, p.rows), int(p.micro_batches[0])
        counts = self.times.blocks[self.busiest].sum(axis=0)
        model = p.task.model
        kinds = model.blocks if p.cut is None else model.blocks * p.cut.groups
        ends = distinct_blocks(model)[1 + len(model.blocks) :]
        chip = np.array([_chip_seconds(s, b) for b in (model.embedding, *kinds, *ends)])
        took = (p.table.forward + p.table.backward)[int(p.key[0])]
        return m * float(counts @ (took - chip))

    @property
    def host_update(self) -> float:
        """Seconds of the optimizer on the host; 0 where its states are on the chip."""
        return _host_update(self.prices, self.times, self.last)

    @property
    def fullest(self) -> int:
        """The stage that needs most of its chips' memory."""
        limits = [
            self.prices.at(stage).task.memory_limit for stage in range(len(self.times.blocks))
        ]
        return int(np.argmax(self.memory.total[0] / limits))


def breakdown(prices: Prices, row: int) -> Breakdown:
    """Take one row of a table of prices apart."""
    p = prices.take(np.array([row]))
    times = stage_times(p)
    p = _pace(p, int(np.argmax(_work(times))))
    makespan = float(makespans(p, times)[0])
    unsent = float(makespans(p.without_sends(), times)[0])
    terms = _step_terms(p, times, makespan, unsent)
    return Breakdown(
        prices=p,
        times=times,
        memory=memory_of_stages(p, times.blocks),
        terms=terms,
        step=sum(term.value for term in terms),
        makespan=makespan,
        unsent=unsent,
    )


def _chip_seconds(s: Setting, block: Block) -> float:
    """Seconds in which a chip computes the operators of a block for one micro-batch, both ways, of a single row."""
    form = block_structure(s, block, sp=bool(s.rows.sp[0]))
    pairs = zip(block.operators, form.splits, strict=True)
    costs = [operator_cost(s, block, op, split) for op, split in pairs]
    return float(sum((c.forward + c.backward)[0] for c in costs))


def _pace(p: Prices, stage: int) -> Prices:
    """The candidate as the slowest chips of a stage see it, which set its pace."""
    if p.mix is None:
        return p
    slow = max(p.mix.at(stage), key=lambda part: float(_work(stage_times(part))[stage]))
    own = replace(slow.sends, ends=p.sends.ends, exchange=p.sends.exchange)
    return replace(slow, sends=own, mix=p.mix)


def _host_update(p: Prices, times: StageTimes, stage: int) -> float:
    return float(times.update[0, stage]) if p.rows.in_host("optimizer")[0] else 0.0


def _work(times: StageTimes) -> Array:
    """Seconds of every stage for one micro-batch."""
    return np.asarray((times.forward + times.backward).sum(axis=-1)[0])


def _hidden_sends(p: Prices, times: StageTimes) -> float:
    """Seconds of sends of the busiest boundary that run behind compute, both ways."""
    stages, chunks = times.blocks.shape[:2]
    behind = p.sends.hidden_boundaries(stages) if p.mix is None else p.mix.hidden
    each = float(behind.max())
    return float(2.0 * p.micro_batches[0] * chunks * each)


def _step_terms(p: Prices, times: StageTimes, makespan: float, unsent: float) -> tuple[Term, ...]:
    """Parts of the step, as the busiest stage spends it; what it waits is bubble, or sends where they cause it."""
    m = int(p.micro_batches[0])
    busy = _work(times)
    stage = int(np.argmax(busy))
    counts = times.blocks[stage].sum(axis=0)
    key, mode = int(p.key[0]), int(p.rows.recompute[0])
    table = p.table
    after = times.exposed_states[0] + times.update[0]
    last = int(np.argmax(after))
    jitter = p.task.trainer.overhead.jitter if times.blocks.shape[0] > 1 else 0.0
    away = _host_update(p, times, last)
    moved = exposed_copies(p, counts)
    values = {
        "compute": m
        * (float(counts @ (table.forward + table.backward)[key]) + adding_seconds(p, counts)),
        "recompute": m * float(counts @ table.recompute[mode, key]),
        "weights": m * (_exposed_gathers(p, counts) - moved),
        "offload": m * moved + away,
        "gradients": float(times.exposed_states[0, last] + p.sends.ends[0]),
        "other": float(times.update[0, last]) - away + p.task.trainer.overhead.step,
        "jitter": makespan * jitter,
        "bubble": unsent - m * float(busy[stage]),
        "sends": makespan - unsent,
    }
    hidden = {
        "gradients": float(times.hidden_states[0, last]),
        "sends": _hidden_sends(p, times) if len(times.blocks) > 1 else 0.0,
        "weights": m * float(sum((counts * s[0]).sum() for s in state_seconds(p)))
        - values["weights"],
        "offload": m * (2.0 * float(counts @ copies(p)[2][0]) - moved),
    }
    for index, family in enumerate(FAMILIES):
        values[family] = m * float(table.exposed[index, :, key].sum(axis=0) @ counts)
        hidden[family] = m * float(table.hidden[index, :, key].sum(axis=0) @ counts)
    shown = (
        n for n in LABELS if n == "compute" or _matters(values[n], hidden.get(n, 0.0), makespan)
    )
    return tuple(
        Term(name=f"step.{n}", label=LABELS[n], value=values[n], hidden=hidden.get(n, 0.0))
        for n in shown
    )


def exposed_copies(p: Prices, counts: Array) -> float:
    """Exposed seconds of activations' way to host memory and back, one micro-batch on a stage of these blocks."""
    there, back, _ = copies(p)
    return float(counts @ (there + back)[0])


def _matters(value: float, hidden: float, whole: float) -> bool:
    return abs(value) > 1e-12 * whole or hidden > 1e-6 * whole


def _exposed_gathers(p: Prices, counts: Array) -> float:
    """Exposed seconds of sharded weights in one micro-batch on a stage."""
    forward, backward = block_seconds(p)
    mode, key = int(p.rows.recompute[0]), int(p.key[0])
    rest = p.table.total_forward[key] + p.table.total_backward[mode, key]
    return float(counts @ (forward[0] + backward[0] - rest)) - adding_seconds(p, counts)


def adding_seconds(p: Prices, counts: Array) -> float:
    """Seconds of adding one micro-batch's gradients to those before, on a stage of these blocks."""
    added = p.task.trainer.overhead.accumulation > 0
    return float(counts @ accumulation_seconds(p)[0]) if added else 0.0


def degrees_of(p: Prices, row: int = 0) -> Degrees:
    """The degrees of one row of a table."""
    rows = p.rows
    number: dict[str, Any] = {name: int(getattr(rows, name)[row]) for name in _NUMBERS}
    order = p.task.trainer.orders[int(rows.order[row])]
    return Degrees(
        **number | _divided(p, row),
        num_micro_batches=int(p.micro_batches[row]),
        sharding=SHARDING[int(rows.sharding[row])],  # type: ignore[arg-type]
        sequence_parallel=bool(rows.sp[row]),
        schedule=SCHEDULES[int(rows.schedule[row])],
        offload=OFFLOAD[int(rows.offload[row])],  # type: ignore[arg-type]
        order=order,  # type: ignore[arg-type]
        pools=() if p.mix is None else _pools(p.mix),
        chips_used=int(rows.ranks[row]),
    )


def _pools(mix: Mix) -> tuple[str, ...]:
    """The pool of every stage; nothing where stages reach over several."""
    if (mix.stands.sum(axis=0) > 1).any():
        return ()
    return tuple(mix.parts[pool].task.cluster.name for pool in mix.stands.argmax(axis=0))


def _divided(p: Prices, row: int) -> dict[str, Any]:
    """How layers are divided where that is not the trainer's own way, and what they recompute."""
    cut = p.cut
    even = even_cut(p.task.model.num_layers, int(p.rows.pp[row]), int(p.rows.vpp[row]))
    if cut is None:
        said = bool(equal_chunks(p.task, p.rows)[row])
        layers = {} if said else {"layers": tuple(even.tolist())}
        return {"recompute": RECOMPUTE[int(p.rows.recompute[row])]} | layers
    found: dict[str, Any] = {"recompute": label(cut), "recompute_unit": cut.unit}
    if cut.unit == 1 or not np.array_equal(cut.layers, even):
        found["layers"] = tuple(cut.layers.tolist())
    if cut.mixed:
        full, selective = cut.full.tolist(), cut.selective.tolist()
        found |= {"full_layers": tuple(full), "selective_layers": tuple(selective)}
    return found


_NUMBERS = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "shard_group")


def chunk_sizes(p: Prices) -> IntArray:
    """Layers of every chunk of a single candidate, in the order of the model; ``(chunks,)``."""
    if p.cut is not None:
        return p.cut.layers
    return even_cut(p.task.model.num_layers, int(p.rows.pp[0]), int(p.rows.vpp[0]))


def stages(b: Breakdown) -> tuple[Stage, ...]:
    """All pipeline stages with their layers, times and memory."""
    pp = len(b.times.blocks)
    folded = bool(b.prices.rows.folded[0])
    cut = b.prices.cut
    layers = layer_ranges(chunk_sizes(b.prices), pp, folded=folded)
    again = [{} for _ in range(pp)] if cut is None or not cut.mixed else _by_mode(b, cut)
    return tuple(
        Stage(
            index=stage,
            layers=layers[stage],
            recompute=again[stage],
            embedding=stage == 0,
            head=stage == (0 if folded else pp - 1),
            **_chips(b.prices, stage),
            forward=float(b.times.forward[0, stage].sum()),
            backward=float(b.times.backward[0, stage].sum()),
            in_flight=float(b.memory.in_flight[0, stage]),
            memory=memory_terms(b, stage),
            memory_total=float(b.memory.total[0, stage]),
            sends=tuple(stage_sends(b.prices, stage)) if pp > 1 else (),
            host=float(b.memory.host[0, stage]),
        )
        for stage in range(pp)
    )


def _chips(p: Prices, stage: int) -> dict[str, Any]:
    """What a stage stands on, where there are pools of different chips."""
    if p.mix is None:
        return {}
    parts = [part.task for part in p.mix.at(stage)]
    return {
        "chip": " + ".join(dict.fromkeys(task.cluster.chip.name for task in parts)),
        "memory_limit": min(task.memory_limit for task in parts),
    }


def memory_terms(b: Breakdown, stage: int) -> tuple[Term, ...]:
    """Memory of a rank of a stage by kind; kinds that need none are left out."""
    parts = b.memory.parts[0, stage]
    return tuple(
        Term(name=f"memory.{kind}", label=MEMORY_LABELS.get(kind, kind), value=float(size))
        for kind, size in zip(TERMS, parts, strict=True)
        if size > 0
    )


def _by_mode(b: Breakdown, cut: Cut) -> list[dict[str, int]]:
    """Layers of every stage by what they recompute."""
    pp, kinds = b.times.blocks.shape[0], len(b.prices.task.model.blocks)
    held = b.times.blocks.sum(axis=1)[:, 1 : 1 + len(RECOMPUTE) * kinds]
    counts = held.reshape(pp, len(RECOMPUTE), kinds).sum(axis=2)
    return [
        {mode: int(number) for mode, number in zip(RECOMPUTE, row, strict=True) if number}
        for row in counts
    ]


def layer_ranges(layers: IntArray, pp: int, *, folded: bool = False) -> list[tuple[str, ...]]:
    """For every stage the layers of its chunks, as runs: ``("0-7", "32-39")``.

    Args:
        layers: of every chunk, in the order of the model.
        pp: stages.
        folded: whether chunks stand in a V.

    >>> chunks = np.array([2, 2, 2, 2])
    >>> layer_ranges(chunks, 2), layer_ranges(chunks, 2, folded=True)
    ([('0-1', '4-5'), ('2-3', '6-7')], [('0-1', '6-7'), ('2-3', '4-5')])
    """
    ends = np.concatenate([[0], np.cumsum(layers)])
    spans = np.array([runs(range(int(a), int(b))) for a, b in pairwise(ends)], dtype=object)
    return [tuple(row) for row in by_stage(spans, pp, folded=folded)]


def runs(numbers: range | list[int]) -> str:
    """Numbers as runs: ``0-2, 5``; empty for none.

    >>> runs([0, 1, 2, 5])
    '0-2, 5'
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in found)
