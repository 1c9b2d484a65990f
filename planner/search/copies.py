"""How the readers of a tensor share copies of it: a reader takes a copy, and a copy may be made from another.

Copies form a tree from the tensor to its readers. What several want alike is converted once; gradients come back the
same way and are summed where branches meet, as autograd does it. Conversions cost their cheapest path, so that a tree
in which two branches leave every copy costs no more than any other. Which readers meet where is found by branch and
bound: they join one after the other at each edge of the tree, and a tree that lacks readers costs no more than with
them. Source: Hendy and Penny, Branch and bound algorithms to determine minimal evolutionary trees (1982).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from math import inf
from time import perf_counter
from typing import Protocol, TypeAlias, TypeVar

Tree: TypeAlias = "int | tuple[Tree, ...]"
"""A reader by number, or a copy that its branches share."""
Trees: TypeAlias = Mapping[str, Tree]
"""For tensors, the copies that their readers take."""
SLACK = 1e-9
"""Share of the best cost by which another must be less to be looked for: rounding of sums."""


class Answer(Protocol):
    """The best choice under some trees."""

    @property
    def cost(self) -> float:
        """What it costs; inf without one."""

    @property
    def bound(self) -> float:
        """No choice costs less than this, or none less than what was known."""


Found = TypeVar("Found", bound=Answer)


def leaves(tree: Tree) -> tuple[int, ...]:
    """The readers of a tree."""
    return (tree,) if isinstance(tree, int) else tuple(r for branch in tree for r in leaves(branch))


def star(readers: int) -> Tree:
    """One copy for all; none where there is one reader."""
    return tuple(range(readers)) if readers > 1 else 0


def grown(tree: Tree, reader: int) -> Iterator[Tree]:
    """The tree with one reader more, which meets it at each of its edges in turn."""
    yield (tree, reader)
    if not isinstance(tree, int):
        for at, branch in enumerate(tree):
            for one in grown(branch, reader):
                yield (*tree[:at], one, *tree[at + 1 :])


def cheapest(
    readers: Mapping[str, int],
    solve: Callable[[Trees, Found | None, float], Found],
    seconds: float,
) -> tuple[Found, float]:
    """The best choice over all ways to share copies, and what no choice is below.

    Args:
        readers: of every tensor, how many.
        solve: the best choice under some trees that costs less than the best so far, in so many seconds; readers that
            a tree lacks cost nothing.
        seconds: of all together; what is found until then is returned.
    """
    last = perf_counter() + seconds
    stars = {name: star(number) for name, number in readers.items()}
    best = solve(stars, None, seconds)
    crowded = {name: number for name, number in readers.items() if number > 2}
    if not crowded:
        return best, best.bound
    turn, floor = count(), best.cost
    pairs = stars | dict.fromkeys(crowded, star(2))
    heap: list[tuple[float, int, Trees]] = [(-inf, next(turn), pairs)]
    while heap and heap[0][0] < best.cost * (1 - SLACK):
        if perf_counter() > last:
            floor = min(floor, heap[0][0])
            break
        _, _, trees = heapq.heappop(heap)
        name = next(n for n, number in crowded.items() if len(leaves(trees[n])) < number)
        for tree in grown(trees[name], len(leaves(trees[name]))):
            now = {**trees, name: tree}
            got = solve(now, best, last - perf_counter())
            if any(len(leaves(now[n])) < number for n, number in crowded.items()):
                heapq.heappush(heap, (got.bound, next(turn), now))
                continue
            floor = min(floor, got.bound)
            if got.cost < best.cost:
                best = got
    return best, min(floor, best.cost)
