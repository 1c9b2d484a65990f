"""The public yardstick: its command on a small file, and the two instances that must be proved in ten seconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.iopddl import KNOWN, check, main, read

INSTANCES = Path(__file__).parents[3] / "shared" / "facts" / "iopddl"
SMALL = {
    "name": "small",
    "nodes": {
        "intervals": [[0, 2], [1, 3], [3, 3]],
        "costs": [[1, 5], [1, 5], [0]],
        "usages": [[6, 1], [6, 2], [9]],
    },
    "edges": {
        "nodes": [[0, 1], [1, 0], [1, 2]],
        "costs": [[0, 0, 0, 3], [0, 0, 0, 1], [0, int(1e18)]],
    },
    "usage_limit": 7,
}


def test_the_command_writes_a_checked_optimum(tmp_path, capsys):
    path, out = tmp_path / "small.json.gz", tmp_path / "out.json"
    with gzip.open(path, "wt") as stream:
        json.dump({"problem": SMALL}, stream)
    assert main([str(path), "--time-limit", "5", "--out", str(out)]) == 0
    got = json.loads(out.read_text())
    # the second node's second strategy goes with nothing, so the first node must be the one to save
    assert got["solution"] == [1, 0, 0]
    assert got["cost"] == got["lower_bound"] == 6
    assert json.loads(capsys.readouterr().out)["feasible"]


def test_the_check_sees_what_breaks_the_limit():
    assert check(SMALL, [0, 0, 0]) == (2, False)
    assert check(SMALL, [1, 1, 0]) == (5 + 5 + 3 + 1 + int(1e18), True)


@pytest.mark.parametrize("letter", ["B", "G"])
def test_the_smallest_instances_are_proved(letter, tmp_path):
    path = INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz"
    if not path.exists():
        pytest.skip("the contest's instances are not here")
    out = tmp_path / "out.json"
    assert main([str(path), "--time-limit", "60", "--out", str(out)]) == 0
    got = json.loads(out.read_text())
    assert got["cost"] == got["lower_bound"] == KNOWN[letter][1]
    assert check(read(path), got["solution"]) == (got["cost"], True)
