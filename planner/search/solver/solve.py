"""The whole solver: reduce, bound, search, rule out, and prove what is small enough.

Every part is exact about what it claims: the bound holds whatever was run and however long, and a choice is judged on
the problem as asked. Nothing here knows an instance; sizes decide which part gets the time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from planner.search.solver.branch import Tree, pairs_of
from planner.search.solver.clock import Clock, Deadline
from planner.search.solver.compiled import HAVE_NUMBA
from planner.search.solver.decomposition import Dual, carried
from planner.search.solver.ilp import solve_ilp
from planner.search.solver.local import Search
from planner.search.solver.presolve import Core, InfeasibleError, presolve, without
from planner.search.solver.problem import Problem
from planner.search.solver.regions import Regions
from planner.search.solver.weighted import HAVE_TOULBAR2, handed_over, solve_weighted
from planner.units import IntArray

RATE = 0.7
"""First rate at which prices follow the slope."""
STEPS = 1200 if HAVE_NUMBA else 120
"""Dual steps after which a small problem's bound has settled; in plain Python the integer program beats more."""
SMALL = 250_000
"""Allowed pairs of strategies up to which the integer program is worth its time."""
REDUCE_SHARE = 0.4
"""Part of the time after which a reduction is left as it is."""
START_SHARE = 0.1
"""Part of the remaining time in which first prices are looked for."""
SWEEPS_A_CYCLE = 15
"""Sweeps of the dual whose time a round of bound, search and ruling out takes at least."""
SWEEPS_TO_RULE_OUT = 6
"""Sweeps of the dual whose time ruling out takes."""
FIRST_SHARE = 0.2
"""Part of the remaining time in which first choices are decoded."""
DUAL_SHARE = 0.4
"""Part of the remaining time that a cycle's dual gets where the integer program will not be run."""
PROBE_SHARE = 0.5
"""Part of the remaining time in which the solver of constraint networks, where installed, looks for a choice."""
FIRST_GUESS = 0.25
"""Part of the gap below which it first looks for choices: few that it need not look at, many that are better."""
MOST_PROBE = 40.0
"""Seconds that this gets at most: what it has not found then, regions around the best rather find."""
FIRST_PROBE = 10.0
"""Seconds that proving a bound gets at first; twice that after each that was not proved."""
BELOW_SHARE = 0.8
"""Part of the remaining time that all these proofs get."""
HAND_OVER = 2e-6
"""CPU seconds that each number takes until its search begins."""
MOST_HANDED = 5_000_000
"""Numbers above which it is not asked: they would take a gigabyte."""
FEW = 1500
"""Nodes up to which the search branches where the integer program is too large or did not end."""
REGION_SHARE = 0.95
"""Part of the remaining time in which regions are solved before the whole is branched on."""
REGIONS = 20
"""Regions for each unit of effort."""
CYCLES = 3
"""Rounds of bound, search and ruling out."""
EFFORT_NODES = 1000
"""Branch-and-bound nodes for each unit of effort."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The best choice and what is known about it."""

    choice: IntArray | None
    """A strategy a node; None if none was found."""
    cost: float
    """Its cost; inf without one."""
    bound: float
    """No choice costs less; inf if there is none."""
    seconds: float
    """Time taken."""
    found: float = 0.0
    """Time after which the choice was found; what came after raised the bound."""

    @property
    def gap(self) -> float:
        """How much less the optimum may cost, as share of the cost; 0 is proved."""
        if self.choice is None:
            return 0.0 if self.bound == np.inf else np.inf
        return max(0.0, (self.cost - self.bound) / max(abs(self.cost), 1e-300))


@dataclass(slots=True)
class _State:
    """What a run knows so far."""

    problem: Problem
    clock: Clock
    real: Clock
    """The same, never stopped."""
    limit: float
    effort: int
    whole: bool
    best: IntArray | None = None
    start: tuple[Core, IntArray] | None = None
    """The core that the best choice was found in, and its choice there."""
    cost: float = np.inf
    bound: float = -np.inf
    found: float = 0.0
    began: float = field(default_factory=time.process_time)

    def left(self) -> float:
        return self.limit - self.clock.now()

    def offer(self, core: Core, choice: IntArray) -> float:
        """Keeps a choice of the core if it is the best that is allowed; returns the cost of the best."""
        full = core.restore(choice)
        cost = self.problem.cost(full)
        if cost < self.cost and self.problem.feasible(full):
            self.best, self.cost, self.start = full, cost, (core, choice)
            self.found = self.real.now()
        return self.cost

    def raise_bound(self, value: float) -> None:
        """No choice costs less than this; where costs are whole, nothing lies between."""
        if np.isfinite(value):
            value -= 1e-11 * abs(value)  # rounding of sums
        if self.whole and np.isfinite(value):
            value = float(np.ceil(value - 1e-6))
        self.bound = max(self.bound, min(value, self.cost))

    def done(self) -> bool:
        return self.bound >= self.cost or self.left() <= 0


