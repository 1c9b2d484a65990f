"""The space against plain enumeration, and its accounts: every layout is either left or removed by a named rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.search.pins import Pins, parse_pins
from planner.search.space import build_space
from planner.trainers.registry import get_trainer
from tests.search.problems import as_tuples, enumerated, examples, pins, space_of, tasks

some = examples(70)


@given(st.data())
@some
def test_the_space_is_every_combination_that_rules_and_pins_leave(data):
    task = data.draw(tasks(most_chips=12))
    texts = data.draw(st.one_of(st.just(()), pins(task)))
    read = parse_pins(texts, task.trainer)
    found = as_tuples(build_space(task, read).candidates)
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(as_tuples(space_of(task, texts)))


@given(st.data())
@some
def test_every_layout_of_the_space_is_left_or_removed_by_a_named_rule(data):
    task = data.draw(tasks())
    texts = data.draw(st.one_of(st.just(()), pins(task)))
    space = build_space(task, parse_pins(texts, task.trainer))
    assert space.searched == len(space.candidates) + sum(space.removed.values())
    assert set(space.removed) <= {rule.name for rule in task.trainer.rules}
    assert all(count > 0 for count in space.removed.values())


@given(tasks(most_chips=8))
@examples(60)
def test_without_rules_the_space_is_all_that_was_searched(task):
    free = replace(task, trainer=replace(task.trainer, rules=()))
    space = build_space(free, Pins())
    assert len(space.candidates) == space.searched
    assert not space.removed


def moe(trainer: str, chips: int, batch: int = 64):
    from tests.trainers.conftest import make_task

    facts = {"experts": 8, "heads": 8, "layers": 4}
    case = {"trainer": trainer, "chips": chips, "model": facts, "recipe": {"global_batch": batch}}
    return make_task(case)


def test_experts_split_by_one_are_no_layout_of_their_own():
    space = build_space(moe("megatron", 1), Pins())
    assert space.searched == len(space.candidates) + sum(space.removed.values())
    assert set(space.candidates.etp.tolist()) == {1}


def test_a_pinned_etp_equal_to_tp_is_one_layout():
    task = moe("megatron", 8)
    rows = as_tuples(build_space(task, parse_pins(["etp=2", "tp=2"], task.trainer)).candidates)
    assert rows
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(
    "pin", ["recompute=full", "sp=on", "zero=1", "vpp<=2", "micro-batch>1", "ep>=4"]
)
def test_pins_say_what_the_space_is(pin):
    task = moe("megatron", 8)
    space = build_space(task, parse_pins([pin], task.trainer))
    whole = build_space(task, Pins())
    assert space.searched == len(space.candidates) + sum(space.removed.values())
    assert 0 < space.searched < whole.searched


def test_a_pin_may_ask_for_larger_micro_batches_than_are_looked_at():
    task = moe("fsdp", 1, batch=128)
    assert max(build_space(task, Pins()).candidates.micro_batch) == 32
    for pin, expected in (("micro-batch>=64", {64, 128}), ("micro-batch=128", {128})):
        rows = build_space(task, parse_pins([pin], task.trainer)).candidates
        assert set(rows.micro_batch.tolist()) == expected


def test_what_a_rule_removes_is_counted_with_all_that_would_have_come_of_it():
    task = moe("fsdp", 4, batch=3)
    space = build_space(task, Pins())
    kept = len(space.candidates)
    rule = next(rule for rule in get_trainer("fsdp").rules if rule.name == "batch-ranks")
    assert space.removed["batch-ranks"] == int((~rule.keeps(task, enumerated_legal(task))).sum())
    assert kept + sum(space.removed.values()) == space.searched


def enumerated_legal(task):
    """Rows before any rule, in the values that the trainer offers at all."""
    rows = enumerated(task)
    levels = [row in task.trainer.shardings for row in rows.sharding.tolist()]
    modes = [("none", "selective", "full")[r] in task.trainer.recompute for r in rows.recompute]
    axes = (rows.tp == 1) & (rows.pp == 1) & (rows.ep == 1) & (rows.etp == 1)
    return rows.take(axes & levels & modes)
