"""Pins on operators: names, layers and strategies as a person writes them, read against a model.

``layers.*.mlp.up=((1,1),(1,8))`` gives the parts of every dim of every input, as MindSpore writes strategies;
``attn.q.heads=tp`` the axes that cut one dim, ``attn.q.heads=8`` into how many parts they cut it, ``attn.q.heads=none``
that none does.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TypeAlias

import numpy as np

from planner.errors import PlannerError, listed, nearest
from planner.graph.model import Model
from planner.graph.operator import FOLLOWS, Block, DimName, Operator
from planner.graph.placement import AxisName, Split
from planner.units import BoolArray, IntArray

TOGETHER: Mapping[str, tuple[str, ...]] = {"attn.qkv": ("attn.q", "attn.kv")}
"""Names that stand for several operators."""
TOKENS: tuple[DimName, ...] = ("batch", "seq")
AXES: tuple[AxisName, ...] = ("dp", "cp", "tp", "ep", "etp", "edp")
MOST_PARTS = 2**31
_LAYERS = re.compile(r"^layers\.(\*|\d{1,6}|\d{1,6}-\d{1,6})\.(.+)$")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pin asks of an operator: into how many parts some of its dims are cut together, or which axes cut them."""

    dims: tuple[DimName, ...]
    parts: int | None = None
    axes: tuple[AxisName, ...] | None = None

    def met(self, split: Split, degrees: Mapping[AxisName, IntArray]) -> BoolArray:
        """Whether a strategy does so under each of many meshes. Shapes: (n,).

        Axes that are asked for must cut the dims, others must not; an axis of one rank cuts nothing.
        """
        cutting = {axis for axis, dim in split.items() if dim in self.dims}
        parts = np.prod([degrees[axis] for axis in cutting], axis=0, dtype=np.int64)
        shape = np.ones_like(next(iter(degrees.values())))
        if self.parts is not None:
            return np.asarray(shape * parts == self.parts)
        asked = set(self.axes or ())
        others = np.prod([degrees[axis] for axis in cutting - asked], axis=0, dtype=np.int64)
        return np.asarray((shape * others == 1) & (asked <= cutting))

    def __str__(self) -> str:
        name = " × ".join(self.dims)
        if self.parts is not None:
            return f"{name} in {self.parts} part{'s' if self.parts > 1 else ''}"
        return f"{name} cut by {listed(self.axes, 'and')}" if self.axes else f"{name} whole"


@dataclass(frozen=True, slots=True)
class OperatorPin:
    """A pin on operators, as it was written and as it is meant."""

    text: str
    layers: Mapping[str, frozenset[int] | None]
    """Names of the blocks that are meant, with their layers; None for all."""
    wanted: Mapping[tuple[str, str], tuple[Wanted, ...]]
    """By block and operator."""


def is_operator(word: str, value: str) -> bool:
    """Whether a pin speaks of operators."""
    return "." in word or "*" in word or value.startswith("(")


def read_operator_pin(text: str, word: str, value: str, model: Model) -> OperatorPin:
    """A pin on operators.

    Args:
        text: the whole pin.
        word: what stands before its ``=``.
        value: what stands behind it.
        model: whose operators are meant.

    Raises:
        PlannerError: nothing has that name (N01), or no operator can have that strategy (N02).
    """
    whole = value.startswith("(")
    name, dim = (word, "") if whole else word.rpartition(".")[::2]
    layers, pattern = _meant(text, name, model)
    found = _matching(model, layers, pattern)
    if not found:
        operators = {} if whole else _matching(model, *_meant(text, word, model))
        if operators:
            raise _no_dim(text, next(iter(operators.values())))
        raise _no_operator(text, name or word, model)
    blocks = {block.name: block for block in model.all_blocks()}
    if whole:
        wanted = {key: _strategy(text, value, blocks[key[0]], op) for key, op in found.items()}
    else:
        wanted = _one_dim(text, dim, value, found, loose="*" in pattern)
    used = {block for block, _ in wanted}
    return OperatorPin(text, {n: some for n, some in layers.items() if n in used}, wanted)


_Layers: TypeAlias = dict[str, frozenset[int] | None]


