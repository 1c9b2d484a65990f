"""What stages of several chunks recompute, each as it likes: against every combination."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.search.stages import probes
from planner.search.stages.probes import settle
from planner.search.stages.solver import PROVEN

FULL, PART, MICRO_BATCHES = 0.9, 0.4, 9


class Chunks:
    """Three stages of two chunks of so many layers; every stage has some choices at random."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.forward = np.exp(0.2 * generator.standard_normal((3, 2)))
        self.open = []
        for _ in range(3):
            full = generator.integers(0, 4, 5)
            again = full + generator.integers(0, 5 - full)
            after = 2.0 + 0.5 * generator.random(5) - 0.1 * again
            self.open.append(np.column_stack([full, again, after]))

    def choices(self, cuts, known):
        return [self.open for _ in cuts]

    def schedules(self, cuts, full, part):
        """Layers run again in turn; a cut makes its stages' second chunks longer."""
        shares = [[(n + 1) // 2, n // 2] for n in range(9)]
        whole, every = (np.array(shares)[numbers] for numbers in (full, full + part))
        forward = np.repeat(self.forward[None], len(cuts), axis=0)
        forward[..., 1] += 0.1 * cuts[:, :1]
        backward = 2.0 * forward + FULL * whole + PART * (every - whole)
        return makespan(Schedule.INTERLEAVED, MICRO_BATCHES, forward, backward, 0.05)

    def every(self, cuts):
        """Seconds of every cut with every combination of choices."""
        ways = np.array(list(product(*self.open)))
        after = ways[..., 2].max(axis=1)
        full, again = np.tile(ways[..., :2], (len(cuts), 1, 1)).transpose(2, 0, 1).astype(np.int64)
        long = np.repeat(cuts, len(ways), axis=0)
        return self.schedules(long, full, again - full) + np.tile(after, len(cuts))


@given(st.integers(0, 2**32), st.sampled_from([0, 3, 24]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_combination_is_tried_or_slower(seed, branches):
    pricing, cuts = Chunks(seed), np.array([[0], [1]])
    every = pricing.every(cuts)
    best, known = every.min(), every[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "BRANCHES", branches)
        found = settle(pricing, cuts, known, 0)
    assert found.bound <= best * (1 + 1e-12)
    assert best * (1 - 1e-12) <= found.seconds <= known
    if branches == 24:
        assert found.bound >= found.seconds * (1 - PROVEN) * (1 - 1e-12)
    if found.again is not None:
        full, part = found.again
        again = pricing.schedules(cuts[[found.place]], full[None], part[None])[0]
        assert again < found.seconds < again + 2.5
