"""How much is computed for models of more and more equal layers on the same chips, counted rather than timed."""

from __future__ import annotations

import pytest

from planner.cost import makespan, program
from planner.planning import plan
from planner.pricing import price
from planner.question import Question
from planner.search.stages import runs, single

FREE, PINNED = (), ("tp=8", "pp=16")
STEPS = {FREE: 88_000, PINNED: 200_000}
"""Steps of simulated schedules, each of all stages and candidates at once, of equal chunks and of unequal ones; prices
of pins are three more searches."""
CELLS = {FREE: 100_000, PINNED: 600_000}
"""Choices of what stages may hold that are priced, and cells of tables that stages are cut with."""
COMPILED = {FREE: 1_000_000, PINNED: 1_300_000}
"""Operations of schedules that are made ready for simulation."""


@pytest.mark.parametrize(
    ("layers", "pins"),
    [(40, FREE), (80, FREE), (160, FREE), (320, FREE), (640, FREE), (40, PINNED), (640, PINNED)],
)
@pytest.mark.parametrize("chips", [1024, 4096])
def test_what_is_computed_is_bounded_whatever_the_number_of_layers(
    monkeypatch, chips, layers, pins
):
    counts = {"steps": 0, "cells": 0, "compiled": 0}

    def counted(module, name, key, size):
        inner = getattr(module, name)

        def outer(*args):
            counts[key] += size(*args)
            return inner(*args)

        monkeypatch.setattr(module, name, outer)

    makespan._KNOWN.clear()
    program.compile_schedule.cache_clear()
    counted(makespan, "simulate", "steps", lambda made, *_: len(made.levels))
    counted(runs, "priced", "cells", lambda _, blocks, *__: blocks[..., 0].size)
    counted(runs, "fit", "cells", lambda _, blocks, *__: blocks[..., 0].size)
    counted(single, "may_reach", "cells", lambda table, *_: table.forward.size)
    counted(single, "solve", "cells", lambda table, *_: table.forward.size)
    counted(program, "compile_orders", "compiled", lambda orders: orders.kind.size)
    question = Question(
        model="llama-3-70b",
        cluster=f"h100-sxm:{chips}",
        pins=pins,
        overrides={"layers": str(layers)},
    )
    found = plan(question)
    assert found.step > 0
    assert len(found.pin_prices) == len(pins) + bool(pins)
    assert min(counts.values()) > 0
    assert counts["steps"] < STEPS[pins]
    assert counts["cells"] < CELLS[pins]
    assert counts["compiled"] < COMPILED[pins]


def test_a_layer_more_on_every_stage_takes_the_same_whatever_their_number():
    """Stages of equal layers: all that they take is linear in how many they hold, embedding and head apart."""
    steps = []
    for layers in (160, 320, 480):
        question = Question(
            model="llama-3-70b",
            cluster="h100-sxm:1024",
            global_batch=512,
            overrides={"layers": str(layers)},
        )
        layout = {"dp": 8, "tp": 8, "pp": 16, "micro_batch": 1, "recompute": "full"}
        steps.append(price(question, layout).step)
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=1e-9)


def test_numbers_of_recomputed_layers_are_looked_at_only_where_they_may_pay(monkeypatch):
    """A deep model has many of them on every stage: 932 tables and 119 cuts were looked at for 640 layers."""
    counts = []
    for layers in (80, 640):
        looked = {"may_reach": 0, "solve": 0}
        with monkeypatch.context() as patch:
            for name in looked:
                patch.setattr(single, name, _counted(looked, name, getattr(single, name)))
            question = Question(
                model="llama-3-70b",
                cluster="h100-sxm:1024",
                pins=("tp=8", "pp=16", "vpp=1"),
                overrides={"layers": str(layers)},
            )
            assert plan(question).step > 0
        counts.append(looked)
    assert min(counts[0].values()) > 0
    assert counts[1]["may_reach"] < 4 * counts[0]["may_reach"]
    assert counts[1]["solve"] < 2 * counts[0]["solve"]


def _counted(counts, name, inner):
    def outer(*args):
        counts[name] += 1
        return inner(*args)

    return outer
