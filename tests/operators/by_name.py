"""Every plan of a tiny block, priced in names and one operator at a time, with what it holds at every moment."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import numpy as np

from planner.cost.collectives import collective
from planner.cost.operator_cost import operator_cost
from planner.cost.resharding import conversions
from planner.cost.states import state_bytes
from planner.cost.strategies import gradient, required, written
from planner.graph.placement import Partial, Replicate
from planner.search.free_axes import space


def all_splits(s, op):
    written_dims = [set(s.plain.tensors[name].dims) for name in op.writes]
    able = [
        dim
        for dim in op.dims
        if dim not in op.whole
        and (op.kind == "matmul" or all(dim in results for results in written_dims))
    ]
    sizes = dict(zip(s.mesh.names, s.mesh.sizes, strict=True))
    for chosen in product([None, *able], repeat=len(s.mesh.names)):
        split = {a: d for a, d in zip(s.mesh.names, chosen, strict=True) if d is not None}
        if all(
            s.size(dim) % prod(sizes[a] for a, d in split.items() if d == dim) == 0 for dim in able
        ):
            yield split


def compute(s, number, split):
    sizes = dict(zip(s.mesh.names, s.mesh.sizes, strict=True))
    setting = s.setting({a: np.array([float(sizes[a])]) for a in split})
    found = operator_cost(setting, s.block, s.block.operators[number], split)
    return float((found.forward + found.backward).ravel()[0])


class Options:
    """Ways to do something: seconds and bytes at every moment; of them, what nothing cheaper holds less than."""

    def __init__(self, s, pairs, limit):
        self.moments, self.limit = 2 * len(s.plain.operators), limit
        pairs = [pair for pair in pairs if pair[0] < np.inf]
        costs = np.array([cost for cost, _ in pairs])
        held = np.array([held for _, held in pairs]).reshape(len(pairs), self.moments)
        self.costs, self.held = self.left(costs, held)

    def left(self, costs, held):
        if self.limit is None:
            return costs[:0] if not len(costs) else costs.min(keepdims=True), held[:1] * 0
        fit = (held <= self.limit).all(axis=1)
        costs, held = costs[fit], held[fit]
        by = np.argsort(costs, kind="stable")
        kept: list[int] = []
        for one in by:
            if not (held[kept] <= held[one]).all(axis=1).any():
                kept.append(one)
        return costs[kept], held[kept]

    def beside(self, other):
        both = object.__new__(Options)
        both.moments, both.limit = self.moments, self.limit
        costs = (self.costs[:, None] + other.costs).ravel()
        held = (self.held[:, None] + other.held).reshape(-1, self.moments)
        both.costs, both.held = self.left(costs, held)
        return both


def moments_of(s):
    """(operator, backward) in order."""
    count = len(s.plain.operators)
    return [(n, False) for n in range(count)] + [(n, True) for n in reversed(range(count))]


def weight(s, name, users, splits):
    """A weight that all its operators cut alike, for every group its states may be sharded in."""
    sizes = dict(zip(s.mesh.names, s.mesh.sizes, strict=True))

    def seconds(kind, axes, size):
        if not axes:
            return 0.0
        spread = s.mesh.members[:, [s.mesh.names.index(a) for a in axes]].prod(axis=1)
        return float(collective(kind, size, spread, s.mesh.cluster))

    dims = s.plain.tensors[name].dims
    cuts = [{a: d for a, d in split.items() if d in dims} for split in splits]
    if any(cut != cuts[0] for cut in cuts):
        return []
    cut = cuts[0]
    partial = {a for split in splits for a, d in split.items() if d not in dims}
    if partial & set(cut):
        return []
    elements = s.block.elements(dims) / prod(sizes[a] for a in cut)
    assert state_bytes(s.task).gradients == 4.0
    assert s.task.trainer.memory.wgrad_bytes == 5.5
    found = []
    for bits in product([0, 1], repeat=len(sizes)):
        group = [a for a, bit in zip(sizes, bits, strict=True) if bit]
        if set(group) & set(cut) or elements % prod(sizes[a] for a in group):
            continue
        scattered = [a for a in partial if a in group]
        rest = [a for a in partial if a not in group]
        grads = 4.0 * elements
        cost = 2 * seconds("all-gather", group, 2.0 * elements)
        cost += seconds("reduce-scatter", scattered, grads)
        cost += seconds("all-reduce", rest, grads / prod(sizes[a] for a in scattered))
        states = 18.0 * elements / prod(sizes[a] for a in group)
        held = []
        for n, back in moments_of(s):
            used = min(users) <= n <= max(users)
            gathered = 2.0 * elements if group else 0.0
            made = (4.0 * elements if group else 0.0) + 5.5 * elements if back else 0.0
            held.append(states + (gathered + made if used else 0.0))
        found.append((cost, held))
    return found


def plain(layout):
    return {a: Replicate() if isinstance(p, Partial) else p for a, p in layout.items()}


class Around:
    """One tensor: how it can stand between its writer and its readers, what that costs and holds.

    With ``keep`` the layout in which it stands is kept: what is saved in another is made again for the backward pass.
    """

    def __init__(self, s, name, splits, *, keep, limit):
        self.s, self.name, self.keep, self.limit = s, name, keep, limit
        self.t = s.plain.tensors[name]
        dims = self.t.dims
        self.c = conversions(s.mesh, dims, tuple(s.size(d) for d in dims), s.bytes_of(name))
        self.lies = [self.c.placements(number) for number in range(len(self.c.layouts))]
        operators = s.plain.operators
        self.writer = next((n for n, op in enumerate(operators) if name in op.writes), None)
        self.uses = [
            (use, n) for n, op in enumerate(operators) for use in op.reads if use.tensor == name
        ]
        self.readers = [n for _, n in self.uses]
        self.saves = [name in operators[n].saves for n in self.readers]
        self.wants = [required(use, self.t, operators[n], splits[n]) for use, n in self.uses]
        self.lefts = [gradient(use, self.t, operators[n], splits[n]) for use, n in self.uses]
        if self.writer is not None:
            self.have = written(self.t, operators[self.writer], splits[self.writer])
        self.output = name in s.plain.outputs
        self.gradient = self.t.kind == "activation"
        self.ring = self.writer is not None and any(n <= self.writer for n in self.readers)
        self.known, self.met = {}, {}
        self.moments = moments_of(s)
        self.numbers = {id(lie): n for n, lie in enumerate(self.lies)}
        self.bare = [self.c.number(plain(lie)) for lie in self.lies]

    def seconds(self, have, want):
        return float(self.c.seconds[self.c.number(have), self.c.number(want)])

    def local(self, layout):
        return float(self.c.local[self.c.number(layout)])

    def other(self, layout, source):
        """Bytes of a layout beside the one that it is made from, or that is made from it."""
        return 0.0 if self.c.number(layout) == self.c.number(source) else self.local(layout)

    def stands(self):
        """Every way: costs and bytes at every moment."""
        if not self.readers and not self.output:
            return [(0.0, np.zeros(2 * len(self.s.plain.operators)))]
        found = []
        for x in self.lies:
            partial = any(isinstance(p, Partial) for p in x.values())
            if partial and (self.writer is None or not self.readers or not self.gradient):
                continue
            cost, held = self.alone(x)
            below = self.below(tuple(range(len(self.readers))), x) if self.readers else None
            if below is None:
                found.append((cost, held))
            else:
                pairs = zip(below.costs, below.held, strict=True)
                found += [(cost + more, held + also) for more, also in pairs]
        return found

    def alone(self, x):
        """The tensor itself and its writer."""
        value, grad, held = self.local(plain(x)), self.local(x) * self.gradient, []
        last, first = max(self.readers, default=-1), self.writer
        saved = [
            n for n, saves in zip(self.readers, self.saves, strict=True) if saves and self.keep
        ]
        for n, back in moments_of(self.s):
            arrived = first is None or n >= first
            if self.ring:
                now = 0.0
                if not back:
                    now += value * (n <= last or bool(saved)) + value * (n >= first)
                else:
                    now += value * bool(saved and n >= saved[0])
                    now += grad * (n <= last) + grad * (n >= first)
            elif not back:
                needed = self.output or n <= last or bool(saved) or n == first
                now = value * (arrived and needed)
            else:
                now = value * bool(saved and n >= saved[0])
                now += grad * (arrived and (self.output or n <= last))
            if n == self.writer:
                if back:
                    now += self.other(plain(self.have), x) * self.gradient
                else:
                    now += self.other(self.have, plain(x))
            held.append(now)
        cost = 0.0
        if self.writer is not None:
            cost = self.seconds(self.have, plain(x))
            cost += self.seconds(x, plain(self.have)) * self.gradient
        return cost, np.array(held)

    def below(self, some, x):
        """Ways for some readers from a layout: one takes it, several part at a copy, whoever goes with whom."""
        at = some, self.numbers[id(x)]
        if at not in self.known:
            pairs = [self.read(some[0], x)] if len(some) == 1 else self.parted(some, x)
            self.known[at] = Options(self.s, pairs, self.limit)
        return self.known[at]

    def read(self, reader, x):
        n, saved = self.readers[reader], self.saves[reader] and self.keep
        want, left = self.wants[reader], self.lefts[reader]
        cost = self.seconds(plain(x), want) * (2 if saved else 1)
        cost += self.seconds(left, x) * self.gradient
        value, grad = self.other(want, plain(x)), self.other(left, x)
        if n != max(self.readers):
            grad = self.local(left)
        held = np.zeros(len(self.moments))
        held[self.moments.index((n, False))] = value
        held[self.moments.index((n, True))] = value * saved + grad * self.gradient
        return cost, held

    def parted(self, some, x):
        """From a copy in every layout."""
        at = [self.readers[r] for r in some]
        saved = [self.readers[r] for r in some if self.saves[r] and self.keep]
        ahead, back, again = (
            np.array([turned == way and one[0] <= n <= one[-1] for n, turned in self.moments])
            for way, one in ((False, at), (True, at), (True, saved or [-1]))
        )
        local, seconds, i = self.c.local, self.c.seconds, self.numbers[id(x)]
        for j, y in enumerate(self.lies):
            have, want = self.bare[i], self.bare[j]
            cost = seconds[have, want] * (2 if saved else 1) + seconds[j, i] * self.gradient
            held = (ahead + again) * local[want] * (have != want)
            held = held + back * local[j] * (i != j) * self.gradient
            below = self.meet(some, j, y)
            yield from ((cost + c, held + h) for c, h in zip(below.costs, below.held, strict=True))

    def meet(self, some, j, y):
        """Ways for some readers from their copy."""
        if (some, j) not in self.met:
            both = [self.below(one, y).beside(self.below(rest, y)) for one, rest in halves(some)]
            pairs = [pair for b in both for pair in zip(b.costs, b.held, strict=True)]
            self.met[some, j] = Options(self.s, pairs, self.limit)
        return self.met[some, j]


def halves(some):
    """All ways to part readers in two."""
    first, *others = some
    for size in range(len(others)):
        for more in combinations(others, size):
            one = (first, *more)
            yield one, tuple(r for r in some if r not in one)


def brute_force(block, mesh, task, sequences, pins=None, limit=None):
    """Least seconds of all strategies, layouts, copies and groups, or of those within a limit at every moment."""
    s = space(block, mesh, task, sequences)
    options = [
        [
            (split, compute(s, n, split))
            for split in ([pins[op.name]] if op.name in (pins or {}) else all_splits(s, op))
        ]
        for n, op in enumerate(s.plain.operators)
    ]
    users = {
        name: [
            n
            for n, op in enumerate(s.plain.operators)
            if name in (*op.writes, *op.weights, *(use.tensor for use in op.reads))
        ]
        for name in s.plain.tensors
    }
    memo: dict[object, Options] = {}

    def around(name, splits):
        touching = tuple((n, tuple(splits[n].items())) for n in users[name])
        if (name, touching) not in memo:
            if s.plain.tensors[name].kind == "weight":
                pairs = weight(s, name, users[name], [splits[n] for n in users[name]])
            else:
                pairs = Around(s, name, splits, keep=limit is not None, limit=limit).stands()
            memo[name, touching] = Options(s, pairs, limit)
        return memo[name, touching]

    def parts(chosen):
        splits = [split for split, _ in chosen]
        return [around(name, splits) for name in s.plain.tensors]

    def least(chosen):
        """Without looking at what all hold together."""
        whole = sum(cost for _, cost in chosen)
        return whole + sum(part.costs.min(initial=np.inf) for part in parts(chosen))

    found = np.inf
    for bound, _, chosen in sorted((least(c), n, c) for n, c in enumerate(product(*options))):
        if bound >= found:
            break
        whole = Options(s, [(sum(c for _, c in chosen), np.zeros(2 * len(chosen)))], limit)
        for part in parts(chosen):
            whole = whole.beside(part)
        found = min(found, float(whole.costs.min(initial=np.inf)))
    return found
