"""Layers of every stage, where the notes of a row list the boundaries of its stages."""

from __future__ import annotations

import re
from itertools import pairwise

from planner.calibrate.generators import layer_places
from planner.calibrate.runs import Run
from planner.graph.generator import ImageGenerator

_BOUNDARIES = re.compile(r"stage boundaries[^\[]*\[([\d, ]+)\]")
BEFORE, BEHIND = 2, 4
"""Modules of Megatron's pipelined GPT before its layers (embedding, a transposition) and behind them (a transposition,
the norm, the head, the loss's cast). Source: DeepSpeedExamples, Megatron-LM v1.1.5, GPT2ModelPipe."""


def division(run: Run, made: ImageGenerator | None = None) -> tuple[int, ...]:
    """Layers of every stage; nothing where the row does not list boundaries that its layers fit.

    Args:
        run: the row.
        made: its model, where that is a generator.

    >>> boundaries = "stage boundaries (layer indices incl. embedding etc.) [0, 9, 15, 21, 30]"
    >>> model, hardware, parallel = {"layers": 24}, {}, {"pp": 4}
    >>> division(Run(id="x", notes=boundaries, model=model, hardware=hardware, parallel=parallel, measured={}))
    (7, 6, 6, 5)
    """
    told = _BOUNDARIES.search(run.remarks)
    if told is None:
        return ()
    ends = [int(number) for number in told[1].split(",")]
    places = _layers(run, ends[-1]) if made is None else layer_places(made)
    if len(ends) != (run.parallel.pp or 1) + 1 or ends[0] != 0 or not places:
        return ()
    return tuple(sum(low <= place < high for place in places) for low, high in pairwise(ends))


def _layers(run: Run, modules: int) -> tuple[int, ...]:
    """Places of the layers of a decoder among so many modules."""
    layers = run.model.layers
    if layers is None:
        return ()
    first = {layers: 0, layers + BEFORE + BEHIND: BEFORE}.get(modules)
    return () if first is None else tuple(range(first, first + layers))
