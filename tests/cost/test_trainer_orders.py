"""Order tables against those of torch.distributed.pipelining, frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cost.orders import BACKWARD, FORWARD, INPUT, NOTHING, WEIGHT, Schedule, group_size
from planner.cost.program import compile_schedule

PATH = Path(__file__).parents[1] / "fixtures" / "schedules" / "torch.json"
NAMES = {
    "Interleaved1F1B": Schedule.INTERLEAVED,
    "InterleavedZeroBubble": Schedule.ZB_H1,
    "ZBVZeroBubble": Schedule.ZBV,
    "DualPipeV": Schedule.DUALPIPEV,
}
LETTERS = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}
TABLES = json.loads(PATH.read_text(encoding="utf-8"))["tables"]


def words(orders, stage):
    """What a stage executes, as torch writes it: model chunk, kind, micro-batch."""
    rows = zip(orders.kind[stage], orders.chunk[stage], orders.microbatch[stage], strict=True)
    return " ".join(
        f"{orders.depth[stage, chunk]}{LETTERS[kind]}{micro}"
        for kind, chunk, micro in rows
        if kind != NOTHING
    )


@pytest.mark.parametrize("name", NAMES)
def test_orders_are_those_of_torch(name):
    tables = [table for table in TABLES if table["schedule"] == name]
    assert len(tables) >= 5
    for table in tables:
        p, m, v = table["stages"], table["microbatches"], table["chunks"]
        group = None if NAMES[name].folded else int(group_size(p, m))
        orders = compile_schedule(NAMES[name], p, m, v, group).orders
        assert [words(orders, stage) for stage in range(p)] == table["rows"], table