def _meant(text: str, name: str, model: Model) -> tuple[_Layers, str]:
    """The blocks that a name speaks of, with their layers, and the rest of the name."""
    kinds = [block.name for block in model.blocks]
    ends = [block.name for block in model.all_blocks() if block.name not in kinds]
    match = _LAYERS.match(name)
    if match is None:
        first, _, rest = name.partition(".")
        return ({first: None}, rest) if first in ends else (dict.fromkeys([*kinds, *ends]), name)
    if match[1] == "*":
        return dict.fromkeys(kinds), match[2]
    start, _, last = match[1].partition("-")
    chosen = range(int(start), int(last or start) + 1)
    if not chosen or chosen[-1] >= model.num_layers:
        raise PlannerError.of(
            "N01",
            f"pin '{text}': {model.name} has no layers {match[1]}.",
            f"Its layers are 0-{model.num_layers - 1}; all of them: layers.*.{match[2]}",
        )
    layers = {
        kind: frozenset(i for i in chosen if model.layers[i] == number)
        for number, kind in enumerate(kinds)
    }
    return {kind: some for kind, some in layers.items() if some}, match[2]


def _matching(model: Model, layers: _Layers, pattern: str) -> dict[tuple[str, str], Operator]:
    return {
        (block.name, op.name): op
        for block in model.all_blocks()
        if block.name in layers
        for op in block.operators
        if fnmatchcase(op.name, pattern) or op.name in TOGETHER.get(pattern, ())
    }


def _no_operator(text: str, name: str, model: Model) -> PlannerError:
    match = _LAYERS.match(name)
    plain = f"layers.*.{match[2]}" if match else name
    names = list(model.operator_dims())
    close = nearest(plain, names if match else [*names, *(n.split(".", 2)[-1] for n in names)])
    return PlannerError.of(
        "N01",
        f"pin '{text}': {model.name} has no operator {name}.",
        f"Nearest: {listed(close)}. All: shardwright show {model.name}",
    )


def _no_dim(text: str, op: Operator) -> PlannerError:
    return PlannerError.of(
        "N01",
        f"pin '{text}' says neither which dim of {op.name} nor its whole strategy.",
        f"Name a dim: {listed([f'{op.name}.{dim}' for dim in op.dims])}.",
    )


def own_dim(op: Operator, dim: DimName) -> DimName | None:
    """A dim in the operator's own words: what follows another is cut as that one, and the other way round."""
    if dim in op.dims:
        return dim
    if FOLLOWS.get(dim) in op.dims:
        return FOLLOWS[dim]
    return next((d for d, lead in FOLLOWS.items() if lead == dim and d in op.dims), None)


def _one_dim(
    text: str,
    dim: DimName,
    value: str,
    found: Mapping[tuple[str, str], Operator],
    *,
    loose: bool,
) -> dict[tuple[str, str], tuple[Wanted, ...]]:
    """One dim of every operator found; a pattern leaves out operators that lack it."""
    parts, axes = _value(text, value)
    wanted: dict[tuple[str, str], tuple[Wanted, ...]] = {
        key: (Wanted((own,), parts, axes),)
        for key, op in found.items()
        if (own := own_dim(op, dim)) is not None
    }
    lacking = [op for op in found.values() if own_dim(op, dim) is None]
    if not wanted or (lacking and not loose):
        op = lacking[0]
        raise PlannerError.of(
            "N01",
            f"pin '{text}': {op.name} has no dim {dim}.",
            f"Nearest: {listed(nearest(dim, op.dims, 2))}. Its dims: {listed(op.dims, 'and')}.",
        )
    return wanted


def _value(text: str, value: str) -> tuple[int | None, tuple[AxisName, ...] | None]:
    """``8``, ``tp``, ``cp+tp`` or ``none``."""
    if _NUMBER.fullmatch(value):
        return int(value), None
    if value.lower() == "none":
        return None, ()
    axes = tuple(axis.strip().lower() for axis in value.split("+"))
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown or len(set(axes)) < len(axes):
        raise PlannerError.of(
            "N02",
            f"pin '{text}': {value} is no axis, no number of parts and no strategy.",
            f"Axes: {listed(AXES)}, joined by +, or none; parts: 1 or more; strategies like ((1,1),(1,8)).",
        )
    return None, axes


def _strategy(text: str, value: str, block: Block, op: Operator) -> tuple[Wanted, ...]:
    """A MindSpore strategy; dims that a matrix has in one may be given in one: tokens, features."""
    given = _parts(text, value)
    inputs = [use.dims for use in op.reads] + [block.tensors[name].dims for name in op.weights]
    least = len(op.reads) + sum(len(block.tensors[name].dims) > 1 for name in op.weights)
    if not least <= len(given) <= len(inputs):
        raise _misfit(text, op, inputs, f"it has {least} inputs, not {len(given)}")
    found: dict[tuple[DimName, ...], int] = {}
    for parts, dims in zip(given, inputs, strict=False):
        groups = next((g for g in _forms(block, op, dims) if len(g) == len(parts)), None)
        if groups is None:
            raise _misfit(text, op, inputs, f"{tuple(parts)} does not fit {listed(dims, 'and')}")
        for group, count in zip(groups, parts, strict=True):
            key = tuple(own_dim(op, dim) or dim for dim in group)
            if found.setdefault(key, count) != count:
                twice = f"{' × '.join(key)} is cut into {found[key]} and into {count}"
                raise _misfit(text, op, inputs, twice)
    return tuple(Wanted(dims, parts=count) for dims, count in found.items())


