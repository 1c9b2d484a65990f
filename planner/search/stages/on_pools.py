"""The best cuts of a layout whose stages stand on pools of different chips."""

from __future__ import annotations

import numpy as np

from planner.cost.prices import block_seconds
from planner.search.stages.single import Single
from planner.units import IntArray


class OnPools(Single):
    """One chunk a stage, as many layers as its chips are fast."""

    def _sizes(self, reached: float) -> IntArray:
        """Numbers of layers that a stage on the fastest pool may hold: it runs them once for every micro-batch."""
        assert self.p.mix is not None
        kinds = slice(1, 1 + len(self.model.blocks))
        least = min(
            float(np.add(*block_seconds(part))[0, kinds].min()) for part in self.p.mix.parts
        )
        most = reached / (least * float(self.p.micro_batches[0]))
        return np.arange(int(min(self.model.num_layers - self.pp + 2, most)) + 1)
