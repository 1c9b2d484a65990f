"""What every stage may hold, in seconds: the numbers that the cut into stages is searched with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.bounds import stage_bound, turning_bound
from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.units import Array, BoolArray, IntArray

EQUAL = 1e-9
"""Relative difference of two times that counts as none."""


@dataclass(frozen=True, slots=True, eq=False)
class StageTable:
    """Seconds of every stage for every run of layers that it may hold; infinite where it may not."""

    schedule: Schedule
    micro_batches: int
    sizes: IntArray
    """Numbers of layers that a stage may hold, ascending; ``(sizes,)``."""
    kind: IntArray
    """For every first layer of a run, and the end, which of the kinds below it begins; ``(layers + 1,)``."""
    forward: Array
    """One micro-batch; ``(stages, kinds, sizes)``, by what the run begins with."""
    backward: Array
    """Recompute included; same shape."""
    weight: Array
    """The part of it in which gradients of weights are made; same shape."""
    send: Array
    """Delay of the boundary behind every stage; ``(stages,)``."""

    @property
    def num_stages(self) -> int:
        return len(self.forward)

    @property
    def pairs(self) -> Array:
        """Seconds of a send and of the gradient's back, over the boundary before every stage; ``(stages,)``."""
        return np.asarray(np.concatenate([[0.0], 2.0 * self.send[:-1]]))

    @property
    def num_layers(self) -> int:
        return len(self.kind) - 1

    def times(self, cuts: IntArray) -> tuple[Array, Array, Array]:
        """Forward, backward and weight seconds of cuts.

        Shapes: ``cuts`` ``(n, stages)`` layers of every stage; results ``(n, stages, 1)``.
        """
        low = np.cumsum(cuts, axis=1) - cuts
        place = np.searchsorted(self.sizes, cuts)
        known = (place < len(self.sizes)) & (
            self.sizes[np.minimum(place, len(self.sizes) - 1)] == cuts
        )
        index = (np.arange(self.num_stages), self.kind[low], np.minimum(place, len(self.sizes) - 1))
        return tuple(  # type: ignore[return-value]
            np.where(known, part[index], np.inf)[..., None]
            for part in (self.forward, self.backward, self.weight)
        )

    def of(self, part: Array, layers: IntArray) -> Array:
        """What a table of the same shape has for a cut; ``(stages,)``."""
        low = np.cumsum(layers) - layers
        return np.asarray(
            part[np.arange(self.num_stages), self.kind[low], np.searchsorted(self.sizes, layers)]
        )

    def where(self, mask: BoolArray) -> StageTable:
        """The same without runs of layers where the mask is false."""
        return replace(self, forward=np.where(mask, self.forward, np.inf))

    def held(self) -> StageTable:
        """The same without numbers of layers that no stage may hold."""
        some = np.isfinite(self.forward).any(axis=(0, 1))
        parts = {name: getattr(self, name)[..., some] for name in ("forward", "backward", "weight")}
        return replace(self, sizes=self.sizes[some], **parts)

    def allows(self, cuts: IntArray) -> BoolArray:
        """Which cuts put on every stage what it may hold; ``(n,)``."""
        forward, backward, _ = self.times(cuts)
        return np.asarray(np.isfinite(forward + backward).all(axis=(1, 2)))

    def makespans(self, cuts: IntArray) -> Array:
        """Seconds of the schedules of cuts, exactly; ``(n,)``."""
        forward, backward, weight = self.times(cuts)
        return makespan(self.schedule, self.micro_batches, forward, backward, self.send, weight)

    def bounds(self, times: tuple[Array, Array, Array], known: float) -> Array:
        """Lower bounds on the makespans of cuts, seconds; the better ones where they may be below what is known.

        Shapes: ``times`` as of :meth:`times`; result ``(n,)``.
        """
        forward, backward, weight = times
        m = self.micro_batches
        bounds = stage_bound(self.schedule, m, forward, backward, self.send, weight)
        if self.schedule == Schedule.ONE_F_ONE_B:
            some = bounds < known
            seconds = (forward + backward)[some, :, 0]
            bounds[some] = np.maximum(bounds[some], turning_bound(m, seconds, self.send))
        return bounds