def _misfit(
    text: str, op: Operator, inputs: Sequence[tuple[DimName, ...]], why: str
) -> PlannerError:
    dims = ", ".join(f"({', '.join(dims)})" for dims in inputs)
    return PlannerError.of(
        "N02",
        f"pin '{text}' is no strategy of {op.name}: {why}.",
        f"Its inputs are ({dims}); tokens may be given as one, and so may features.",
    )


def _parts(text: str, value: str) -> tuple[tuple[int, ...], ...]:
    try:
        read = ast.literal_eval(value)
        parts = tuple(tuple(one) for one in read)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        parts = ()
    counts = [count for one in parts for count in one]
    if not counts or not all(type(c) is int and 0 < c <= MOST_PARTS for c in counts):
        raise PlannerError.of(
            "N02",
            f"pin '{text}': {value} is no strategy.",
            "Write the parts of every dim of every input, like ((1,1),(1,8)).",
        )
    return parts


def _forms(
    block: Block, op: Operator, dims: tuple[DimName, ...]
) -> Iterator[list[tuple[DimName, ...]]]:
    """Dims by themselves; as a matrix has them; as a matrix, tokens apart."""
    results = {dim for name in op.writes for dim in block.tensors[name].dims}

    def kind(dim: DimName) -> str:
        return "tokens" if dim in TOKENS else "kept" if dim in results else "summed"

    yield [(dim,) for dim in dims]
    runs = [(k, tuple(run)) for k, run in groupby(dims, kind)]
    yield [run for _, run in runs]
    yield [part for k, run in runs for part in ([(d,) for d in run] if k == "tokens" else [run])]


def contradictions(pins: Iterable[OperatorPin]) -> Iterator[tuple[OperatorPin, OperatorPin, str]]:
    """Pairs of pins that ask different things of the same dims of one operator, with what is asked."""
    asked: dict[tuple[str, str, tuple[DimName, ...], bool], list[tuple[OperatorPin, Wanted]]] = {}
    for pin in pins:
        for (block, name), wanted in pin.wanted.items():
            for one in wanted:
                others = asked.setdefault((block, name, one.dims, one.axes is None), [])
                for first, other in others:
                    if one != other and _meet(first.layers[block], pin.layers[block]):
                        yield first, pin, f"{name}: {other}, and {one}"
                others.append((pin, one))


def _meet(one: frozenset[int] | None, other: frozenset[int] | None) -> bool:
    """Whether two pins speak of a common layer of a block."""
    return one is None or other is None or bool(one & other)


def divided(model: Model, pins: Sequence[OperatorPin]) -> tuple[Model, tuple[OperatorPin, ...]]:
    """A model whose equal layers are told apart where pins speak of some of them, and the pins in its words."""
    kinds: dict[tuple[int, tuple[int, ...]], int] = {}
    layers = [
        kinds.setdefault((kind, _pins_on(pins, model.blocks[kind].name, layer)), len(kinds))
        for layer, kind in enumerate(model.layers)
    ]
    if len(kinds) == len(model.blocks):
        return model, tuple(pins)
    many = Counter(kind for kind, _ in kinds)
    blocks, new = [], [(dict(pin.layers), dict(pin.wanted)) for pin in pins]
    seen: Counter[int] = Counter()
    for kind, on in kinds:
        old = model.blocks[kind]
        seen[kind] += 1
        name = f"{old.name} {seen[kind]}" if many[kind] > 1 else old.name
        blocks.append(replace(old, name=name))
        for index in on:
            found = {(name, op): w for (b, op), w in pins[index].wanted.items() if b == old.name}
            new[index][0][name] = None
            new[index][1].update(found)
    kept = {block.name for block in (*blocks, model.embedding, *model.mtp, model.head)}
    told = tuple(
        OperatorPin(
            pin.text,
            {name: None for name in some if name in kept},
            {key: wanted for key, wanted in wants.items() if key[0] in kept},
        )
        for pin, (some, wants) in zip(pins, new, strict=True)
    )
    return replace(model, blocks=tuple(blocks), layers=tuple(layers)), told


def _pins_on(pins: Sequence[OperatorPin], block: str, layer: int) -> tuple[int, ...]:
    """Numbers of the pins that speak of a layer."""
    found = []
    for number, pin in enumerate(pins):
        some = pin.layers.get(block, frozenset())
        if some is None or layer in some:
            found.append(number)
    return tuple(found)
