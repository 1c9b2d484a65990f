"""Compiled sweeps of message passing (TRW-S): a lower bound from any messages, and its slope in the node costs.

A message moves cost between an edge and a node, which changes no choice's total; after a sweep the sum of all least
values is a bound that holds whatever the messages were before. Source: Kolmogorov, Convergent tree-reweighted message
passing (2006), with chains in node order.
"""

from __future__ import annotations

import numpy as np

from planner.search.solver.compiled import compiled
from planner.search.solver.graph import Graph
from planner.search.solver.timeline import Timeline
from planner.units import Array, IntArray


@compiled
def gather(g: Graph, theta: Array, messages: Array, i: int, out: Array) -> None:
    """Cost of node i's strategies with everything that its neighbours say."""
    s, k = g.start[i], g.start[i + 1] - g.start[i]
    for p in range(k):
        out[p] = theta[s + p]
    for a in range(g.adj[i], g.adj[i + 1]):
        at = g.arrives[a]
        for p in range(k):
            out[p] += messages[at + p]


@compiled
def sweep(
    g: Graph,
    theta: Array,
    share: Array,
    messages: Array,
    forward: bool,
    floors: Array,
    lows: Array,
    here: Array,
    there: Array,
) -> float:
    """Updates the messages of one direction, node by node; returns the bound.

    Args:
        g: the graph.
        theta: priced cost of every strategy.
        share: part of a node's surplus that each edge of the direction takes. Shape (n,).
        messages: in and out.
        forward: to nodes of higher index, or lower.
        floors: out: what each node adds to the bound. Shape (n,).
        lows: out: what each arc of the direction adds. Shape (2m,).
        here: buffer, one entry a strategy of the largest node.
        there: another one.
    """
    bound = 0.0
    n = len(g.start) - 1
    for step in range(n):
        i = step if forward else n - 1 - step
        k = g.start[i + 1] - g.start[i]
        gather(g, theta, messages, i, here)
        least = np.inf
        for p in range(k):
            least = here[p] if here[p] < least else least
        floors[i] = least
        bound += least
        for a in range(g.adj[i], g.adj[i + 1]):
            o = g.other[a]
            if (o > i) != forward:
                continue
            ko = g.start[o + 1] - g.start[o]
            for q in range(ko):
                there[q] = np.inf
            for p in range(k):
                if here[p] == np.inf:
                    continue
                value = share[i] * (here[p] - least) - messages[g.arrives[a] + p]
                row = g.own_rows[a] + p * ko
                for q in range(ko):
                    v = value + g.tables[row + q]
                    there[q] = v if v < there[q] else there[q]
            low = np.inf
            for q in range(ko):
                low = there[q] if there[q] < low else low
            lows[a] = low
            bound += low
            for q in range(ko):
                messages[g.leaves[a] + q] = there[q] - low
    return bound


@compiled
def slopes(
    g: Graph, theta: Array, share: Array, messages: Array, forward: bool, weight: Array, here: Array
) -> None:
    """How the bound of the last sweep grows with each strategy's cost: a distribution a node, into `weight`."""
    n = len(g.start) - 1
    for step in range(n):
        i = n - 1 - step if forward else step
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        gather(g, theta, messages, i, here)
        low = 0
        for p in range(k):
            weight[s + p] = 0.0
            if here[p] < here[low]:
                low = p
        least, rest = here[low], 1.0
        for a in range(g.adj[i], g.adj[i + 1]):
            o = g.other[a]
            if (o > i) != forward:
                continue
            rest -= share[i]
            so, ko = g.start[o], g.start[o + 1] - g.start[o]
            for q in range(ko):
                if weight[so + q] == 0.0:
                    continue
                best, arg = np.inf, low
                row = g.other_rows[a] + q * k
                for p in range(k):
                    if here[p] == np.inf:
                        continue
                    v = (
                        share[i] * (here[p] - least)
                        - messages[g.arrives[a] + p]
                        + g.tables[row + p]
                    )
                    if v < best:
                        best, arg = v, p
                weight[s + arg] += share[i] * weight[so + q]
        weight[s + low] += rest


@compiled
def priced(g: Graph, line: Timeline, prices: Array, theta: Array) -> float:
    """Node costs plus what memory costs at the prices, into `theta`; returns the worth of all room."""
    total = np.zeros(len(prices) + 1)
    worth = 0.0
    for t in range(len(prices)):
        total[t + 1] = total[t] + prices[t]
        worth += prices[t] * line.room[t]
    for i in range(len(g.start) - 1):
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        for p in range(k):
            theta[s + p] = g.costs[s + p]
        for z in range(line.first[i], line.first[i + 1]):
            price = total[line.hi[z]] - total[line.lo[z]]
            if price != 0.0:
                for p in range(k):
                    theta[s + p] += price * line.usages[line.at[z] + p]
    return worth


@compiled
def expected_use(g: Graph, line: Timeline, weight: Array, use: Array) -> None:
    """Memory in use at every point under a distribution a node, into `use`."""
    n = len(g.start) - 1
    change = np.zeros(len(use) + 1)
    for i in range(n):
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        for z in range(line.first[i], line.first[i + 1]):
            u = 0.0
            for p in range(k):
                u += weight[s + p] * line.usages[line.at[z] + p]
            change[line.lo[z]] += u
            change[line.hi[z]] -= u
    total = 0.0
    for t in range(len(use)):
        total += change[t]
        use[t] = total


@compiled
def least_with(
    g: Graph,
    theta: Array,
    messages: Array,
    forward: Array,
    backward: Array,
    lows: Array,
    least: Array,
    here: Array,
) -> None:
    """Lower bound on the priced cost of every choice that uses a strategy, into `least`.

    Right after a forward and a backward sweep at the same costs. When the backward sweep stood at node i, nodes below
    had given what the forward sweep took, nodes above what the backward sweep took, but for edges that pass i: these
    give once, to the forward sweep. What is left besides i's own vector is nowhere negative.

    Args:
        g: the graph.
        theta: priced cost of every strategy.
        messages: as the sweeps left them.
        forward: floors of the forward sweep. Shape (n,).
        backward: floors of the backward sweep.
        lows: of both sweeps.
        least: out, one a strategy.
        here: buffer.
    """
    n = len(g.start) - 1
    above, into = np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n):
        for a in range(g.adj[i], g.adj[i + 1]):
            if g.other[a] < i:
                into[g.other[a]] += lows[a]
    for i in range(n - 1, -1, -1):
        above[i] = above[i + 1] + backward[i]
        into[i] += into[i + 1]
    before = 0.0
    for i in range(n):
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        gather(g, theta, messages, i, here)
        for p in range(k):
            least[s + p] = before + above[i + 1] + into[i] + here[p]
        before += forward[i]
        for a in range(g.adj[i], g.adj[i + 1]):
            if g.other[a] > i:
                before += lows[a]


def chain_shares(edges: IntArray, count: int) -> Array:
    """Part of a node's surplus an edge may take so that both directions together take no more than all of it."""
    later = np.bincount(edges[:, 0], minlength=count)
    earlier = np.bincount(edges[:, 1], minlength=count)
    return 1.0 / np.maximum(1, np.maximum(later, earlier))
