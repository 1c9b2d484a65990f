"""Every rule against its own table of cases, and what must hold of all rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from ruamel.yaml import YAML

from planner.candidates import Candidates, concatenate, single
from planner.trainers.registry import TRAINERS
from planner.trainers.rules import RULES, STEPS, allowed, broken, choose, step_of
from planner.trainers.trainer import FAMILIES, Rule, Task

FIXTURES = Path(__file__).parents[1] / "fixtures" / "rules"
COLUMNS = {field.name for field in fields(Candidates)} - {"operators"}
DECIDED = (
    "B01 B02 B04 B08 B11 B13 B15 B16 B17 B18 B19 B21 B22 B25 B26 B28 B29 B30 B33 B35".split()  # noqa: SIM905
)
"""Reported cases that rules decide."""


def load(rule: Rule) -> list[dict[str, Any]]:
    path = FIXTURES / f"{rule.name}.yaml"
    return cast(list[dict[str, Any]], YAML(typ="safe").load(path)["cases"]) if path.exists() else []


CASES = [(rule, case) for rule in RULES for case in load(rule)]


def case_id(item: tuple[Rule, dict[str, Any]]) -> str:
    return f"{item[0].name}-{item[1].get('id', 'x')}"


def as_list(value: bool | list[bool]) -> list[bool]:
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("item", CASES, ids=case_id)
def test_case(
    item: tuple[Rule, dict[str, Any]],
    task_of: Callable[[dict[str, Any]], Task],
    rows_of: Callable[[dict[str, Any]], Candidates],
) -> None:
    rule, case = item
    task, rows = task_of(case), rows_of(case["layout"])
    keeps = rule.keeps(task, rows)
    assert keeps.tolist() == as_list(case["keeps"])
    if "fault" in case or "code" in case:
        fault = rule.fault(task, rows)
        for fragment in case.get("fault", ()):
            assert fragment in str(fault)
        assert fault.code == case.get("code", fault.code)


def test_every_rule_has_cases_each_way() -> None:
    assert len(RULES) > 30
    assert {path.stem for path in FIXTURES.glob("*.yaml")} == {rule.name for rule in RULES}
    for rule in RULES:
        verdicts = {verdict for case in load(rule) for verdict in as_list(case["keeps"])}
        assert verdicts == {True, False}, rule.name
        assert any("fault" in case for case in load(rule)), rule.name


def test_reported_cases_are_decided() -> None:
    assert sorted({case["id"] for _, case in CASES if "id" in case}) == sorted(DECIDED)


class Only:
    """Candidates that show some columns and complain about the others; remembers what was read."""

    def __init__(self, rows: Candidates, columns: frozenset[str]) -> None:
        self.rows, self.columns, self.read = rows, columns, set[str]()

    def __getattr__(self, name: str) -> Any:
        if name in COLUMNS:
            assert name in self.columns, f"{name} is not in needs"
            self.read.add(name)
            return getattr(self.rows, name)
        value = getattr(Candidates, name)
        return value.fget(self) if isinstance(value, property) else value.__get__(self)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_needs_are_exact(
    rule: Rule,
    task_of: Callable[[dict[str, Any]], Task],
    rows_of: Callable[[dict[str, Any]], Candidates],
) -> None:
    read = set[str]()
    for case in load(rule):
        only = Only(rows_of(case["layout"]), rule.needs)
        rule.keeps(task_of(case), cast(Candidates, only))
        read |= only.read
    assert read == rule.needs


def random_rows(count: int, seed: int = 7) -> Candidates:
    """Layouts of all kinds, most of them wrong."""
    rng = np.random.default_rng(seed)
    degrees = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "shard_group")
    values = [1, 1, 1, 2, 2, 3, 4, 5, 6, 8, 12, 16]
    rows = [
        single(
            **{name: int(rng.choice(values)) for name in degrees},
            sharding=int(rng.integers(4)),
            recompute=int(rng.integers(3)),
            schedule=int(rng.integers(3)),
            order=int(rng.integers(2)),
            sp=int(rng.integers(2)),
        )
        for _ in range(count)
    ]
    return concatenate(rows)


MODELS: list[dict[str, Any]] = [
    {"heads": 12, "kv_heads": 4, "layers": 10, "ffn": 3000, "vocab": 50257, "tied": True},
    {"experts": 24, "layers": 12, "heads": 16, "latent": True, "shared_ffn": 1000},
]
RECIPES = [
    {"global_batch": 60, "seq": 1000, "precision": "fp8"},
    {"global_batch": 48, "seq": 96, "fused_attention": False},
]


@pytest.mark.parametrize("trainer", [trainer.name for trainer in TRAINERS])
@pytest.mark.parametrize("model", MODELS, ids=["dense", "experts"])
@pytest.mark.parametrize("recipe", RECIPES, ids=["fp8", "unfused"])
def test_tables_equal_their_rows_and_every_fault_can_be_told(
    trainer: str,
    model: dict[str, Any],
    recipe: dict[str, Any],
    task_of: Callable[[dict[str, Any]], Task],
) -> None:
    task = task_of({"trainer": trainer, "model": model, "recipe": recipe, "chips": 24})
    rows = random_rows(60)
    for rule in RULES:
        keeps = rule.keeps(task, rows)
        assert keeps.shape == (len(rows),)
        assert keeps.dtype == np.bool_
        for index in range(len(rows)):
            row = rows.take(slice(index, index + 1))
            assert rule.keeps(task, row)[0] == keeps[index], rule.name
            if not keeps[index]:
                fault = rule.fault(task, row)
                assert re.fullmatch(r"[A-Z]\d\d", fault.code)
                assert fault.what.endswith(".")
                assert fault.fix or fault.code.startswith("D"), rule.name
                assert all(line and len(line) < 120 for line in fault.fix), rule.name


def test_allowed_is_every_rule(task_of: Callable[[dict[str, Any]], Task]) -> None:
    task, rows = task_of({"chips": 4, "model": {"heads": 12, "kv_heads": 4}}), random_rows(400)
    keeps = allowed(task, rows)
    for index in range(0, len(rows), 7):
        row = rows.take(slice(index, index + 1))
        assert keeps[index] == (not broken(task, row))
    assert allowed(task, single(dp=2, tp=2))[0]


@pytest.mark.parametrize("seq", [8, 12, 16, 24, 30, 36, 48, 60])
def test_token_grain_is_that_of_cutting_by_hand(
    seq: int, task_of: Callable[[dict[str, Any]], Task]
) -> None:
    """Cut into 2 · cp chunks, give two to each rank, cut a rank's tokens again by tp."""
    task = task_of({"recipe": {"seq": seq}})
    ring, shards = choose("ring-chunks", "token-shards")
    for cp in (1, 2, 3, 4):
        for tp in (2, 3, 4, 6):
            chunks = cp if cp == 1 else 2 * cp
            by_hand = seq % chunks == 0 and (seq // cp) % tp == 0
            row = single(tp=tp, cp=cp, sp=1)
            assert (ring.keeps(task, row)[0] and shards.keeps(task, row)[0]) == by_hand


def test_rules_are_ordered_named_once_and_sourced() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert [step_of(rule) for rule in RULES] == sorted(step_of(rule) for rule in RULES)
    assert frozenset.union(*STEPS) == COLUMNS
    for rule in RULES:
        assert rule.needs
        assert rule.needs <= COLUMNS
        assert rule.family in FAMILIES
        assert rule.sentence.endswith(".")
        assert rule.source


def test_choose_refuses_unknown_names() -> None:
    assert [rule.name for rule in choose("chips", "heads")] == ["heads", "chips"]
    with pytest.raises(ValueError, match="no rule named"):
        choose("haeds")
