"""Reports of plans as they are found, made once for all tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.api import Plan, Question, plan, price
from planner.report.html.page import Tab, render_html

TABS = (
    Tab("megatron", (("megatron.sh", "ARGS=(\n  --tensor-model-parallel-size 8\n)\n"), ("run.py", "print('<&>')\n"))),
    Tab("torchtitan", (("config.py", "def plan():\n    return 1\n"),), "Experts stay whole."),
)  # fmt: skip
QUESTIONS = {
    "pipeline": Question(model="llama-3-70b", cluster="h100-sxm:64", global_batch=256, pins=("pp=4",)),
    "experts": Question(model="mixtral-8x7b", cluster="h100-sxm:32", global_batch=128),
    "one node": Question(model="llama-3-8b", cluster="h100-sxm:8", trainer="torchtitan", global_batch=64),
    "one chip": Question(model="llama-3.2-1b", cluster="h100-sxm:1", global_batch=4, seq_len=4096),
    "most experts": Question(
        model="deepseek-v3", cluster="h100-sxm:2048", global_batch=4096, seq_len=4096, pins=("cp=1", "tp<=4", "mbs=1"),
    ),
    "most layers": Question(
        model="llama-3.1-405b", cluster="h100-sxm:2048", global_batch=2048, pins=("pp>=16", "mbs=1"),
    ),
}  # fmt: skip


@cache
def planned(name: str) -> Plan:
    """A plan with figures."""
    question = QUESTIONS[name]
    answer = plan(replace(question, figures=True))
    assert isinstance(answer, Plan)
    return answer


@cache
def stated() -> Plan:
    """A layout that was priced, not searched; it does not fit."""
    question = Question(model="llama-3-70b", cluster="h100-sxm:16", global_batch=64, figures=True)
    return price(question, {"tp": 2, "pp": 2})


@cache
def report(name: str) -> str:
    """Its page, with files of two trainers."""
    return render_html(planned(name), TABS)
