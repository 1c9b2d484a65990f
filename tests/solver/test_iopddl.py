"""The public yardstick: its command on a small file, and the two instances that must be proved in ten seconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.iopddl import KNOWN, check, main, read, to_problem
from planner.search.solver.solve import solve

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
    assert main([str(path), "--time-limit", "60", "--out", str(out)]) == 0
    got = json.loads(out.read_text())
    # the second node's second strategy goes with nothing, so the first node must be the one to save
    assert got["solution"] == [1, 0, 0]
    assert got["cost"] == got["lower_bound"] == 6
    assert got["status"] == "optimal"
    assert 0 < got["found_after_seconds"] <= got["seconds"]
    assert "numba" in got["with"]
    assert json.loads(capsys.readouterr().out)["feasible"]


def test_the_check_sees_what_breaks_the_limit():
    assert check(SMALL, [0, 0, 0]) == (2, False)
    assert check(SMALL, [1, 1, 0]) == (5 + 5 + 3 + 1 + int(1e18), True)


@pytest.mark.parametrize("limit", [2, None])
def test_where_nothing_fits_the_answer_is_strict_json(limit, tmp_path, capsys):
    """Too little memory; and, without any limit, a pair of nodes of which all is forbidden."""
    barred = changed("edges", "costs", 2, [int(1e18), int(1e18)])
    problem = {**(SMALL if limit else barred), "usage_limit": limit}
    path, out = tmp_path / "none.json", tmp_path / "out.json"
    path.write_text(json.dumps({"problem": problem}))
    assert main([str(path), "--time-limit", "1", "--out", str(out)]) == 1

    def refuse(word):
        raise ValueError(word)

    for text in (out.read_text(), capsys.readouterr().out):
        got = json.loads(text, parse_constant=refuse)
        assert got["status"] == "infeasible"
        assert got["cost"] is got["lower_bound"] is None


def without(part, key):
    return {**SMALL, part: {k: v for k, v in SMALL[part].items() if k != key}}


def changed(part, key, number, value):
    values = [*SMALL[part][key]]
    values[number] = value
    return {**SMALL, part: {**SMALL[part], key: values}}


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (None, 'no object "problem"'),
        (without("edges", "nodes"), 'the list "nodes" of "edges" is missing'),
        ({**SMALL, "nodes": []}, 'the list "intervals" of "nodes" is missing'),
        (changed("nodes", "costs", 1, []), "nodes.costs[1] has 0 numbers, at least one needed"),
        (
            changed("nodes", "costs", 1, [1, "x"]),
            "nodes.costs[1] has something that is not a number",
        ),
        (
            changed("nodes", "costs", 1, [1, float("nan")]),
            "nodes.costs[1] has something that is not a number",
        ),
        (changed("nodes", "usages", 0, [6]), "nodes.usages[0] has 1 numbers, 2 needed"),
        (changed("nodes", "usages", 0, [6, -1]), "-1: memory in use cannot be negative"),
        (changed("nodes", "intervals", 2, [3]), "nodes.intervals[2] is [3]: two whole numbers"),
        (changed("edges", "nodes", 2, [1, 3]), "edges.nodes[2] is [1, 3]: nodes go from 0 to 2"),
        (changed("edges", "costs", 2, [0]), "edges.costs[2] has 1 numbers, 2 needed"),
        ({**SMALL, "usage_limit": "much"}, "usage_limit has something that is not a number"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(problem, said, tmp_path, capsys):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({} if problem is None else {"problem": problem}))
    with pytest.raises(SystemExit) as caught:
        main([str(path), "--time-limit", "1"])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"{path}: error: ")
    assert said in message


@pytest.mark.parametrize("content", [b"", b"{", b"\x1f\x8b\x08 cut off"])
def test_a_file_that_is_no_json_is_refused(content, tmp_path, capsys):
    path = tmp_path / "wrong.json.gz"
    path.write_bytes(content)
    with pytest.raises(SystemExit):
        main([str(path)])
    assert "not a JSON file" in capsys.readouterr().err


def test_folders_and_limits_are_judged_before_the_work(tmp_path, capsys):
    for wrong in (["--time-limit", "0"], ["--out", str(tmp_path / "none" / "x.json")]):
        with pytest.raises(SystemExit):
            main([str(tmp_path / "none.json"), *wrong])
        assert wrong[0] in capsys.readouterr().err


def test_nothing_to_choose_costs_nothing(tmp_path, capsys):
    path = tmp_path / "empty.json"
    nodes = {"intervals": [], "costs": [], "usages": []}
    path.write_text(json.dumps({"problem": {"nodes": nodes, "edges": {"nodes": [], "costs": []}}}))
    assert main([str(path), "--time-limit", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"] == 0


def test_times_may_be_anything(tmp_path, capsys):
    moved = [[lo * 10**15 - 7, hi * 10**15 - 7] for lo, hi in SMALL["nodes"]["intervals"]]
    path = tmp_path / "moved.json"
    path.write_text(
        json.dumps({"problem": {**SMALL, "nodes": {**SMALL["nodes"], "intervals": moved}}})
    )
    assert main([str(path), "--time-limit", "60"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"] == 6


@pytest.mark.parametrize("letter", ["B", "G"])
def test_the_smallest_instances_are_proved(letter, tmp_path):
    path = INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz"
    if not path.exists():
        pytest.skip("the contest's instances are not here")
    out = tmp_path / "out.json"
    assert main([str(path), "--time-limit", "300", "--out", str(out)]) == 0
    got = json.loads(out.read_text())
    assert got["cost"] == got["lower_bound"] == KNOWN[letter][1]
    assert check(read(path), got["solution"]) == (got["cost"], True)


def relative(raw, random):
    """Some neighbouring nodes of an instance, with other costs and another limit."""
    nodes, edges = raw["nodes"], raw["edges"]
    count = len(nodes["costs"])
    size = random.randrange(count // 3, count + 1)
    begin = random.randrange(count - size + 1)
    kept = [i for i in range(begin, begin + size) if random.random() < 0.97]
    place = {node: number for number, node in enumerate(kept)}
    inside = [e for e, (i, j) in enumerate(edges["nodes"]) if i in place and j in place]
    room = random.choice([0.9, 1.0, 1.1]) * random.choice([1.0, size / count])
    return {
        "nodes": {
            "intervals": [nodes["intervals"][i] for i in kept],
            "costs": [[c * random.choice([1, 1, 2]) for c in nodes["costs"][i]] for i in kept],
            "usages": [nodes["usages"][i] for i in kept],
        },
        "edges": {
            "nodes": [[place[i] for i in edges["nodes"][e]] for e in inside],
            "costs": [edges["costs"][e] for e in inside],
        },
        "usage_limit": int(raw["usage_limit"] * room),
    }


def least_usage(raw):
    """What every choice takes at some time at least."""
    spans = list(zip(raw["nodes"]["intervals"], map(min, raw["nodes"]["usages"]), strict=True))
    return max(
        sum(u for (lo, hi), u in spans if lo <= t < hi) for t in {lo for (lo, _), _ in spans}
    )


@pytest.mark.parametrize("letter", ["B", "G"])
@pytest.mark.parametrize("seed", range(3))
def test_relatives_of_an_instance_are_solved(letter, seed):
    path = INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz"
    if not path.exists():
        pytest.skip("the contest's instances are not here")
    raw = relative(read(path), Random(seed))
    problem = to_problem(raw)
    one, again = (solve(problem, effort=1) for _ in range(2))
    assert (one.cost, one.bound) == (again.cost, again.bound)
    if one.choice is None:
        assert one.bound == np.inf
        assert least_usage(raw) > raw["usage_limit"]
        return
    assert np.array_equal(one.choice, again.choice)
    assert check(raw, one.choice.tolist()) == (one.cost, True)
    assert 0.98 * one.cost <= one.bound <= one.cost
