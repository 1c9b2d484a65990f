"""Early bounds of several tables of stages: below every cut, and close where layers are equal."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.search.stages.early import least_seconds
from planner.search.stages.table import StageTable

some = settings(max_examples=120, deadline=None, derandomize=True)
PARTS = ("forward", "backward", "weight")


def equal_layers(m, layers, p, counts, after, head):
    """Tables of equal layers, so many of every stage running again, and what follows the schedule."""
    sizes = np.arange(layers - p + 2)
    forward = sizes + np.zeros((len(counts), p, 1, len(sizes)))
    forward[:, -1] += head
    backward = 2.0 * forward + np.minimum(sizes, np.array(counts)[:, None, None, None])
    forward[:, 1:-1, :, 0] = np.inf
    send = np.full(p, 0.1)
    kind = np.zeros(layers + 1, np.int64)
    table = StageTable(Schedule.ONE_F_ONE_B, m, sizes, kind, forward, backward, 0 * backward, send)
    return table, np.where(np.isfinite(forward), after * sizes, np.inf)


def best(table, after):
    """Least seconds of all cuts of one table with what follows."""
    p, layers = table.num_stages, table.num_layers
    places = combinations(range(layers + p - 1), p - 1)
    cuts = np.diff([[-1, *place, layers + p - 1] for place in places], axis=1) - 1
    cuts = cuts[table.allows(cuts)]
    if not len(cuts):
        return np.inf
    last = np.array([table.of(after, cut).max() for cut in cuts])
    forward, backward, weight = table.times(cuts)
    found = makespan(table.schedule, table.micro_batches, forward, backward, table.send, weight)
    return float((found + last).min())


def one(table, after, place):
    """One of several tables."""
    parts = {name: getattr(table, name)[place] for name in PARTS}
    return replace(table, **parts), after[place]


@given(
    st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1]),
    st.integers(1, 20),
    st.integers(2, 4),
    st.integers(0, 2**32),
)
@some
def test_no_cut_beats_them(schedule, m, p, seed):
    generator = np.random.default_rng(seed)
    layers = int(generator.integers(p, 9))
    table, after = equal_layers(m, layers, p, (0, 1, 3), generator.choice([0.0, 3.0]), 1.5)
    for name in PARTS:
        part = getattr(table, name)
        part *= np.exp(generator.choice([0.0, 0.4]) * generator.standard_normal(part.shape))
    table.forward[generator.random(after.shape) < 0.2] = np.inf
    table = replace(table, schedule=schedule)
    for place, bound in enumerate(least_seconds(table, after)):
        assert bound <= best(*one(table, after, place)) * (1 + 1e-9)


def test_they_order_tables_by_what_is_recomputed_and_are_close():
    table, after = equal_layers(40, 12, 3, (0, 1, 2, 4), 0.5, 1.0)
    bounds = least_seconds(table, after)
    exact = np.array([best(*one(table, after, place)) for place in range(4)])
    assert (np.diff(bounds) > 0).all()
    assert (bounds > 0.9 * exact).all()
