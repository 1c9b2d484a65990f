"""Rows of image generators: what their names say, and what is known of their sources."""

from __future__ import annotations

import re

from planner.calibrate.runs import Run
from planner.graph.generator import ImageGenerator

_DEPTH = re.compile(r"transgan.*\(depth ([\d, ]+)\)", re.IGNORECASE)
FIRST_LAYERS = (3, 7, 9, 15, 22, 29)
"""Place of the first layer of every grid among the modules of AMP's pipeline, layers of coarser grids not counted; the
modules between them reshape and upsample. Source: AMP, src/cost_het_model.py (``first_layer_id``)."""


def generator(run: Run) -> ImageGenerator | None:
    """The generator of a row; None where its model is something else.

    >>> row = {"name": "TransGAN generator (depth 12,0,0,0,0,12)", "type": "other", "hidden": 1024}
    >>> run = Run(id="x", model=row, hardware={}, parallel={}, measured={})
    >>> generator(run).depth, layer_places(generator(run))[11:13]
    ((12, 0, 0, 0, 0, 12), (14, 41))
    """
    told, width = _DEPTH.search(run.model.name), run.model.hidden
    if told is None or width is None:
        return None
    depth = tuple(int(number) for number in told[1].split(","))
    if len(depth) != len(FIRST_LAYERS):
        return None
    return ImageGenerator(name=run.model.name, width=width, depth=depth, source=run.source)


def layer_places(made: ImageGenerator) -> tuple[int, ...]:
    """Place of every layer among the modules of the pipeline."""
    places: list[int] = []
    for first, layers in zip(FIRST_LAYERS, made.depth, strict=True):
        start = first + len(places)
        places += range(start, start + layers)
    return tuple(places)
