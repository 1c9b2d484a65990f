"""Layouts and strategies through other notations and back."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.graph import notation
from planner.graph.notation import (
    from_dtensor,
    from_mindspore,
    from_partition_spec,
    to_dtensor,
    to_mindspore,
    to_partition_spec,
)
from planner.graph.placement import PARTIAL, REPLICATE, Partial, Shard
from tests.search.problems import examples

AXES, DIMS = ("a", "b", "c"), ("batch", "seq", "heads", "head_dim")
placements = st.sampled_from([REPLICATE, PARTIAL, *map(Shard, DIMS)])
layouts = st.fixed_dictionaries(dict.fromkeys(AXES, placements))
INPUTS = (("batch", "seq", "embed"), ("embed", "ffn"))


def refused(sentence):
    return pytest.raises(PlannerError, match=rf"(?s){sentence}.*\[N04\]")


def test_doctests():
    assert doctest.testmod(notation).attempted >= 6
    assert doctest.testmod(notation).failed == 0


@given(layouts)
@examples(100)
def test_dtensor_holds_every_layout(layout):
    assert from_dtensor(to_dtensor(layout, DIMS, AXES), DIMS, AXES) == layout


@given(layouts)
@examples(100)
def test_partition_specs_hold_what_is_not_partial(layout):
    over = [axis for axis, place in layout.items() if isinstance(place, Partial)]
    if over:
        with refused(f"partial over {over[0]}"):
            to_partition_spec(layout, DIMS, AXES)
    else:
        assert from_partition_spec(to_partition_spec(layout, DIMS, AXES), DIMS, AXES) == layout


@given(
    st.dictionaries(st.sampled_from(AXES), st.sampled_from(["batch", "seq", "embed", "ffn"])),
    st.permutations([2, 3, 5]),
)
@examples(100)
def test_mindspore_holds_strategies_of_axes_that_differ(split, sizes):
    mesh = dict(zip(AXES, sizes, strict=True))
    assert from_mindspore(to_mindspore(split, INPUTS, mesh), INPUTS, mesh) == split


@given(
    st.dictionaries(st.sampled_from(AXES), st.sampled_from(["batch", "seq", "embed", "ffn"])),
    st.lists(st.sampled_from([1, 2, 4]), min_size=3, max_size=3),
)
@examples(100)
def test_mindspore_holds_a_strategy_or_says_that_it_does_not(split, sizes):
    mesh = dict(zip(AXES, sizes, strict=True))
    try:
        written = to_mindspore(split, INPUTS, mesh)
    except PlannerError as error:
        assert error.faults[0].code == "N04"
        return
    assert from_mindspore(written, INPUTS, mesh) == split


def test_followed_dims_are_cut_with_their_lead():
    inputs = (("batch", "seq", "heads", "head_dim"), ("batch", "keys", "kv_heads", "head_dim"))
    assert to_mindspore({"a": "heads"}, inputs, {"a": 4}) == ((1, 1, 4, 1), (1, 1, 4, 1))


def test_what_notations_cannot_hold():
    with refused("no input has"):
        to_mindspore({"a": "heads"}, INPUTS, {"a": 2})
    with refused("no axis z"):
        to_mindspore({"z": "batch"}, INPUTS, {"a": 2})
    with refused("leaves open which"):
        to_mindspore({"a": "batch"}, INPUTS, {"a": 2, "b": 2})
    with refused("no choice of the axes a = 2 and b = 4"):
        from_mindspore(((3, 1, 1), (1, 1)), INPUTS, {"a": 2, "b": 4})
    with refused("no choice"):  # inputs disagree about the dim that they share
        from_mindspore(((1, 1, 2), (4, 1)), INPUTS, {"a": 2, "b": 4})
    with refused("does not fit inputs"):
        from_mindspore(((2, 1), (1, 1)), INPUTS, {"a": 2})
    with refused("no dim heads"):
        to_dtensor({"a": Shard("heads")}, ("batch",), ("a",))
    with refused("no axis z"):
        to_partition_spec({"z": Shard("batch")}, ("batch",), ("a",))
    with refused("2 placements stand for the 1 axes"):
        from_dtensor(("Shard(0)", "Shard(1)"), ("batch", "seq"), ("a",))
    with refused("only batch"):
        from_dtensor(("Shard(1)",), ("batch",), ("a",))
    with refused("_StridedShard"):
        from_dtensor(("_StridedShard(dim=0, sf=2)",), ("batch",), ("a",))
    with refused("another order"):
        from_partition_spec((("b", "a"),), ("batch",), ("a", "b"))
    with refused("a cuts two dims"):
        from_partition_spec(("a", "a"), ("batch", "seq"), ("a",))
    with refused("no axis z"):
        from_partition_spec(("z",), ("batch",), ("a",))
    with refused("only batch"):
        from_partition_spec((None, None), ("batch",), ("a",))