def solve(problem: Problem, *, seconds: float = 60.0, effort: int = 0, seed: int = 1) -> Answer:
    """The best choice that can be found and a bound that says how good it is.

    Args:
        problem: nodes, edges and memory.
        seconds: time limit; what is found until then is returned.
        effort: if positive, this much work instead of a time limit: the same answer on every machine.
        seed: of the random neighbourhoods.
    """
    if not len(problem.sizes):
        return Answer(np.zeros(0, np.int64), 0.0, 0.0, 0.0)
    clock = Clock(stopped=effort > 0)
    real = Clock()
    finite = np.concatenate([problem.costs, problem.tables])
    finite = finite[np.isfinite(finite)]
    whole = bool(np.all(finite == np.rint(finite)))
    state = _State(problem, clock, real, seconds if not effort else 1.0, effort, whole)
    try:
        core = presolve(problem, Deadline(clock, REDUCE_SHARE * state.limit))
        _run(state, core, seed)
    except InfeasibleError:
        state.bound = np.inf if state.best is None else state.cost
    return Answer(state.best, state.cost, state.bound, real.now(), state.found)


def _run(state: _State, core: Core, seed: int) -> None:
    before: Dual | None = None
    if _settled(state, core):
        return
    for cycle in range(CYCLES):
        if before and not state.clock.allows(SWEEPS_A_CYCLE * before.pace, state.limit):
            return
        small = len(core.problem.sizes) <= FEW
        dual = Dual(core.problem, core.timeline)
        if before is None:
            dual.start(state.clock, START_SHARE * state.left())
        else:
            dual.prices = carried(before.line, before.best_prices, dual.line)
        _climb(state, dual, cycle, small)
        state.raise_bound(dual.bound + core.constant)
        _search(state, core, Search(core.problem, core.timeline, dual, seed + cycle), cycle, small)
        if state.done():
            return
        core, before = _rule_out(state, core, dual), dual
        if _settled(state, core):
            return
        if pairs_of(core) <= SMALL and _prove(state, core, dual, cycle, seed):
            return
        if len(core.problem.sizes) <= FEW and not state.done():
            _few(state, core, dual, seed)
            return


def _settled(state: _State, core: Core) -> bool:
    """Whether nothing is left to decide; if so, the one choice is offered and bounds."""
    if len(core.problem.sizes):
        return False
    state.offer(core, np.zeros(0, np.int64))
    fits = bool((core.timeline.room >= 0).all())
    state.raise_bound(core.constant if fits else np.inf)
    return True


def _climb(state: _State, dual: Dual, cycle: int, small: bool) -> None:
    steps = STEPS if small else 10**9
    if state.effort:
        steps = 100 * state.effort
    share = 0.25 if small else DUAL_SHARE
    dual.climb(RATE if cycle == 0 else RATE / 2, steps, state.clock, share * state.left())


def _search(state: _State, core: Core, search: Search, cycle: int, small: bool) -> None:
    """Decodes and descends; from the best known choice in later cycles."""
    clock = state.clock
    search.price(search.dual.best_prices)
    deadline = Deadline(clock, FIRST_SHARE * state.left())
    found = search.first(search.dual.best_prices.copy(), deadline)
    if not found.fits:
        return
    state.offer(core, found.choice)
    if state.done():
        return
    search.begin(found.choice)
    last = cycle == CYCLES - 1
    time = min(2.0, 0.1 * state.left()) if small else (1.0 if last else 0.5) * state.left()
    turns = 10**9 if not (small or state.effort) else 20 * max(1, state.effort)
    better = search.improve(clock, clock.now() + time, turns)
    state.offer(core, better.choice)


