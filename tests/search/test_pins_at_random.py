"""Pins on operators at random: what they leave is what plain counting leaves, and nothing else is ever raised."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.search.operator_faults import impossible, unsatisfied
from planner.search.pins import Pins, parse_pins
from planner.search.role_choices import options
from planner.search.semi_automatic import plan_operators
from planner.search.space import build_space
from tests.search.problems import examples, tasks

AXES = ("dp", "cp", "tp", "ep", "etp", "edp")
COPIED = "kv_heads"
"""May be cut into more parts than it has: copies, which plain counting does not see."""


@st.composite
def operator_pins(draw, model):
    """A pin, the operators that it means with their blocks, and what it asks of one of their dims."""
    block = draw(st.sampled_from(list({b.name: b for b in model.all_blocks()}.values())))
    op = draw(st.sampled_from(block.operators))
    dim = draw(st.sampled_from([dim for dim in op.dims if dim != COPIED]))
    axes = st.lists(st.sampled_from(AXES), max_size=2, unique=True)
    value = draw(st.one_of(st.sampled_from([1, 2, 3, 4, 8]), axes))
    place = draw(st.sampled_from(["", "layers.*."])) if block in model.blocks else f"{block.name}."
    blocks = {"": model.all_blocks(), "layers.*.": model.blocks}.get(place, (block,))
    meant = [(b, n) for b in blocks for n, other in enumerate(b.operators) if other.name == op.name]
    text = str(value) if isinstance(value, int) else "+".join(value) or "none"
    return f"{place}{op.name}.{dim}={text}", meant, dim, value


def meets(task, block, split, dim, value, row):
    """Whether a strategy does what is asked, counted in plain numbers."""
    cutting = [axis for axis, cut in split.items() if cut == dim]
    for cut in set(split.values()) - {"batch", "capacity", COPIED}:
        parts = prod(row[axis] for axis, other in split.items() if other == cut)
        if task.trainer.per_operator and block.sizes[cut] % parts:
            return False
    if isinstance(value, int):
        return prod(row[axis] for axis in cutting) == value
    return set(value) <= set(cutting) and all(row[axis] == 1 for axis in set(cutting) - set(value))


@given(st.data())
@examples(60)
def test_pins_leave_what_plain_counting_leaves(data):
    task = data.draw(tasks(most_chips=12))
    text, meant, dim, value = data.draw(operator_pins(task.model))
    rows = build_space(task, Pins()).candidates
    pins = parse_pins([text], task.trainer, task.model).operators
    found = plan_operators(task, pins, rows)
    for index in range(len(rows)):
        row = {axis: int(rows.degree(axis)[index]) for axis in AXES}
        can = (
            any(
                meets(task, block, split, dim, value, row)
                for split in options(
                    task.trainer, block, {block.operators[n].name}, sp=bool(rows.sp[index])
                )[n]
            )
            for block, n in meant
        )
        assert bool(found.kept[index]) == all(can), (text, row)
    if len(rows) and not found.kept.any():
        faults = (*impossible(task, pins), *unsatisfied(task, pins, rows))
        assert faults
        assert all(fault.code in ("N02", "N03") and text in fault.what for fault in faults)


@given(st.text(max_size=12), st.text(max_size=16), st.data())
@examples(200)
def test_any_text_is_read_or_refused(name, value, data):
    model = data.draw(tasks(most_chips=2)).model
    trainer = data.draw(tasks(most_chips=2)).trainer
    try:
        parse_pins([f"layers.*.{name}={value}", f"mlp.up=({value}"], trainer, model)
    except PlannerError as error:
        assert {fault.code for fault in error.faults} <= {"N01", "N02", "N03"}
