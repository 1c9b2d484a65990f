"""Every id that a page prints is one that ``explain`` knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.main import main
from planner.api import Plan, PlannerError, Question, explain, plan, read_plan
from planner.asking import sensitive
from planner.hardware.change import hardware_numbers
from planner.question import understand

ID = re.compile(r"(?<![\w./-])[a-z][\w-]*(?:\.[\w-]+)+(?![\w/])|#\d+|rule:[\w-]+")
"""Words with points between them, rows and rules."""
FILES = re.compile(r"\.(?:json|html|com|yaml)$")
MOE = ("qwen3-30b-a3b", "--cluster", "h100-sxm:32", "--global-batch", "128", "--seq-len", "4096")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize(
    ("command", "least"),
    [
        (["plan", *MOE, "--detail", "all"], 10),
        (["explain", "plan.json", "--depth", "3"], 0),
        (["explain", "plan.json", "#2"], 20),
        (["price", "--like", "plan.json", "--set", "mbs=2", "--detail", "all"], 5),
        (["diff", "plan.json", "other.json"], 12),
        (["compare", *MOE, "--sensitivity", "--what-if", "node.bandwidth=0.5x"], 12),
        (["size", *MOE[:1], "--cluster", "h100-sxm", *MOE[3:]], 0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_every_printed_id_can_be_asked_for(
    command: list[str],
    least: int,
    pages: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(pages)
    if not Path("plan.json").exists():
        assert main(["plan", *MOE, "--quiet", "--out", "plan.json"]) == 0
        assert main(["price", "--like", "plan.json", "--set", "mbs=2", "--out", "other.json"]) == 0
        capsys.readouterr()
    assert main([*command, "--quiet"]) == 0
    shown = {word for word in ID.findall(capsys.readouterr().out) if not FILES.search(word)}
    assert len(shown) >= least
    found = read_plan(Path("plan.json"))
    unknown = []
    for word in sorted(shown):
        try:
            explain(found, word)
        except PlannerError as error:
            unknown.append(str(error))
    assert not unknown


def test_a_number_of_the_hardware_says_its_source_and_what_the_step_makes_of_it() -> None:
    question = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64, seq_len=4096)
    found = plan(question)
    assert isinstance(found, Plan)
    told = explain(found, "node.bandwidth")
    value, lower, higher, source = told.rows
    assert value.value == 450e9
    assert value.unit == "B/s"
    cluster = understand(question).task.cluster
    assert source.value == cluster.sources["node"]
    mine = next(s for s in sensitive(question, found) if s.name == "node.bandwidth")
    assert (lower.value, higher.value) == (mine.low, mine.high)
    for word, number in hardware_numbers(cluster).items():
        assert explain(found, word).rows[0].value == number.value


def test_a_number_of_a_pool_goes_by_the_pool() -> None:
    question = Question(model="gpt2", cluster="t4:4 + v100-sxm-16gb:4", global_batch=32)
    found = plan(question)
    assert isinstance(found, Plan)
    peak = explain(found, "t4.chip.peak")
    assert peak.rows[0].value == 65e12
    both = explain(found, "chip.memory")
    assert [row.place for row in both.rows].count("chip.memory") == 2
