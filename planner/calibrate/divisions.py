"""Layers of every stage, where the notes of a row list the boundaries of its stages."""

from __future__ import annotations

import re
from itertools import pairwise

from planner.calibrate.runs import Run

_BOUNDARIES = re.compile(r"stage boundaries[^\[]*\[([\d, ]+)\]")
BEFORE, BEHIND = 2, 4
"""Modules of Megatron's pipelined GPT before its layers (embedding, a transposition) and behind them (a transposition,
the norm, the head, the loss's cast). Source: DeepSpeedExamples, Megatron-LM v1.1.5, GPT2ModelPipe."""


def division(run: Run) -> tuple[int, ...]:
    """Layers of every stage; nothing where the row does not list boundaries that its layers fit.

    >>> boundaries = "stage boundaries (layer indices incl. embedding etc.) [0, 9, 15, 21, 30]"
    >>> model, hardware, parallel = {"layers": 24}, {}, {"pp": 4}
    >>> division(Run(id="x", notes=boundaries, model=model, hardware=hardware, parallel=parallel, measured={}))
    (7, 6, 6, 5)
    """
    told, layers = _BOUNDARIES.search(run.remarks), run.model.layers
    if told is None or layers is None:
        return ()
    places = [int(number) for number in told[1].split(",")]
    if len(places) != (run.parallel.pp or 1) + 1 or places[0] != 0:
        return ()
    ends = {layers: 0, layers + BEFORE + BEHIND: BEFORE}.get(places[-1])
    if ends is None:
        return ()
    inner = [min(max(place - ends, 0), layers) for place in places]
    return tuple(high - low for low, high in pairwise(inner))