def _rule_out(state: _State, core: Core, dual: Dual) -> Core:
    """Reduces again without strategies that no better choice uses, if there is time for it."""
    most = SWEEPS_TO_RULE_OUT * dual.pace
    if not np.isfinite(state.cost) or not state.clock.allows(most, state.limit):
        return core
    dual.return_to_best()
    dead = dual.least_with() + core.constant > state.cost + 1e-9 * abs(state.cost)
    if dead.sum() * 50 < len(dead):
        return core
    return without(core, dead, Deadline(state.clock, REDUCE_SHARE * state.left()))


def _few(state: _State, core: Core, dual: Dual, seed: int) -> None:
    """What takes few nodes only, each for a part of the time that is left."""
    weighted = HAVE_TOULBAR2 and not state.effort and bool(np.isfinite(state.cost))
    weighted = weighted and handed_over(core.problem, core.timeline) <= MOST_HANDED
    if weighted:
        middle = state.bound + FIRST_GUESS * (state.cost - state.bound)
        _probe(state, core, middle, min(MOST_PROBE, PROBE_SHARE * state.left()))
    if state.done():
        return
    root = Dual(core.problem, core.timeline)
    root.prices = carried(dual.line, dual.best_prices, root.line)
    root.climb(RATE / 2, STEPS // 10, state.clock, 0.1 * state.left())
    state.raise_bound(root.bound + core.constant)
    _improve(state, core, root, seed, REGION_SHARE / (6 if weighted else 1))
    if weighted:
        _from_below(state, core)
    if not state.done():
        tree = Tree(state.offer, state.cost, state.clock, state.limit, seed)
        state.raise_bound(tree.run(core, root, 20 * state.effort if state.effort else 10**9))


def _from_below(state: _State, core: Core) -> None:
    """Raises the bound: that nothing costs less than a guess is proved in a fraction of the time of the optimum.

    Once a guess is above the optimum, little is left in which to find it.
    """
    until = state.clock.now() + BELOW_SHARE * state.left()
    seconds = FIRST_PROBE
    while not state.done():
        middle = state.bound + 0.5 * (state.cost - state.bound)
        ended = _probe(state, core, middle, min(seconds, until - state.clock.now()))
        if ended is None:
            return
        seconds *= 1 if ended else 2


def _probe(state: _State, core: Core, below: float, seconds: float) -> bool | None:
    """Whether all choices below a cost were searched, of which the best is offered; None without time for it."""
    busy = (time.process_time() - state.began) / max(1e-9, state.clock.now())  # it counts CPU time
    seconds = seconds * min(1.0, busy) - HAND_OVER * handed_over(core.problem, core.timeline)
    if seconds < 1.0 or state.done():
        return None
    got = solve_weighted(
        core.problem, core.timeline, below=below - core.constant, seconds=int(seconds)
    )
    if got.choice is not None:
        state.offer(core, got.choice)
    state.raise_bound(got.bound + core.constant)
    return got.proved


def _improve(state: _State, core: Core, dual: Dual, seed: int, share: float) -> None:
    """Regions of the graph solved exactly, for a part of the time that is left; from the best choice of this core."""
    if state.start is not None and state.start[0] is core:
        choice = state.start[1]
    else:
        search = Search(core.problem, core.timeline, dual, seed)
        search.price(dual.best_prices)
        found = search.first(dual.best_prices.copy())
        if not found.fits or found.cost >= search.forbidden:
            return
        choice = found.choice
    regions = Regions(core, dual, choice, state.offer, state.clock, seed)
    until = state.clock.now() + share * state.left()
    regions.run(until, REGIONS * state.effort if state.effort else 10**9)


def _prove(state: _State, core: Core, dual: Dual, cycle: int, seed: int) -> bool:
    """Runs the integer program and polishes its answer; whether it ended by itself."""
    prices = carried(dual.line, dual.best_prices, core.timeline)
    nodes = EFFORT_NODES * state.effort if state.effort else None
    share = 0.5 if len(core.problem.sizes) <= FEW or cycle < CYCLES - 1 else 1.0
    seconds = 600.0 if state.effort else max(0.1, share * state.left())
    got = solve_ilp(core.problem, core.timeline, seconds=seconds, nodes=nodes, prices=prices)
    if got.choice is not None:
        state.offer(core, got.choice)
        fresh = Dual(core.problem, core.timeline)
        search = Search(core.problem, core.timeline, fresh, seed)
        search.begin(got.choice)
        search.turn(0.0, 0.0, 0.0, state.clock, state.clock.now() + 1.0)
        state.offer(core, search.choice)
    state.raise_bound(got.bound + core.constant)
    return got.proved
