"""How much is computed for models of more and more equal layers on the same chips, counted rather than timed."""

from __future__ import annotations

import pytest

from planner.cost import makespan, program
from planner.planning import plan
from planner.question import Question
from planner.search.stages import runs, single

STEPS = 60_000
"""Steps of simulated schedules, each of all stages and candidates at once."""
CELLS = 500_000
"""Choices of what stages may hold that are priced, and cells of tables that stages are cut with."""
COMPILED = 1_000_000
"""Operations of schedules that are made ready for simulation."""


@pytest.mark.parametrize("layers", [40, 80, 160, 320, 640])
@pytest.mark.parametrize("chips", [1024, 4096])
def test_what_is_computed_is_bounded_whatever_the_number_of_layers(monkeypatch, chips, layers):
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
    counted(runs, "priced", "cells", lambda _, found, flying, __: found.run.size * len(flying))
    counted(single, "solve", "cells", lambda table, *_: table.forward.size)
    counted(program, "compile_orders", "compiled", lambda orders: orders.kind.size)
    question = Question(
        model="llama-3-70b",
        cluster=f"h100-sxm:{chips}",
        overrides={"layers": str(layers)},
    )
    assert plan(question).step > 0
    assert min(counts.values()) > 0
    assert counts["steps"] < STEPS
    assert counts["cells"] < CELLS
    assert counts["compiled"] < COMPILED
