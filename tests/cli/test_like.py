"""Commands that start from an earlier plan, and from the layout that a person has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

REAL = Path(__file__).parents[1] / "report" / "real.json"


def test_a_plan_s_question_is_asked_again(planner: Any) -> None:
    assert main(["plan", "--like", str(REAL)]) == 0
    assert planner.question == planner.Question(
        model="llama-3-8b", cluster="h100-sxm:32", global_batch=256, seq_len=4096, pins=("pp=2",)
    )


def test_what_was_minimised_is_kept(planner: Any, tmp_path: Path) -> None:
    text = REAL.read_text()
    path = tmp_path / "plan.json"
    path.write_text(text.replace('"pins"', '"objective": "cost-per-token", "pins"', 1))
    assert main(["plan", "--like", str(path)]) == 0
    assert planner.question.objective == "cost-per-token"
    assert main(["plan", "--like", str(path), "--objective", "step-time"]) == 0
    assert planner.question.objective == "step-time"


def test_what_is_stated_wins(planner: Any) -> None:
    line = [
        "plan",
        "--like",
        str(REAL),
        "-c",
        "b200:8",
        "-t",
        "torchtitan",
        "-b",
        "512",
        "--pin",
        "tp=2",
    ]
    assert main([*line, "--set", "vocab_size=5"]) == 0
    assert planner.question == planner.Question(
        model="llama-3-8b",
        cluster="b200:8",
        trainer="torchtitan",
        global_batch=512,
        base_batch=256,
        seq_len=4096,
        pins=("tp=2",),
        overrides={"vocab_size": "5"},
    )


def test_a_plan_whose_numbers_were_edited_is_priced_again(
    planner: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the refusal of such a file advises."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(REAL.read_text()) | {"step": 1.0}))
    assert main(["explain", str(path)]) == 2
    assert f"shardwright price --like {path}" in capsys.readouterr().err
    assert main(["price", "--like", str(path)]) == 0
    assert planner.layout["pp"] == 2


def test_a_plan_s_layout_is_priced_again(planner: Any) -> None:
    assert main(["price", "--like", str(REAL), "--set", "tp=4,dp=4", "-s", "2048"]) == 0
    assert planner.question.seq_len == 2048
    assert planner.layout["tp"] == 4
    assert planner.layout["dp"] == 4
    assert planner.layout["pp"] == 2
    assert "shard-group" not in planner.layout
    assert planner.layout["order"] == "tp-cp-pp-dp"


def test_on_another_cluster_dp_is_what_is_left(planner: Any) -> None:
    assert main(["price", "--like", str(REAL), "-c", "h100-sxm:64"]) == 0
    assert planner.question.cluster == "h100-sxm:64"
    assert planner.layout["pp"] == 2
    assert {"dp", "shard-group", "order"}.isdisjoint(planner.layout)


def test_a_layout_that_a_person_has(planner: Any) -> None:
    assert main(["plan", "m", "-c", "c", "--warm-start", "tp=8,pp=4,recompute=full"]) == 0
    assert planner.question.warm_start == {"tp": 8, "pp": 4, "recompute": "full"}
    assert main(["plan", "m", "-c", "c", "--warm-start", str(REAL)]) == 0
    assert planner.question.warm_start["pp"] == 2
    assert planner.question.warm_start["zero"] == "ZeRO-1"


def test_studies_start_from_a_plan_too(planner: Any) -> None:
    assert main(["compare", "--like", str(REAL), "--chips", "8,16"]) == 0
    assert planner.asked["clusters"] == ["h100-sxm:32"]
    assert planner.question.model == "llama-3-8b"
    assert planner.question.pins == ("pp=2",)
    assert main(["size", "--like", str(REAL), "-c", "a100-sxm-80gb"]) == 0
    assert planner.question.cluster == "a100-sxm-80gb"
    assert planner.question.seq_len == 4096


def test_a_recipe_stated_now_wins_over_what_the_plan_was_asked(
    planner: Any, tmp_path: Path
) -> None:
    """Its keys stand in place of the plan's flags; the others stay, and flags stated now win over both."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seq_len: 2048\nglobal_batch: 64\n")
    assert main(["plan", "--like", str(REAL), "--recipe", str(recipe)]) == 0
    question = planner.question
    assert (question.recipe_file, question.seq_len, question.global_batch) == (recipe, None, None)
    assert question.pins == ("pp=2",)
    assert main(["plan", "--like", str(REAL), "--recipe", str(recipe), "--seq-len", "1024"]) == 0
    assert planner.question.seq_len == 1024
