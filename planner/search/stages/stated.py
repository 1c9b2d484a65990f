"""A division into stages in words: ``stage-layers=7+8+8+7``, ``full-layers=1+1+0+0``, ``selective-layers=0+2+0+0``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.candidates import RECOMPUTE, Candidates
from planner.cost.cut import NONE, Cut, uniform
from planner.errors import Fault, PlannerError
from planner.plan.layout import DIVISION, plain
from planner.units import IntArray

LAYERS, FULL_LAYERS, SELECTIVE_LAYERS = DIVISION


def stated_cut(layout: Mapping[str, int | str], row: Candidates, num_layers: int) -> Cut | None:
    """The division that a layout states; None where it states none.

    Args:
        layout: by name.
        row: the rest of the layout, a table of one row.
        num_layers: of the model.

    Raises:
        PlannerError: numbers that are no division of these layers over these chunks (N02).
    """
    given = {plain(key): str(value) for key, value in layout.items() if plain(key) in DIVISION}
    if not given:
        return None
    chunks = int(row.pp[0] * row.vpp[0])
    counts = {word: _counts(word, text, chunks) for word, text in given.items()}
    zeros = np.zeros(chunks, dtype=np.int64)
    layers = counts.get(LAYERS)
    if layers is None:
        what = f"{' and '.join(given)}: of which layers is not said."
        raise PlannerError.of("N02", what, f"Add {LAYERS}, like 7+8+8+7.")
    if int(layers.sum()) != num_layers:
        what = (
            f"{LAYERS}={given[LAYERS]} is {int(layers.sum())} layers; the model has {num_layers}."
        )
        raise PlannerError.of("N02", what)
    mode = int(row.recompute[0])
    alike = uniform(layers, mode)
    if len(counts) == 1:
        return alike
    full, selective = (counts.get(word, zeros) for word in (FULL_LAYERS, SELECTIVE_LAYERS))
    if (full + selective > layers).any():
        chunk = int(np.argmax(full + selective > layers))
        what = f"chunk {chunk} recomputes {int((full + selective)[chunk])} of {int(layers[chunk])} layers."
        raise PlannerError.of("N02", what)
    return Cut(layers, full, selective)


def base_mode(cut: Cut) -> int:
    """What embedding and head recompute beside layers cut so: what all layers do, or nothing."""
    return NONE if cut.mixed else int(cut.modes[0])


def label(cut: Cut) -> str:
    """The word for what the layers of a cut recompute."""
    return "mixed" if cut.mixed else RECOMPUTE[int(cut.modes[0])]


def _counts(word: str, text: str, chunks: int) -> IntArray:
    parts = text.split("+")
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise PlannerError(
            Fault("N02", f"{word}={text} is no sum of whole numbers.", ("Write it like 7+8+8+7.",))
        )
    if len(parts) != chunks:
        what = f"{word}={text} names {len(parts)} chunks; pp · vpp is {chunks}."
        raise PlannerError.of("N02", what)
    return np.array([int(part) for part in parts], dtype=np.int64)
