"""The timeline as a trace: what the schedule says, on lanes whose slices never overlap."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from planner.api import price as any_price
from planner.errors import PlannerError
from planner.pricing import price
from planner.question import Question
from planner.report.trace import COMPUTE, DOWN, UP, render_trace

LAYOUTS = {
    "1f1b": "pp=4,tp=4,vpp=1",
    "interleaved": "pp=4,tp=4,vpp=4",
    "zb-h1": "pp=4,tp=4,vpp=2,schedule=zb-h1",
    "zbv": "pp=4,tp=4,vpp=2,schedule=zbv",
    "dualpipev": "pp=4,tp=4,vpp=2,schedule=dualpipev",
    "single": "pp=1,tp=8,dp=2",
}


def traced(layout, batch):
    question = Question(
        model="llama-3-8b",
        cluster="h100-sxm:16",
        trainer="torchtitan",
        global_batch=batch,
        seq_len=4096,
        figures=True,
    )
    plan = price(
        question,
        dict(each.split("=") for each in f"{layout},mbs=1,zero=2,recompute=none".split(",")),
    )
    return plan, json.loads(render_trace(plan))


def lanes(trace):
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


@pytest.fixture(scope="module", params=LAYOUTS)
def case(request):
    return (request.param, *traced(LAYOUTS[request.param], 16))


def test_slices_of_a_lane_never_overlap(case):
    _, _, trace = case
    found = lanes(trace)
    assert len(found) >= 1
    for events in found.values():
        ends = 0.0
        for event in sorted(events, key=lambda e: e["ts"]):
            assert event["dur"] >= 0
            assert event["ts"] >= ends - 1e-3
            ends = event["ts"] + event["dur"]


def random_layout(generator):
    """A question and a layout, with a V, virtual or uneven stages, or stages on two pools; a trainer may refuse it."""
    trainer = str(generator.choice(["megatron", "torchtitan", "mindspore"]))
    clusters = ["h100-sxm:16", "h100-sxm:8 + a100-sxm-80gb:8"]
    stages = int(generator.choice([2, 4, 8]))
    layout = {"pp": stages, "tp": int(generator.choice([1, 2])), "mbs": 1}
    kind = generator.choice(["plain", "virtual", "uneven", "v"])
    if kind == "virtual":
        layout["vpp"] = int(generator.choice([2, 4]))
    if kind == "uneven":
        layers = 1 + generator.multinomial(32 - stages, np.full(stages, 1 / stages))
        layout["stage-layers"] = "+".join(map(str, layers))
    if kind == "v":
        layout |= {"vpp": 2, "schedule": str(generator.choice(["zbv", "dualpipev"]))}
    question = Question(
        model="llama-3-8b",
        cluster=str(generator.choice(clusters)),
        trainer="torchtitan" if kind == "v" else trainer,
        global_batch=int(generator.choice([32, 64])),
        seq_len=2048,
        figures=True,
    )
    return kind, question, layout


def test_slices_of_random_plans_lie_beside_or_inside_one_another():
    generator, seen = np.random.default_rng(7), Counter()
    while seen.total() < 30:
        kind, question, layout = random_layout(generator)
        try:
            plan = any_price(question, layout)
        except PlannerError:
            continue
        seen[kind, "+" in question.cluster] += 1
        for events in lanes(json.loads(render_trace(plan))).values():
            open_ = []
            for start, end in sorted((e["ts"], -e["ts"] - e["dur"]) for e in events):
                while open_ and open_[-1] <= start + 1e-3:
                    open_.pop()
                assert not open_ or -end <= open_[-1] + 1e-3, (question, layout)
                open_.append(-end)
    assert len(seen) == 8


def test_every_pass_of_a_stage_is_there(case):
    name, plan, trace = case
    chunks, count = plan.degrees.vpp, plan.degrees.num_micro_batches
    for stage in plan.stages:
        words = [e["name"] for e in lanes(trace)[stage.index, COMPUTE]]
        passes = {kind: sum(w.startswith(kind) for w in words) for kind in ("forward", "backward")}
        split = sum(w.startswith("input gradient") for w in words)
        assert passes["forward"] == count * chunks
        assert passes["backward"] + split == count * chunks
        assert split == sum(w.startswith("weight gradients") for w in words)
        assert (split > 0) == (name in ("zb-h1", "zbv", "dualpipev"))


def test_compute_waits_and_the_end_make_up_the_step(case):
    _, plan, trace = case
    if plan.degrees.pp == 1:
        return
    stage = max(plan.stages, key=lambda s: s.forward + s.backward).index
    events = lanes(trace)[stage, COMPUTE]
    row = plan.figures.timeline.rows[stage]
    last = max(e["ts"] + e["dur"] for e in events) / 1e6 - row.exposed - row.update
    assert last <= plan.figures.timeline.makespan * (1 + 1e-5)
    busy = sum(e["dur"] for e in events if "chunk" in e.get("args", {})) / 1e6
    work = plan.degrees.num_micro_batches * (
        plan.stages[stage].forward + plan.stages[stage].backward
    )
    assert busy == pytest.approx(work, rel=1e-3)


def test_activations_come_and_go(case):
    _, plan, trace = case
    for stage in plan.stages:
        found = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["pid"] == stage.index]
        held = [e["args"]["activations"] for e in found]
        assert held[0] == held[-1] == pytest.approx(0.0, abs=1e-3)
        terms = {t.name: t.value / 2**30 for t in stage.memory}
        if not stage.head:  # the head holds one micro-batch, and what its weights wait for
            assert max(held) == pytest.approx(terms["memory.activations"], rel=0.02)
        always = sum(
            terms.get(f"memory.{k}", 0.0) for k in ("weights", "gradients", "optimizer", "runtime")
        )
        assert found[0]["args"]["always"] == pytest.approx(always, rel=1e-3)


def test_sends_follow_the_chunks():
    _, trace = traced(LAYOUTS["zbv"], 16)
    found = lanes(trace)
    targets = {
        key: {e["name"] for e in events} for key, events in found.items() if key[1] in (DOWN, UP)
    }
    assert targets[0, DOWN] == {"to stage 1"}
    assert targets[1, DOWN] == {"to stage 2", "to stage 0"}
    assert targets[0, UP] == {"to stage 1"}
    assert targets[3, DOWN] == {"to stage 2"}
    _, trace = traced(LAYOUTS["interleaved"], 16)
    assert {e["name"] for e in lanes(trace)[3, DOWN]} == {"to stage 0"}
    assert {e["name"] for e in lanes(trace)[0, UP]} == {"to stage 3"}


def test_what_is_left_out_of_a_long_schedule_is_said():
    plan, trace = traced("pp=4,tp=4", 512)
    assert plan.figures.timeline.left_out
    words = [e["name"] for e in lanes(trace)[0, COMPUTE]]
    assert sum("micro-batches more" in word for word in words) == 1
    end = max(e["ts"] + e["dur"] for e in lanes(trace)[0, COMPUTE] if "chunk" in e.get("args", {}))
    assert end / 1e6 == pytest.approx(plan.figures.timeline.makespan, rel=1e-4)


def test_the_command_writes_both_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain, packed = tmp_path / "a.trace.json", tmp_path / "a.trace.json.gz"
    words = ["price", "llama-3-8b", "--cluster", "h100-sxm:8", "--set", "pp=2,tp=4", "-b", "16"]
    for _ in range(2):
        assert main([*words, "--out", str(plain), "--out", str(packed)]) == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert json.loads(plain.read_text())["traceEvents"]
    other = tmp_path / "b.trace.json"
    other.write_text('{"schema_version": "1"}')
    assert main([*words, "--out", str(other)]) == 2
    assert "is not a timeline" in capsys.readouterr().err
