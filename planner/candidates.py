"""Candidates: a table of ways to run one training step, one row each, priced all at once.

A single layout is the table of one row, so that one code path prices one plan and a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args

import numpy as np

from planner.graph.placement import AxisName
from planner.units import Array, BoolArray, IntArray

Recompute: TypeAlias = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
Schedule: TypeAlias = Literal[
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zbv", "dualpipev"
]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
SPLIT = tuple(SCHEDULES.index(name) for name in SCHEDULES[3:])
"""Schedules whose backward pass gives the input's gradient first and the weights' later."""
LOOPED = (SCHEDULES.index("interleaved"), SCHEDULES.index("zb-h1"))
"""Schedules of several chunks a stage, which go round the stages."""
FOLDED = (SCHEDULES.index("zbv"), SCHEDULES.index("dualpipev"))
"""Schedules of two chunks a stage that stand in a V: down the stages and back up."""
SHARDING: tuple[str, ...] = ("none", "ZeRO-1", "ZeRO-2", "ZeRO-3")
"""What is sharded over the data ranks: nothing; optimizer states; and gradients; and weights (FSDP)."""

OFFLOAD: tuple[str, ...] = (
    "none",
    "optimizer",
    "states",
    "activations",
    "optimizer+activations",
    "states+activations",
    "optimizer-25%",
    "optimizer-50%",
    "optimizer-75%",
)
"""What is kept in host memory: nothing; optimizer states; weights and gradients too; what layers keep for the backward
pass; both; and a share of optimizer states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Columns of equal length; shape ``(n,)``."""

    dp: IntArray
    """Data-parallel degree."""
    tp: IntArray
    """Tensor-parallel degree."""
    pp: IntArray
    """Pipeline stages."""
    cp: IntArray
    """Context-parallel degree."""
    ep: IntArray
    """Expert-parallel degree; shares the ranks of dp, cp and tp."""
    etp: IntArray
    """Tensor-parallel degree inside an expert."""
    vpp: IntArray
    """Virtual chunks a stage; 1 without interleaving."""
    micro_batch: IntArray
    """Sequences in one micro-batch of one data-parallel rank."""
    sharding: IntArray
    """Index into ``SHARDING``."""
    shard_group: IntArray
    """Data ranks over which states are sharded: dp · cp, or a divisor of it (HSDP)."""
    recompute: IntArray
    """Index into ``RECOMPUTE``."""
    sp: BoolArray
    """Sequence parallelism: the tp ranks also split the stream between the products."""
    order: IntArray
    """Index into the trainer's axis orders."""
    schedule: IntArray
    """Index into ``SCHEDULES``."""
    operators: IntArray
    """Index into the task's plans of operators; 0 is what the trainer's roles give."""
    offload: IntArray
    """Index into ``OFFLOAD``."""

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def ranks(self) -> IntArray:
        """Chips used by each candidate."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def edp(self) -> IntArray:
        """Replicas of an expert's weights within a stage."""
        return self.dp * self.cp * self.tp // (self.ep * self.etp)

    @property
    def folded(self) -> BoolArray:
        """Whether the chunks of the stages stand in a V."""
        return np.asarray(_FOLDED[self.schedule])

    @property
    def optimizer_in_host(self) -> Array:
        """Share of optimizer states in host memory.

        >>> single(offload=OFFLOAD.index("optimizer-25%")).optimizer_in_host
        array([0.25])
        """
        return np.asarray(_SHARE[self.offload])

    def in_host(self, what: str) -> BoolArray:
        """Whether ``optimizer`` (all or a share), ``states`` (weights too) or ``activations`` are in host memory.

        >>> single(offload=OFFLOAD.index("states")).in_host("optimizer")
        array([ True])
        """
        return _IN_HOST[what][self.offload]

    def num_micro_batches(self, global_batch: int) -> IntArray:
        """Micro-batches of one step (gradient accumulation)."""
        return global_batch // (self.dp * self.micro_batch)

    def take(self, index: IntArray | BoolArray | slice) -> Candidates:
        """The rows at an index, a mask or a slice."""
        return Candidates(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def repeat(self, count: int) -> Candidates:
        """Every row ``count`` times in a row."""
        return Candidates(**{f.name: np.repeat(getattr(self, f.name), count) for f in fields(self)})

    def degree(self, axis: AxisName) -> IntArray:
        """The size of an axis in either view."""
        return self.edp if axis == "edp" else getattr(self, axis)


_FOLDED = np.isin(np.arange(len(SCHEDULES)), FOLDED)
_IN_HOST: dict[str, BoolArray] = {
    what: np.array([name.split("-")[0] == what or what in name.split("+") for name in OFFLOAD])
    for what in ("optimizer", "states", "activations")
}
_IN_HOST["optimizer"] |= _IN_HOST["states"]
_SHARE = np.array(
    [
        int(name.partition("-")[2].rstrip("%") or 100) / 100 * _IN_HOST["optimizer"][place]
        for place, name in enumerate(OFFLOAD)
    ]
)


def distinct(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """First index of every distinct row of these columns, and for every row the number of its distinct row.

    >>> distinct([np.array([2, 1, 2]), np.array([5, 5, 5])])
    (array([1, 0]), array([1, 0, 1]))
    """
    starts = _runs(columns)
    if 2 * len(starts) > len(columns[0]):
        return _distinct(columns)
    first, index = _distinct([column[starts] for column in columns])
    return starts[first], np.repeat(index, np.diff(starts, append=len(columns[0])))


def _runs(columns: Sequence[IntArray]) -> IntArray:
    """Where rows begin that differ from the one before; rows of a space mostly differ in few columns."""
    change = np.zeros(len(columns[0]), dtype=bool)
    change[:1] = True
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(change)


def _distinct(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """The same whatever the order of rows."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        low = int(column.min(initial=0))
        span = int(column.max(initial=0)) - low + 1
        if span > 2**62 // (int(code.max(initial=0)) + 1):
            code = np.unique(code, return_inverse=True)[1].ravel()
        code = code * span + (column - low)
    if len(code) and int(code.max()) < len(code):
        return _counted(code)
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return first, index.ravel()


def _counted(code: IntArray) -> tuple[IntArray, IntArray]:
    """The same for numbers smaller than there are rows, without sorting."""
    first = np.full(len(code), -1)
    first[code[::-1]] = np.arange(len(code))[::-1]
    there = first >= 0
    return first[there], (np.cumsum(there) - 1)[code]


def single(**columns: int) -> Candidates:
    """A table of one row; what is not given is 1 (indices 0), ``shard_group`` all data ranks.

    >>> single(dp=2, tp=4).ranks
    array([8])
    """
    ones = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch")
    row: dict[str, int] = dict.fromkeys(ones, 1) | {
        "sharding": 0,
        "recompute": 0,
        "sp": 0,
        "order": 0,
        "schedule": SCHEDULES.index("1f1b"),
        "operators": 0,
        "offload": 0,
    }
    row |= columns
    row.setdefault("shard_group", row["dp"] * row["cp"])
    arrays = {name: np.array([value], dtype=np.int64) for name, value in row.items()}
    arrays["sp"] = arrays["sp"].astype(bool)
    return Candidates(**arrays)  # type: ignore[arg-type]


def concatenate(tables: list[Candidates]) -> Candidates:
    """Tables under one another."""
    names = [f.name for f in fields(Candidates)]
    return Candidates(**{n: np.concatenate([getattr(t, n) for t in tables]) for n in names})


def as_float(values: IntArray) -> Array:
    """Integers as floats, for arithmetic that may overflow."""
    return values.astype(np.float64)
