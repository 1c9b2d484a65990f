"""A block's choice problem within a limit: against everything there is, and against the integer program."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.search.copies import star
from planner.search.free_axes import space
from planner.search.liveness import Live, Moment, Span, live, moments
from planner.search.operator_limit import Limited, limited, proved
from planner.search.operator_optimum import Solved
from planner.search.operator_part import Part
from planner.search.operator_problem import Nodes, Numbers, form_of, numbers
from planner.search.operators import Wish, solve_block
from planner.search.solver import Memory, build
from planner.search.solver.solve import solve
from planner.trainers.registry import get_trainer
from tests.operators.test_targets import MESHES, asked
from tests.search.problems import examples
from tests.solver.solver_cases import problems

NOWHERE = Nodes((), ())
MOMENTS = 4


@st.composite
def limits(draw):
    """A small problem of which nodes and pairs of nodes hold bytes at some moments."""
    problem = draw(problems(nodes=5, most=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = Numbers(problem.node_costs(), {})
    for edge, (i, j) in enumerate(problem.edges.tolist()):
        p.edge(i, j, problem.edge_table(edge))
    spans = []
    for nodes in [(v,) for v in range(len(p.costs))] + list(p.tables):
        for _ in range(rng.integers(0, 3)):
            lo = int(rng.integers(0, MOMENTS))
            size = rng.integers(0, 10, [len(p.costs[v]) for v in nodes]).astype(float)
            spans.append(Span(nodes, lo, int(rng.integers(lo + 1, MOMENTS + 1)), size))
    at = np.arange(MOMENTS)[:, None]
    cover = np.array([(s.lo <= at[:, 0]) & (at[:, 0] < s.hi) for s in spans], dtype=bool)
    held = Live(tuple(spans), MOMENTS, cover.reshape(-1, MOMENTS).T)
    share = draw(st.floats(0.2, 1.0))
    most = held.cover @ np.array([s.size.max() for s in spans])
    return Limited(
        p,
        NOWHERE,
        held,
        [Moment("forward", f"o{m}") for m in range(MOMENTS)],
        share * max(1.0, *most),
    )


def choices(q):
    """Every allowed choice: what it costs and holds."""
    for states in product(*(range(len(cost)) for cost in q.p.costs)):
        choice = np.array(states)
        if np.isfinite(cost := q.p.cost(choice)):
            yield choice, cost, q.live.used(choice)


def least(q):
    fitting = (cost for _, cost, used in choices(q) if (used <= q.limit).all())
    return min(fitting, default=np.inf)


@given(limits())
@examples(300)
def test_nothing_that_fits_costs_less(q):
    every = list(choices(q))
    want = least(q)
    if want == np.inf:
        with pytest.raises(PlannerError) as caught:
            limited(q, 60.0)
        assert caught.value.faults[0].code == ("N02" if every else "N03")
        assert "not to the end" not in str(caught.value)
        return
    found = limited(q, 60.0)
    assert found.cost == pytest.approx(want)
    assert found.bound == pytest.approx(want, rel=1e-8)
    assert q.p.cost(found.choice) == pytest.approx(want)
    assert (q.live.used(found.choice) <= q.limit).all()


@given(limits(), st.floats(0.0, 0.3), st.integers(0, 3))
@examples(200)
def test_what_is_known_is_improved_or_proved(q, price, moment):
    costs = sorted(cost for _, cost, used in choices(q) if (used <= q.limit).all())
    assume(costs and costs[-1] > 0)
    prices = np.where(np.arange(MOMENTS) == moment, price, 0.0)
    known = Solved(NOWHERE, np.zeros(0, dtype=np.int64), costs[len(costs) // 2], -np.inf, prices)
    found = proved(q, known, 60.0)
    if costs[0] < known.cost:
        assert found.cost == pytest.approx(costs[0])
    else:
        assert found.cost == np.inf
    assert found.bound == pytest.approx(costs[0], rel=1e-8, abs=1e-12)


@given(limits(), st.lists(st.floats(0.0, 0.5), min_size=MOMENTS, max_size=MOMENTS))
@examples(200)
def test_no_plan_that_is_wanted_is_ruled_out(q, prices):
    prices = np.array(prices)
    every = list(choices(q))
    assume(every)
    middle = sorted(cost for _, cost, _ in every)[len(every) // 2]
    whole = Part.whole(q.p, q.live, q.limit)
    cheaper, fitting = whole.cheaper(prices, middle), whole.fitting(1)
    for choice, cost, used in every:
        fits = bool((used <= q.limit).all())
        if fits and cost <= middle:
            assert cheaper is not None and cheaper.has(choice)
        if used[1] <= q.limit:
            assert fitting is not None and fitting.has(choice)
    plane = whole.optimum(prices, 60.0)
    paid = [cost + float(prices @ (used - q.limit)) for _, cost, used in every]
    assert plane.bound == pytest.approx(min(paid), abs=1e-9)
    assert plane.cost + float(prices @ plane.over) == pytest.approx(plane.bound, abs=1e-9)
    for part in (cheaper, fitting):
        if part is not None:
            left = [(c, u) for choice, c, u in every if part.has(choice)]
            mine = part.optimum(prices, 60.0)
            assert (mine is None) == (not left)
            if mine is not None:
                paid = [cost + float(prices @ (used - q.limit)) for cost, used in left]
                assert mine.bound == pytest.approx(min(paid), abs=1e-9)
                assert part.has(mine.choice)


def as_program(q):
    """The same problem for the integer program: pairs that take memory are nodes."""
    costs, edges, tables, held = list(q.p.costs), [], [], []
    of_pair = {}
    for pair, table in q.p.tables.items():
        allowed = np.nonzero(np.isfinite(table))
        of_pair[pair] = len(costs), allowed
        costs.append(table[allowed] if len(allowed[0]) else np.array([np.inf]))
        for end, mine in zip(pair, allowed, strict=True):
            states = np.arange(len(costs[end]))
            edges.append((len(costs) - 1, end))
            mine = mine if len(mine) else np.array([-1])
            tables.append(np.where(mine[:, None] == states, 0.0, np.inf))
    for span in q.live.spans:
        node, size = span.nodes[0], span.size
        if len(span.nodes) == 2:
            node, allowed = of_pair[span.nodes]
            size = size[allowed] if len(allowed[0]) else np.zeros(1)
        held.append((node, span.lo, span.hi, size))
    if not held:
        return build(costs, edges, tables)
    nodes, lo, hi, sizes = zip(*held, strict=True)
    memory = Memory(*(np.array(a) for a in (nodes, lo, hi)), np.concatenate(sizes), q.limit)
    return build(costs, edges, tables, memory)


@given(limits())
@examples(60)
def test_the_integer_program_agrees(q):
    got = solve(as_program(q), effort=1)
    try:
        found = limited(q, 60.0)
    except PlannerError:
        assert got.choice is None
        assert got.bound == np.inf
        return
    assert got.cost == pytest.approx(found.cost)


def test_the_integer_program_agrees_on_a_block():
    block, mesh, task = asked("llama-3-8b", {"a": 2})
    wish = Wish(sequences=16)
    fastest = solve_block(block, mesh, task, wish)
    form = form_of(space(block, mesh, task, 16), wish)
    trees = {one.name: (0, 1) if len(one.readers) == 2 else 0 for one in form.stands}
    p, nodes = numbers(form, trees, keep=True)
    for share, fits in ((0.97, True), (0.5, False)):
        q = Limited(p, nodes, live(form, nodes, keep=True), moments(form), share * fastest.memory)
        got = solve(as_program(q), effort=1)
        if fits:
            assert limited(q, 60.0).cost == pytest.approx(got.cost, rel=1e-7)
            assert got.bound == pytest.approx(got.cost, rel=1e-6)
            continue
        assert got.bound == np.inf
        with pytest.raises(PlannerError, match="cannot keep within"):
            limited(q, 60.0)


@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize(
    ("name", "sequences", "shares"),
    [("llama-3-8b", 16, (0.9, 0.5, 0.3, 0.1)), ("deepseek-v3", 64, (0.8, 0.6, 0.51, 0.49))],
)
def test_any_limit_is_proved_or_refused_at_once(name, sequences, shares, axes, monkeypatch):
    """On 64 chips, down to and below the least memory there is: few optima at prices, none of them wide."""
    block, mesh, task = asked(name, axes)
    free = solve_block(block, mesh, task, Wish(sequences=sequences))
    asked_for = []

    def counted(part, prices, seconds):
        asked_for.append(sum(len(kept) for kept in part.kept))
        return real(part, prices, seconds)

    real = Part.optimum
    monkeypatch.setattr(Part, "optimum", counted)
    before = free.seconds
    for share in shares:
        asked_for.clear()
        wish = Wish(sequences=sequences, memory_limit=share * free.memory, time_limit=600)
        try:
            found = solve_block(block, mesh, task, wish)
        except PlannerError as caught:
            assert caught.faults[0].code == "N02"
            assert "not to the end" not in str(caught)
            assert share == shares[-1]
        else:
            assert share > shares[-1]
            assert before <= found.seconds * (1 + 1e-9)
            assert found.bound == pytest.approx(found.seconds, rel=2e-9)
            assert found.memory <= wish.memory_limit * (1 + 1e-9)
            before = found.seconds
        assert len(asked_for) < 200
        assert sum(asked_for) < 25 * asked_for[0]


def test_a_search_that_runs_out_of_time_says_so(monkeypatch):
    block, mesh, task = asked("llama-3-8b", {"a": 4, "b": 4, "c": 4})
    free = solve_block(block, mesh, task, Wish(sequences=16))
    passed = iter(range(10**6))
    monkeypatch.setattr(
        "planner.search.operator_limit.time.perf_counter", lambda: float(next(passed))
    )
    wish = Wish(sequences=16, memory_limit=0.3 * free.memory, time_limit=6.0)
    with pytest.raises(PlannerError, match="searched for"):
        solve_block(block, mesh, task, wish)
    wish = Wish(sequences=16, memory_limit=0.3 * free.memory, time_limit=30.0)
    found = solve_block(block, mesh, task, wish)
    assert free.seconds < found.bound < found.seconds * (1 - 1e-3)


def held_by_weights(trainer, **wish):
    """Bytes of a block's weights at every moment with states sharded over four ranks, states alone, each operator's."""
    block, mesh, task = asked("llama-3-8b", {"a": 4})
    task = replace(task, trainer=get_trainer(trainer))
    form = form_of(space(block, mesh, task, 64), Wish(sequences=64, **wish))
    trees = {one.name: star(len(one.readers)) for one in form.stands}
    _, nodes = numbers(form, trees, keep=True)
    held, states = np.zeros(2 * len(form.every) + 1), 0.0
    for weight, node in zip(form.weights, nodes.weights, strict=True):
        state = weight.groups.index((0,))
        states += float(weight.usage[state])
        for span in live(form, nodes, keep=True).spans:
            if span.nodes == (node,):
                held[span.lo : span.hi] += span.size[state]
    each = [
        sum(block.elements(block.tensors[weight].dims) for weight in one.op.weights)
        for one in form.every
    ]
    return held, states, np.array(each, dtype=np.float64)


def test_what_is_hidden_is_held_longer():
    """A weight gathered ahead is whole one operator earlier; a gradient reduced behind compute one later."""
    shown, _, each = held_by_weights("megatron")
    hidden, _, _ = held_by_weights("megatron", overlapped=True)
    after, before = np.append(each[1:], 0.0), np.append(0.0, each[:-1])
    backward = 2.0 * before + 4.0 * after
    assert hidden - shown == pytest.approx(np.concatenate([2.0 * after, backward[::-1], [0.0]]))


def test_the_optimizer_steps_when_the_passes_are_over():
    """A fused step takes nothing beside the states, an eager one two numbers a parameter."""
    for trainer, taken in (("megatron", 0.0), ("fsdp", 8.0)):
        held, states, each = held_by_weights(trainer)
        assert held[-1] == pytest.approx(states + taken * each.sum() / 4)
        assert held[:-1].min() >= states * (1 - 1e-12)
