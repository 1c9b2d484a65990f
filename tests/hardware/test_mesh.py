import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.hardware.mesh import members


@st.composite
def nested_groups(draw):
    groups, chips = [], 1
    for _ in range(draw(st.integers(1, 3))):
        chips *= draw(st.integers(1, 12))
        groups.append(chips)
    return (*groups, 0)


def groups_touched(size, stride, chips):
    """Most groups of so many chips that any one copy of the axis touches, by listing every rank."""
    if chips == 0:
        return 1
    most = 0
    for block in range(2 * chips):
        for offset in range(stride):
            first = block * size * stride + offset
            most = max(most, len({(first + i * stride) // chips for i in range(size)}))
    return most


@given(st.integers(1, 24), st.integers(1, 12), nested_groups())
def test_counts_agree_with_listing_every_rank(size, stride, groups):
    counts = members(size, stride, groups)
    assert counts.shape == (len(groups),)
    assert counts.min() >= 1
    assert counts.prod() == size
    for level, chips in enumerate(groups[:-1]):
        if chips > 120:
            continue
        outer = int(counts[level + 1 :].prod())
        touched = groups_touched(size, stride, chips)
        assert outer >= touched
        span = size * stride
        nests = math.gcd(chips, stride) in (chips, stride)
        if nests and math.gcd(chips, span) in (chips, span):
            assert outer == touched


def test_worked_examples():
    assert members(8, 1, (8, 0)).tolist() == [8, 1]
    assert members(16, 1, (8, 0)).tolist() == [8, 2]
    assert members(4, 4, (8, 0)).tolist() == [2, 2]
    assert members(64, 1, (72, 0)).tolist() == [8, 8]
    assert members(72, 1, (72, 0)).tolist() == [72, 1]
    assert members(8, 8, (8, 0)).tolist() == [1, 8]
    assert members(32, 1, (8, 16, 0)).tolist() == [8, 2, 2]


def test_a_level_that_holds_all_chips_takes_the_rest():
    assert members(12, 1, (8, 0, 0)).tolist() == [4, 3, 1]
    assert members(6, 2, (0, 0)).tolist() == [6, 1]


def test_arrays_broadcast_and_agree_with_scalars():
    sizes, strides = np.array([[1], [2], [6], [16]]), np.array([1, 2, 3, 8, 64])
    counts = members(sizes, strides, (4, 72, 0))
    assert counts.shape == (3, 4, 5)
    for row, size in enumerate(sizes[:, 0]):
        for column, stride in enumerate(strides):
            expected = members(int(size), int(stride), (4, 72, 0))
            assert counts[:, row, column].tolist() == expected.tolist()
