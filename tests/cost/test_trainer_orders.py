"""Order tables against those of torch.distributed.pipelining and of Megatron-Core, frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cost.orders import BACKWARD, FORWARD, INPUT, NOTHING, WEIGHT, Schedule, group_size
from planner.cost.program import compile_schedule

FOLDER = Path(__file__).parents[1] / "fixtures" / "schedules"
NAMES = {
    "GPipe": Schedule.GPIPE,
    "1F1B": Schedule.ONE_F_ONE_B,
    "Interleaved1F1B": Schedule.INTERLEAVED,
    "InterleavedZeroBubble": Schedule.ZB_H1,
    "ZBVZeroBubble": Schedule.ZBV,
    "DualPipeV": Schedule.DUALPIPEV,
}
LETTERS = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}
TABLES, MEGATRON = (
    json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["tables"]
    for name in ("torch", "megatron")
)


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


def test_orders_are_those_of_megatron():
    """Its groups may hold more micro-batches than stages (--microbatch-group-size-per-virtual-pipeline-stage)."""
    assert len(MEGATRON) == 14
    for table in MEGATRON:
        p, m, v = table["stages"], table["microbatches"], table["chunks"]
        schedule = Schedule.named(table["schedule"])
        orders = compile_schedule(schedule, p, m, v, table["group"]).orders
        assert [words(orders, stage) for stage in range(p)] == table["rows"], table
