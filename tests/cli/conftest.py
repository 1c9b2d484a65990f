"""The planner behind the command line, replaced by one that answers what a test wants."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from planner.output.write import export, write
from planner.plan.asked import Asked
from planner.plan.findings import Comparison, Largest, Sizing
from planner.plan.read import read_plan
from planner.plan.schema import NoPlan, Plan
from planner.search.engine import Progress
from planner.studies.explain import explain

FIXTURES = Path(__file__).parents[1] / "report"


@dataclass(frozen=True)
class Question:
    model: str
    cluster: str
    trainer: str = "megatron"
    global_batch: int | str | None = None
    seq_len: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    recipe_file: Path | None = None
    memory_limit: str | None = None
    what_if: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    objective: str = "step-time"
    time_limit: float = 60.0
    top: int = 5
    overrides: dict[str, str] = field(default_factory=dict)
    figures: bool = False
    warm_start: dict[str, int | str] = field(default_factory=dict)
    base_batch: int | None = None
    folders: tuple[Path, ...] = ()

    @classmethod
    def again(cls, asked: Asked) -> Question:
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in asked.model_dump().items() if name in names})


@dataclass(frozen=True)
class Found:
    text: str = "name: h100-sxm  # the data sheet"
    data: dict[str, str] = field(default_factory=lambda: {"name": "h100-sxm"})


class Planner:
    """Answers with ``answer``, or raises it; remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Plan | NoPlan | BaseException = read_plan(FIXTURES / "dense.json")
        self.question: Question | None = None
        self.layout: dict[str, int | str] | None = None
        self.asked: dict[str, Any] = {}
        self.old = ""
        self.progress: list[Progress] = []
        self.seconds = 0.0
        self.Question = Question

    def plan(
        self,
        question: Question,
        progress: Callable[[Progress], None] | None = None,
        *,
        remedies: bool = True,
    ) -> Any:
        self.question = question
        for state in self.progress:
            assert progress is not None
            progress(state)
        time.sleep(self.seconds)
        return self._answer()

    def price(
        self, question: Question, layout: dict[str, int | str], *, usual: bool = False
    ) -> Any:
        self.question, self.layout = question, layout
        return self._answer()

    def compare(self, question: Question, **asked: Any) -> Comparison:
        self.question, self.asked = question, asked
        return Comparison.model_validate_json((FIXTURES / "comparison.json").read_text())

    def size(self, question: Question, **asked: Any) -> Sizing | Largest:
        self.question, self.asked = question, asked
        if asked["largest"] is not None:
            return Largest.model_validate_json((FIXTURES / "largest.json").read_text())
        return Sizing.model_validate_json((FIXTURES / "sizing.json").read_text())

    def _answer(self) -> Plan | NoPlan:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def list_names(self, kind: str) -> list[dict[str, Any]]:
        return [
            {"name": "h100-sxm", "GiB": 80, "source": kind},
            {"name": "a910b", "GiB": 64, "source": "s"},
        ]

    def show(self, name: str) -> Found:
        return Found()

    def schema(self, kind: str) -> dict[str, Any]:
        return {"title": kind}


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Planner]:
    fake = Planner()
    module = types.ModuleType("planner.api")
    for name in ("Question", "plan", "price", "compare", "size", "show"):
        setattr(module, name, getattr(fake, name))
    for real in (explain, export, read_plan, write):
        setattr(module, real.__name__, real)
    for name in ("list_names", "schema"):
        monkeypatch.setattr(f"planner.known.{name}", getattr(fake, name))
    monkeypatch.setattr("planner.studies.again.staleness", lambda plan, name: fake.old)
    monkeypatch.setattr(
        "planner.studies.neighbours.neighbours", lambda *_: fake.compare(fake.question)
    )
    monkeypatch.setitem(sys.modules, "planner.api", module)
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    return fake


@pytest.fixture
def no_plan() -> NoPlan:
    return NoPlan.model_validate_json((FIXTURES / "no_plan.json").read_text())
