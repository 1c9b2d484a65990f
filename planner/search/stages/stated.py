"""A division into stages in words: ``stage-layers=7+8+8+7``, ``full-layers=1+1+0+0``, ``selective-layers=0+2+0+0``.

And ``recompute-unit=4`` for layers that are computed again four at a time, with or without the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planner.candidates import RECOMPUTE, Candidates
from planner.cost.cut import FULL, Cut, uniform
from planner.cost.partition import even_cut
from planner.errors import Fault, PlannerError
from planner.plan.layout import DIVISION, plain
from planner.trainers.trainer import Task, Trainer
from planner.units import IntArray

LAYERS, FULL_LAYERS, SELECTIVE_LAYERS, UNIT = DIVISION


def stated_cut(layout: Mapping[str, int | str], row: Candidates, task: Task) -> Cut | None:
    """The division that a layout states; None where it states none.

    Args:
        layout: by name.
        row: the rest of the layout, a table of one row.
        task: the question.

    Raises:
        PlannerError: numbers that are no division of these layers over these chunks (N02), or one that the trainer
            cannot run (P01, T01).
    """
    given = {plain(key): str(value) for key, value in layout.items() if plain(key) in DIVISION}
    if not given:
        return None
    if UNIT in given:
        return _in_units(given, row, task)
    chunks, num_layers = int(row.pp[0] * row.vpp[0]), task.model.num_layers
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
    if len(set(layers.tolist())) > 1 and not task.trainer.uneven_stages:
        what = f"{task.trainer.name} cannot run stages of {given[LAYERS]} layers."
        raise PlannerError.of("P01", what, "All its stages are equal.")
    if len(counts) == 1:
        return uniform(layers, int(row.recompute[0]))
    full, selective = (counts.get(word, zeros) for word in (FULL_LAYERS, SELECTIVE_LAYERS))
    if (full + selective > layers).any():
        chunk = int(np.argmax(full + selective > layers))
        what = f"chunk {chunk} recomputes {int((full + selective)[chunk])} of {int(layers[chunk])} layers."
        raise PlannerError.of("N02", what)
    cut = Cut(layers, full, selective)
    if cut.mixed:
        _check_mixing(cut, task.trainer)
    return cut


def _in_units(given: Mapping[str, str], row: Candidates, task: Task) -> Cut:
    """A division whose layers are computed again several at a time; as even as it can be where it is not said."""
    (unit,) = _counts(UNIT, given[UNIT], 1).tolist()
    trainer = task.trainer
    if unit < 1:
        raise PlannerError.of("N02", f"{UNIT}={unit}: a unit has one layer or more.")
    if trainer.mixes_recompute != "count":
        what = f"{trainer.name} cannot recompute layers in units of {unit}."
        raise PlannerError.of("T01", what, f"Leave out {UNIT}.")
    if given.keys() & {FULL_LAYERS, SELECTIVE_LAYERS} or int(row.recompute[0]) != FULL:
        what = f"{UNIT}={unit} is of layers that are all computed again as a whole."
        raise PlannerError.of("N02", what, "Add recompute=full, and say nothing else of layers.")
    rest = {word: text for word, text in given.items() if word != UNIT}
    cut = stated_cut(rest, row, task)
    if cut is None:
        even = even_cut(task.model.num_layers, int(row.pp[0]), int(row.vpp[0]))
        cut = uniform(even, FULL)
    return replace(cut, unit=unit)


def _check_mixing(cut: Cut, trainer: Trainer) -> None:
    """Raises where layers differ in what they recompute and the trainer cannot say so (T01)."""
    if trainer.mixes_recompute == "alike":
        what = f"{trainer.name} cannot recompute some layers and not others."
        raise PlannerError.of("T01", what, f"Leave out {FULL_LAYERS} and {SELECTIVE_LAYERS}.")
    count = int(cut.full.max())
    alike = np.array_equal(cut.full, np.minimum(cut.layers, count))
    if trainer.mixes_recompute == "count" and (cut.selective.any() or not alike):
        what = f"{trainer.name} has one number of layers that every chunk recomputes as a whole."
        near = "+".join(map(str, np.minimum(cut.layers, count).tolist()))
        raise PlannerError.of("T01", what, f"It can {FULL_LAYERS}={near}.")


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
