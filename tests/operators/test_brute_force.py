"""The solver against every strategy of tiny blocks, priced in names and one operator at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.cost.resharding import free_mesh
from planner.errors import PlannerError
from planner.graph.operator import Block, Operator, Tensor, Use
from planner.graph.placement import Shard
from planner.search.free_axes import space
from planner.search.operators import Wish, solve_block
from tests.cost.blocks import chip_of, cluster_of, level_of, model_of, task_of
from tests.operators.by_name import all_splits, brute_force
from tests.operators.schemes import dense_layers
from tests.search.problems import examples


@st.composite
def blocks(draw, *, most):
    """A chain with branches: every operator reads one or two earlier tensors; sizes of 1 to 6."""
    count = draw(st.integers(2, most))
    dims = ("batch", "c0", "c1", "c2")
    sizes = {dim: draw(st.sampled_from([2, 4, 4, 6, 8, 3])) for dim in dims[1:]}
    names = [("t0", "c0")]
    tensors = {"t0": Tensor("t0", ("batch", "c0"))}
    operators = []
    for number in range(1, count + 1):
        source, over = draw(st.sampled_from(names[-2:]))
        kind = draw(st.sampled_from(["matmul", "matmul", "memory"]))
        reads = [Use(source, ("batch", over))]
        weights: tuple[str, ...] = ()
        into = over
        if kind == "matmul":
            into = draw(st.sampled_from([d for d in dims[1:] if d != over]))
            alike = [t.name for t in tensors.values() if set(t.dims) == {over, into}]
            shares = bool(alike) and draw(st.booleans())
            weights = (alike[0],) if shares else (f"w{number}",)
            tensors.setdefault(weights[0], Tensor(weights[0], (over, into), "weight"))
        else:
            reads += [Use(n, ("batch", d)) for n, d in names if d == over and n != source][:1]
        lost = number < count and draw(st.integers(0, 3)) == 0
        tensors[f"t{number}"] = Tensor(
            f"t{number}", ("batch", into), "index" if lost else "activation"
        )
        operators.append(
            Operator(
                name=f"op{number}",
                kind=kind,
                dims=tuple(dict.fromkeys(("batch", over, into))),
                reads=tuple(reads),
                writes=(f"t{number}",),
                weights=weights,
                flops=2.0,
                saves=tuple(use.tensor for use in reads),
                whole=frozenset({over} if kind == "memory" and draw(st.booleans()) else ()),
            )
        )
        names.append((f"t{number}", into))
    return Block("tiny", {"batch": 1, **sizes}, tensors, tuple(operators), ("t0",), (names[-1][0],))


def mesh_and_task(draw_axes):
    model = model_of(dense_layers[0], dense_layers[1], 64)
    count = prod(draw_axes.values())
    levels = [level_of(2, name="node", bandwidth=3e11), level_of()] if count > 2 else [level_of()]
    chip = chip_of(memory_bandwidth=1e6, peak={"bf16": 1e9})
    cluster = cluster_of(count, *levels, chip=chip)
    task = task_of(model, chips=count)
    task = type(task)(
        model=model,
        cluster=cluster,
        recipe=task.recipe,
        trainer=task.trainer,
        memory_limit=task.memory_limit,
    )
    return free_mesh(cluster, draw_axes), task


@given(blocks(most=4), st.sampled_from([1, 2, 4]))
@examples(15)
def test_one_axis(block, sequences):
    mesh, task = mesh_and_task({"a": 2})
    found = solve_block(block, mesh, task, Wish(sequences=sequences))
    assert found.seconds == pytest.approx(brute_force(block, mesh, task, sequences), rel=1e-9)
    assert_told(found)


@given(blocks(most=2), st.sampled_from([1, 2, 4]))
@examples(10)
def test_two_axes(block, sequences):
    mesh, task = mesh_and_task({"a": 2, "b": 2})
    found = solve_block(block, mesh, task, Wish(sequences=sequences))
    assert found.seconds == pytest.approx(brute_force(block, mesh, task, sequences), rel=1e-9)
    assert_told(found)


@st.composite
def fans(draw, *, most):
    """A product whose result, and the tensor that it reads, have several readers; and a seed for pins."""
    sizes = {dim: draw(st.sampled_from([4, 8, 12])) for dim in ("c0", "c1", "c2")}
    tensors = {name: Tensor(name, ("batch", dim)) for name, dim in (("t0", "c0"), ("t1", "c1"))}
    tensors["w"] = Tensor("w", ("c0", "c1"), "weight")
    operators = [operator("op", "matmul", ("t0", "c0"), ("t1", "c1"), ("w",))]
    for number in range(draw(st.integers(3, most))):
        source, over = draw(st.sampled_from([("t1", "c1"), ("t1", "c1"), ("t0", "c0")]))
        into, name = draw(st.sampled_from([over, "c2"])), f"u{number}"
        tensors[name] = Tensor(name, ("batch", into))
        weights = (f"w{number}",) if into != over else ()
        for weight in weights:
            tensors[weight] = Tensor(weight, (over, into), "weight")
        kind = "matmul" if weights else "memory"
        operators.append(operator(f"op{number}", kind, (source, over), (name, into), weights))
    outputs = tuple(op.writes[0] for op in operators[1:])
    block = Block("fan", {"batch": 1, **sizes}, tensors, tuple(operators), ("t0",), outputs)
    return block, draw(st.integers(0, 2**31))


def operator(name, kind, read, write, weights=()):
    return Operator(
        name=name,
        kind=kind,
        dims=tuple(dict.fromkeys(("batch", read[1], write[1]))),
        reads=(Use(read[0], ("batch", read[1])),),
        writes=(write[0],),
        weights=weights,
        flops=2.0,
        saves=(read[0],),
    )


@given(fans(most=3), st.sampled_from([{"a": 2, "b": 2}, {"a": 4, "b": 2}]), st.floats(0.6, 1.1))
@examples(10)
def test_any_number_of_readers_share_copies(fan, axes, share):
    block, seed = fan
    mesh, task = mesh_and_task(axes)
    s, random = space(block, mesh, task, 8), Random(seed)
    pins = {op.name: random.choice(list(all_splits(s, op))) for op in s.plain.operators}
    pins.pop(random.choice(list(pins)))
    found = solve_block(block, mesh, task, Wish(sequences=8, pins=pins))
    assert found.seconds == pytest.approx(brute_force(block, mesh, task, 8, pins), rel=1e-9)
    assert found.bound == pytest.approx(found.seconds, rel=1e-9)
    assert_told(found)
    pins = found.splits
    free = solve_block(block, mesh, task, Wish(sequences=8, pins=pins))
    limit = free.memory * share
    want = (
        brute_force(block, mesh, task, 8, pins, limit * (1 + 1e-12)) if share < 1 else free.seconds
    )
    if want < np.inf:
        wish = Wish(sequences=8, pins=pins, memory_limit=limit, time_limit=3600.0)
        held = solve_block(block, mesh, task, wish)
        assert held.bound == pytest.approx(held.seconds, rel=1e-5)
        assert held.memory <= limit * (1 + 1e-9)
        assert held.seconds == pytest.approx(want, rel=1e-6)
        assert_told(held)


def assert_told(found):
    """What the plan lists adds up to what it takes."""
    moved = sum(move.step.seconds for move in found.collectives)
    assert found.compute + moved == pytest.approx(found.seconds, rel=1e-9)


@given(blocks(most=3), st.floats(0.3, 1.1))
@examples(10)
def test_memory_is_kept_and_nothing_that_fits_is_faster(block, share):
    mesh, task = mesh_and_task({"a": 2, "b": 2})
    free = solve_block(block, mesh, task, Wish(sequences=4))
    limit = free.memory * share
    try:
        found = solve_block(block, mesh, task, Wish(sequences=4, memory_limit=limit))
    except PlannerError:
        assume(False)
    assert found.memory <= limit * (1 + 1e-9)
    assert found.seconds >= found.bound - 1e-12
    assert found.bound == pytest.approx(found.seconds, rel=1e-5)
    assert found.seconds >= free.seconds * (1 - 1e-9)
    assert_told(found)
    pins = found.splits
    again = solve_block(block, mesh, task, Wish(sequences=4, memory_limit=limit, pins=pins))
    assert again.seconds == pytest.approx(found.seconds, rel=1e-5)


@given(blocks(most=3), st.sampled_from([{"a": 2}, {"a": 4}]), st.floats(0.2, 1.2))
@examples(25)
def test_under_a_limit_nothing_is_faster(block, axes, share):
    mesh, task = mesh_and_task(axes)
    free = solve_block(block, mesh, task, Wish(sequences=4))
    limit = free.memory * share
    want = (
        brute_force(block, mesh, task, 4, limit=limit * (1 + 1e-12)) if share < 1 else free.seconds
    )
    if want == np.inf:
        with pytest.raises(PlannerError, match="cannot keep within"):
            solve_block(block, mesh, task, Wish(sequences=4, memory_limit=limit))
        return
    found = solve_block(block, mesh, task, Wish(sequences=4, memory_limit=limit))
    assert found.seconds == pytest.approx(want, rel=1e-6)
    assert found.bound == pytest.approx(want, rel=1e-5)
    assert found.memory <= limit * (1 + 1e-9)
    assert_told(found)


@pytest.mark.parametrize(
    ("kind", "sizes", "share", "fullest"),
    [
        ("activation", (8, 16), 0.7, ("backward", "up")),
        ("index", (4, 8), 0.8, ("forward", "up")),
        ("index", (32, 16), 0.7, ("forward", "down")),
    ],
)
def test_memory_binds_inside_a_pass(kind, sizes, share, fullest):
    """Between two operators is a wide tensor; without a gradient of its own it weighs forwards only."""
    tensors = {name: Tensor(name, ("batch", dim)) for name, dim in (("t0", "c0"), ("t2", "c0"))}
    tensors["t1"] = Tensor("t1", ("batch", "c1"), kind)
    tensors["w"] = Tensor("w", ("c0", "c1"), "weight")
    down = operator("down", "memory", ("t1", "c1"), ("t2", "c0"))
    operators = (
        operator("up", "matmul", ("t0", "c0"), ("t1", "c1"), ("w",)),
        down if kind == "activation" else replace(down, saves=()),
    )
    sizes = {"batch": 1, "c0": sizes[0], "c1": sizes[1]}
    block = Block("wide", sizes, tensors, operators, ("t0",), ("t2",))
    mesh, task = mesh_and_task({"a": 4})
    free = solve_block(block, mesh, task, Wish(sequences=32))
    limit = share * free.memory
    found = solve_block(block, mesh, task, Wish(sequences=32, memory_limit=limit))
    want = brute_force(block, mesh, task, 32, limit=limit * (1 + 1e-12))
    assert found.seconds == pytest.approx(want, rel=1e-9)
    assert found.seconds > free.seconds
    assert found.fullest == fullest
    between = found.held["backward", "down"] if kind == "index" else found.held["forward", "down"]
    assert between < found.memory <= limit


@given(blocks(most=2), st.floats(0.3, 1.1), st.sampled_from([(1, 2.0), (3, 1.0), (4, 8.0)]))
@examples(3)
def test_a_stage_holds_its_layers_and_what_is_in_flight(block, share, stage):
    mesh, task = mesh_and_task({"a": 2})
    layers, in_flight = stage
    asked = {"sequences": 4, "layers": layers, "in_flight": in_flight}
    free = solve_block(block, mesh, task, Wish(**asked))
    limit = free.memory * share
    s = space(block, mesh, task, 4)
    fastest = np.inf
    for splits in product(*(list(all_splits(s, op)) for op in s.plain.operators)):
        pins = {op.name: split for op, split in zip(s.plain.operators, splits, strict=True)}
        try:
            one = solve_block(block, mesh, task, Wish(**asked, pins=pins, memory_limit=limit))
        except PlannerError:
            continue
        fastest = min(fastest, one.seconds)
    if fastest == np.inf:
        with pytest.raises(PlannerError, match="cannot keep within"):
            solve_block(block, mesh, task, Wish(**asked, memory_limit=limit))
        return
    found = solve_block(block, mesh, task, Wish(**asked, memory_limit=limit))
    assert found.seconds == pytest.approx(fastest, rel=1e-5)
    assert found.memory <= limit * (1 + 1e-9)
    one, more, deep = (
        held_by(block, mesh, task, found.splits, layers=layers, in_flight=number)
        for layers, number in ((1, 1.0), (1, 2.0), (2, 1.0))
    )
    joint = held_by(block, mesh, task, found.splits, layers=layers, in_flight=in_flight)
    saved = more - one
    assert saved == pytest.approx(saved[0])
    assert joint == pytest.approx(
        one + (layers - 1) * (deep - more) + (layers * in_flight - 1) * saved
    )


def held_by(block, mesh, task, pins, **stage):
    wish = Wish(sequences=4, pins=pins, memory_limit=1e15, **stage)
    *passes, step = solve_block(block, mesh, task, wish).held.items()
    assert step[0] == ("step", "optimizer")
    return np.array([held for _, held in passes])


@given(blocks(most=4), st.floats(0.3, 1.0))
@examples(10)
def test_what_a_trainer_hides_costs_nothing(block, share):
    mesh, task = mesh_and_task({"a": 2, "b": 2})
    exposed = solve_block(block, mesh, task, Wish(sequences=4))
    alike = replace(task.trainer.overlap, tp=share, ep=share, weights=share, gradients=share)
    trainer = replace(task.trainer, overlap=alike)
    hidden = replace(task, trainer=trainer)
    found = solve_block(block, mesh, hidden, Wish(sequences=4, overlapped=True))
    told = found.compute + sum(move.exposed for move in found.collectives)
    assert told == pytest.approx(found.seconds, rel=1e-9)
    moved = sum(move.step.seconds for move in exposed.collectives)
    assert found.seconds <= exposed.compute + share * moved + 1e-12
    assert found.seconds >= share * exposed.seconds
    plain = replace(alike, tp=1.0, ep=1.0, weights=1.0, gradients=1.0)
    same = replace(task, trainer=replace(trainer, overlap=plain))
    again = solve_block(block, mesh, same, Wish(sequences=4, overlapped=True))
    assert again.seconds == pytest.approx(exposed.seconds, rel=1e-12)


def test_pins_are_kept_or_refused():
    block = Block(
        "one",
        {"batch": 1, "c0": 4, "c1": 6},
        {
            "t0": Tensor("t0", ("batch", "c0")),
            "t1": Tensor("t1", ("batch", "c1")),
            "w": Tensor("w", ("c0", "c1"), "weight"),
        },
        (
            Operator(
                name="op",
                kind="matmul",
                dims=("batch", "c0", "c1"),
                reads=(Use("t0", ("batch", "c0")),),
                writes=("t1",),
                weights=("w",),
                flops=2.0,
            ),
        ),
        ("t0",),
        ("t1",),
    )
    mesh, task = mesh_and_task({"a": 2, "b": 2})
    found = solve_block(block, mesh, task, Wish(sequences=4, pins={"op": {"a": "c0", "b": "c1"}}))
    assert found.splits == {"op": {"a": "c0", "b": "c1"}}
    for pin in ({"a": "c1", "b": "c1"}, {"a": "heads"}, {"z": "c0"}):
        with pytest.raises(PlannerError, match="op cannot be split"):
            solve_block(block, mesh, task, Wish(sequences=4, pins={"op": pin}))
    with pytest.raises(PlannerError, match=r"(?s)no operator up.*Nearest: op"):
        solve_block(block, mesh, task, Wish(sequences=4, pins={"up": {}}))
    with pytest.raises(PlannerError, match="no tensor t9"):
        solve_block(block, mesh, task, Wish(sequences=4, lies={"t9": {}}))
    with pytest.raises(PlannerError, match="exclude each other"):
        solve_block(block, mesh, task, Wish(sequences=4, lies={"t1": {"a": Shard("heads")}}))
    lies = {"t1": {"a": Shard("c1"), "b": Shard("batch")}}
    assert solve_block(block, mesh, task, Wish(sequences=4, lies=lies)).layouts["t1"] == lies["t1"]


def test_pins_that_exclude_each_other_are_refused():
    block = Block(
        "copy",
        {"batch": 1, "c0": 4},
        {"t0": Tensor("t0", ("batch", "c0")), "t1": Tensor("t1", ("batch", "c0"))},
        (
            Operator(
                name="op",
                kind="memory",
                dims=("batch", "c0"),
                reads=(Use("t0", ("batch", "c0")),),
                writes=("t1",),
            ),
        ),
        ("t0",),
        ("t1",),
    )
    mesh, task = mesh_and_task({"a": 2})
    with pytest.raises(PlannerError, match="exclude each other"):
        solve_block(
            block,
            mesh,
            task,
            Wish(sequences=4, lies={"t0": {"a": Shard("c0")}, "t1": {"a": Shard("batch")}}),
        )
