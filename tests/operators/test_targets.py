"""Real blocks on free meshes of 64 chips: exact, and in well under a second."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from time import process_time

import numpy as np
import pytest
from hypothesis import given

from planner.cost.resharding import free_mesh
from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.frontends.model_file import read_model
from planner.graph.blocks import build_model
from planner.search import operator_optimum
from planner.search.copies import grown, star
from planner.search.free_axes import space
from planner.search.narrow import narrow
from planner.search.operator_problem import form_of, numbers
from planner.search.operators import Wish, solve_block
from planner.search.solver import TooWideError, eliminate
from planner.units import GIB
from tests.cost.blocks import task_of
from tests.search.problems import examples
from tests.solver.solver_cases import brute_force, problems

MESHES = ({"a": 8, "b": 8}, {"a": 4, "b": 4, "c": 4}, {"a": 2, "b": 4, "c": 8})
TARGET = 1.0
"""Seconds of one core."""


def asked(name, axes, seq=4096):
    """The last layer kind of a model on 64 chips: the mixture of experts where there is one."""
    model = build_model(read_model(name), seq)
    cluster = read_cluster("h100-sxm:8x8")
    task = replace(task_of(model, chips=64), cluster=cluster)
    return model.blocks[-1], free_mesh(cluster, axes), task


@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize(("name", "sequences"), [("llama-3-8b", 16), ("deepseek-v3", 64)])
def test_one_block_in_a_second(name, sequences, axes):
    block, mesh, task = asked(name, axes)
    taken = []
    for _ in range(3):
        start = process_time()
        found = solve_block(block, mesh, task, Wish(sequences=sequences))
        taken.append(process_time() - start)
    assert min(taken) < TARGET
    assert found.bound == pytest.approx(found.seconds, rel=1e-12)
    moved = sum(move.step.seconds for move in found.collectives)
    assert found.compute + moved == pytest.approx(found.seconds, rel=1e-9)


@pytest.mark.parametrize(("name", "sequences"), [("llama-3-8b", 16), ("deepseek-v3", 64)])
def test_narrowing_keeps_the_optimum_of_real_blocks(name, sequences):
    block, mesh, task = asked(name, {"a": 8, "b": 8})
    wish = Wish(sequences=sequences)
    form = form_of(space(block, mesh, task, sequences), wish)
    readers = {one.name: len(one.readers) for one in form.stands}
    assert max(readers.values()) == (2 if name == "llama-3-8b" else 3)
    least = []
    for shape in grown(star(2), 2):
        trees = {one: shape if number == 3 else star(number) for one, number in readers.items()}
        p, _ = numbers(form, trees, keep=False)
        least.append(float(eliminate(p.costs, list(p.tables), list(p.tables.values())).value))
    found = solve_block(block, mesh, task, wish)
    assert found.seconds == pytest.approx(min(least), rel=1e-12)


def test_what_is_too_wide_for_elimination_is_solved_all_the_same(monkeypatch):
    block, mesh, task = asked("llama-3-8b", {"a": 8, "b": 8})
    exact = solve_block(block, mesh, task, Wish(sequences=4))

    def too_wide(*_):
        raise TooWideError(2, 1)

    monkeypatch.setattr(operator_optimum, "eliminate", too_wide)
    found = solve_block(block, mesh, task, Wish(sequences=4, time_limit=20))
    assert found.seconds == pytest.approx(exact.seconds, rel=1e-9)
    assert found.bound == pytest.approx(exact.seconds, rel=1e-5)


def test_half_the_memory_is_proved_too():
    block, mesh, task = asked("llama-3-8b", {"a": 8, "b": 8})
    free = solve_block(block, mesh, task, Wish(sequences=16))
    limit = free.memory / 2
    found = solve_block(block, mesh, task, Wish(sequences=16, memory_limit=limit))
    assert found.memory <= limit < 10 * GIB
    assert free.seconds < found.seconds
    assert found.bound == pytest.approx(found.seconds, rel=1e-6)


@given(problems(nodes=6, most=4))
@examples(200)
def test_narrowing_keeps_the_optimum(problem):
    pairs = [(int(i), int(j)) for i, j in problem.edges]
    left = narrow(problem.node_costs(), pairs, problem.edge_tables())
    found = eliminate(left.costs, left.edges, left.tables)
    assert float(found.value) == pytest.approx(brute_force(problem))
    if np.isfinite(found.value):
        choice = [k[c] for k, c in zip(left.kept, found.choice.tolist(), strict=True)]
        assert problem.cost(np.array(choice)) == pytest.approx(float(found.value))


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3"])
@pytest.mark.parametrize("sizes", [(2, 2, 4, 4), (2,) * 6, (1,) * 12])
def test_a_mesh_of_too_many_axes_is_refused_at_once(name, sizes):
    """With a mesh that would do: the same chips, axes joined that lie next to each other."""
    axes = dict(zip("abcdefghijkl", sizes, strict=False))
    block, mesh, task = asked(name, axes)
    with pytest.raises(PlannerError, match=rf"ways by {len(axes)} axes") as caught:
        solve_block(block, mesh, task, Wish(sequences=16))
    found = dict(pair.split("=") for pair in re.findall(r"\w+=\d+", str(caught.value)))
    fewer = {axis: int(size) for axis, size in found.items()}
    assert prod(fewer.values()) == prod(sizes)
    if prod(sizes) == 64:
        plan = solve_block(block, free_mesh(mesh.cluster, fewer), task, Wish(sequences=16))
        assert plan.bound == pytest.approx(plan.seconds, rel=1e-12)


def test_an_axis_of_one_rank_changes_nothing():
    block, mesh, task = asked("llama-3-8b", {"a": 8, "b": 8})
    same = free_mesh(mesh.cluster, {"a": 8, "one": 1, "b": 8})
    two, three = (solve_block(block, m, task, Wish(sequences=16)) for m in (mesh, same))
    assert three.seconds == pytest.approx(two.seconds, rel=1e-12)
