"""What must not happen: better hardware makes no plan slower, pins make none faster, folding changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.cost import table
from planner.cost.prices import prices
from planner.cost.step import exact
from planner.graph.model import Model
from planner.hardware.chip import Chip
from planner.search.engine import search
from planner.search.pins import Pins, parse_pins
from planner.trainers.trainer import Task
from tests.search.problems import examples, opens, pins, space_of, tasks

some = examples(30)
SLACK = 1 + 1e-8
HIDING = 1 + 2e-3
"""Gradients hide behind the backward pass of their own stage. Where that gets faster but is not what the step waits
for, more of them show, although the stage has time to spare: a share of the step that is known and small."""


def best(task: Task, texts=()) -> float:
    """Step of the best plan; infinite where none fits."""
    outcome = search(task, parse_pins(texts, task.trainer), top=1)
    return float(outcome.step[0]) if len(outcome.step) else np.inf


def limited(task: Task, share: float) -> Task:
    """With a limit that about this share of the rows keeps."""
    rows = space_of(task)
    assume(len(rows))
    memory = exact(prices(task, rows)).memory
    return replace(task, memory_limit=float(np.quantile(memory, share)) * (1 + 1e-9))


limited_tasks = st.builds(limited, tasks(most_chips=12), st.floats(0, 1))


@given(limited_tasks, st.data())
@some
def test_a_better_network_is_never_slower(task, data):
    levels = list(task.cluster.levels)
    index = data.draw(st.integers(0, len(levels) - 1))
    level, factor = levels[index], data.draw(st.floats(1, 20))
    levels[index] = data.draw(
        st.sampled_from(
            [
                replace(level, bandwidth=level.bandwidth * factor),
                replace(level, latency=level.latency / factor),
                replace(level, ramp_bytes=level.ramp_bytes / factor),
                replace(level, oversubscription=1.0),
                replace(level, full_mesh=False),
            ]
        )
    )
    better = replace(task, cluster=replace(task.cluster, levels=tuple(levels)))
    assert best(better) <= best(task) * HIDING
    _row_by_row(open_gradients(task), open_gradients(better))


def faster(chip: Chip, factor: float) -> list[Chip]:
    """Chips that are better in one number."""
    return [
        replace(chip, peak={name: peak * factor for name, peak in chip.peak.items()}),
        replace(chip, memory_bandwidth=chip.memory_bandwidth * factor),
        replace(chip, launch=chip.launch / factor),
        replace(chip, matmul_latency=chip.matmul_latency / factor),
        replace(chip, attention_efficiency=min(1.0, chip.attention_efficiency * factor)),
        replace(chip, matmul_sharpness=chip.matmul_sharpness * factor),
    ]


@given(limited_tasks, st.floats(1, 20), st.data())
@some
def test_a_better_chip_is_never_slower(task, factor, data):
    chip = data.draw(st.sampled_from(faster(task.cluster.chip, factor)))
    better = replace(task, cluster=replace(task.cluster, chip=chip))
    assert best(better) <= best(task) * HIDING
    _row_by_row(open_gradients(task), open_gradients(better))


def open_gradients(task: Task) -> Task:
    """The same with a trainer that hides no gradients."""
    overlap = replace(task.trainer.overlap, gradients=1.0)
    return replace(task, trainer=replace(task.trainer, overlap=overlap))


def _row_by_row(task: Task, better: Task) -> None:
    """Not the best row only: every row."""
    rows = space_of(task)
    assert (exact(prices(better, rows)).step <= exact(prices(task, rows)).step * SLACK).all()


@given(limited_tasks, st.floats(1, 3))
@some
def test_more_memory_is_never_slower(task, factor):
    assert best(replace(task, memory_limit=task.memory_limit * factor)) <= best(task) * SLACK


@given(limited_tasks, st.data())
@examples(15)
def test_a_pin_is_never_faster(task, data):
    texts = data.draw(pins(task, most=4))
    assume(not opens(texts))
    pinned = best(task, texts)
    assert pinned >= best(task) / SLACK
    fewer = texts[:-1]
    assert pinned >= best(task, fewer) / SLACK


@given(limited_tasks)
@some
def test_the_same_question_has_the_same_answer(task):
    first, second = search(task, Pins()), search(task, Pins())
    renamed = replace(task, cluster=replace(task.cluster, name="another"))
    third = search(renamed, Pins())
    for other in (second, third):
        assert (other.step == first.step).all()
        assert (other.memory == first.memory).all()
        assert other.refined == first.refined
        assert other.bound == first.bound


def unfolded(model: Model) -> Model:
    """The same model, every layer an object of its own."""
    blocks = tuple(replace(model.blocks[index]) for index in model.layers)
    return replace(model, blocks=blocks, layers=tuple(range(len(blocks))))


@given(tasks(most_chips=8))
@examples(20)
def test_folding_equal_layers_changes_no_price(task):
    rows = space_of(task)
    assume(len(rows))
    folded = exact(prices(task, rows))
    flat = exact(prices(replace(task, model=unfolded(task.model)), rows))
    assert flat.step == pytest.approx(folded.step, rel=1e-9)
    assert flat.memory == pytest.approx(folded.memory, rel=1e-9)
    if len(set(task.model.layers)) < len(task.model.blocks) or len(task.model.blocks) > 1:
        return  # an unused kind would have rules of its own
    apart = search(replace(task, model=unfolded(task.model)), Pins())
    assert apart.step == pytest.approx(search(task, Pins()).step, rel=1e-9)


@given(tasks(most_chips=8))
@examples(20)
def test_equal_layers_are_priced_once(task):
    """As many block prices for 64 layers as for few, and a block is priced once in one search."""
    priced: Counter[int] = Counter()
    real = table.block_cost

    def counting(setting, block, *, sp):
        priced[id(block), sp] += 1
        return real(setting, block, sp=sp)

    task = replace(task, memory_limit=1e18)  # what does not fit is searched again with host memory
    kinds = task.model.layers
    deep = replace(task, model=replace(task.model, layers=kinds * (64 // len(kinds))))
    counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "block_cost", counting)
        for asked in (task, deep):
            priced.clear()
            search(asked, Pins())
            counts.append(sum(priced.values()))
            assert set(priced.values()) <= {1}
    blocks = len(task.model.all_blocks())
    assert counts[1] <= 2 * blocks
    assert counts[0] <= 2 * blocks


@given(tasks(most_chips=8))
@examples(30)
def test_more_of_the_same_layers_take_longer_and_more_memory(task):
    rows = space_of(task)
    rows = rows.take((rows.vpp == 1) if len(rows) else slice(0))
    assume(len(rows))
    deep = replace(task, model=replace(task.model, layers=task.model.layers * 2))
    before, after = exact(prices(task, rows)), exact(prices(deep, rows))
    one = rows.pp == 1
    assert (after.step[one] > before.step[one]).all()
    assert (after.memory[one] >= before.memory[one]).all()
