"""Layouts at random, exported and read back: the file means the plan, or the plan is refused and nothing is written."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from planner.api import Question, check, price
from planner.api import plan as find
from planner.errors import PlannerError
from planner.export.targets import export
from planner.export.view import View
from planner.plan.schema import Plan

TRAINERS: dict[str, tuple[str, str, dict[str, list[int | str]]]] = {
    "megatron": ("megatron", "megatron.sh", {
        "tp": [1, 2, 4], "pp": [1, 2, 4], "vpp": [1, 2], "cp": [1, 2], "ep": [1, 4], "mbs": [1, 2],
        "zero": [0, 1], "recompute": ["none", "full", "selective"], "sp": ["on", "off"],
    }),
    "torchtitan": ("torchtitan", "shardwright_plan.py", {
        "tp": [1, 2, 4], "pp": [1, 2, 4], "vpp": [1, 2], "cp": [1, 2], "ep": [1, 4], "mbs": [1, 2],
        "zero": [2, 3], "recompute": ["none", "full"], "schedule": ["1f1b", "interleaved", "gpipe", "zbv"],
    }),
    "mindspore": ("mindformers", "mindformers.yaml", {
        "tp": [1, 2, 4], "pp": [1, 2, 4], "vpp": [1, 2], "cp": [1, 2], "ep": [1, 4], "mbs": [1, 2],
        "zero": [0, 1], "recompute": ["none", "full"],
    }),
    "fsdp": ("accelerate", "accelerate.yaml", {
        "cp": [1, 2], "mbs": [1, 2], "zero": [2, 3], "recompute": ["none", "full"], "shard-group": [8, 32],
    }),
    "deepspeed": ("deepspeed", "deepspeed.json", {
        "tp": [1, 2, 4], "cp": [1, 2, 4], "mbs": [1, 2], "zero": [1, 2, 3], "recompute": ["none", "full"],
    }),
}  # fmt: skip
"""Format, its file, and what layouts are drawn from."""
MODELS = {"llama-3-8b": 4096, "qwen3-30b-a3b": 4096}
DRAWS = 40
LEFT_OPEN = {
    "megatron": (), "torchtitan": ("model",), "mindspore": (), "fsdp": ("model", "batch", "seq"),
    "deepspeed": ("model", "seq"),
}  # fmt: skip
"""What a format does not say."""


def drawn(trainer: str) -> list[tuple[Question, dict[str, int | str]]]:
    chance = random.Random(trainer)
    choices = TRAINERS[trainer][2]
    found = []
    for _ in range(DRAWS):
        model = chance.choice(list(MODELS))
        layout = {key: chance.choice(values) for key, values in choices.items()}
        if layout.get("ep", 1) != 1 and model == "llama-3-8b":
            layout["ep"] = 1
        if layout.get("pp") == 1:
            layout.pop("schedule", None)
        cluster = "a910b:32" if trainer == "mindspore" else "h100-sxm:32"
        question = Question(
            model=model, cluster=cluster, trainer=trainer, global_batch=128, seq_len=MODELS[model]
        )
        found.append((question, layout))
    return found


def exported(question: Question, layout: dict[str, int | str], to: str) -> Plan | None:
    """The plan of a layout that its trainer and the format can hold."""
    try:
        plan = price(question, layout)
        export(plan, to)
    except PlannerError:
        return None
    return plan


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_exported_is_read_back(trainer: str, tmp_path: Path) -> None:
    to, name, _ = TRAINERS[trainer]
    count = 0
    for question, layout in drawn(trainer):
        plan = exported(question, layout, to)
        if plan is None:
            continue
        count += 1
        for file in export(plan, to):
            (tmp_path / file.name).write_text(file.text)
        open_ = LEFT_OPEN[trainer]
        asked = replace(
            question,
            trainer=None,
            model=question.model if "model" in open_ else "",
            global_batch=question.global_batch if "batch" in open_ else None,
            seq_len=question.seq_len if "seq" in open_ else None,
        )
        found = check(tmp_path / name, asked, search=False)
        assert not found.broken, (layout, found.broken)
        assert not found.silent, (layout, found.silent)
        assert found.plan is not None
        assert same(found.plan, plan, trainer), layout
    assert count >= 8, "too few layouts could be exported to mean anything"


def same(found: Plan, plan: Plan, trainer: str) -> bool:
    """The layouts are equal; where the format says all of the recipe the predictions are too."""
    if trainer == "fsdp":
        keys = ("dp", "tp", "pp", "cp", "sharding", "shard_group", "offload")
        return all(getattr(found.degrees, k) == getattr(plan.degrees, k) for k in keys)
    open_ = dict.fromkeys(("layers", "full_layers", "selective_layers"), ())
    return found.degrees.model_copy(update=open_) == plan.degrees.model_copy(
        update=open_
    ) and found.step == pytest.approx(plan.step, rel=1e-3)


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "mindspore"])
def test_uneven_chunks(trainer: str, tmp_path: Path) -> None:
    """Four chunks of two stages, of different numbers of layers, in the order in which a token meets them."""
    to, name, _ = TRAINERS[trainer]
    cluster = "a910b:8" if trainer == "mindspore" else "h100-sxm:8"
    question = Question(
        model="llama-3-8b", cluster=cluster, trainer=trainer, global_batch=32, seq_len=4096
    )
    schedule: dict[str, int | str] = {"schedule": "interleaved"} if trainer == "torchtitan" else {}
    layout = {"tp": 2, "pp": 2, "vpp": 2, "stage-layers": "9+8+8+7", "recompute": "full"} | schedule
    plan = price(question, layout)
    assert plan.degrees.layers == (9, 8, 8, 7)
    assert [stage.layers for stage in plan.stages] == [("0-8", "17-24"), ("9-16", "25-31")]
    for file in export(plan, to):
        (tmp_path / file.name).write_text(file.text)
    model = question.model if trainer == "torchtitan" else ""
    found = check(tmp_path / name, replace(question, trainer=None, model=model), search=False)
    assert found.stages == (9, 8, 8, 7)
    assert found.plan is not None
    assert found.plan.degrees.layers == plan.degrees.layers
    assert found.plan.step == pytest.approx(plan.step, rel=1e-6)


@pytest.mark.parametrize(("trainer", "to", "name", "wanted"), [
    ("megatron", "megatron", "megatron.sh", "--optimizer-offload-fraction 0.5"),
    ("deepspeed", "deepspeed", "deepspeed.json", '"ratio": 0.5'),
])  # fmt: skip
def test_a_share_of_the_optimizer_in_host_memory(
    trainer: str, to: str, name: str, wanted: str, tmp_path: Path
) -> None:
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:8", trainer=trainer, global_batch=32, seq_len=4096
    )
    layout: dict[str, int | str] = {"zero": 3 if trainer == "deepspeed" else 1, "recompute": "none"}
    plan = price(question, layout | {"offload": "optimizer-50%"})
    for file in export(plan, to):
        (tmp_path / file.name).write_text(file.text)
    assert wanted in (tmp_path / name).read_text()
    asked = replace(question, trainer=None)
    found = check(tmp_path / name, asked, search=False)
    assert found.plan is not None
    assert found.plan.degrees.offload == "optimizer-50%"


@pytest.mark.parametrize(
    ("model", "layout", "depth", "added"),
    [
        ("deepseek-v3", {"pp": 8, "tp": 4, "ep": 16, "dp": 16}, 64, 3),
        ("qwen3-235b-a22b", {"pp": 4, "vpp": 3, "tp": 4, "ep": 32, "dp": 32}, 96, 2),
    ],
)
def test_depths_are_padded_with_empty_layers(
    model: str, layout: dict[str, int | str], depth: int, added: int, tmp_path: Path
) -> None:
    """Case B33 (MindSpeed-LLM's examples): 61 layers run as 64 on 8 stages, 94 as 96 on 4 stages of 3 chunks."""
    question = Question(
        model=model, cluster="a910b:512", trainer="mindspeed", global_batch=512, seq_len=4096
    )
    even = {"sp": "on", "recompute": "full", "zero": 1}
    plan = price(question, layout | even)
    (told,) = [text for text in plan.warnings if "empty layer" in text]
    assert told.startswith(
        f"{added} empty layers fill the {depth - added} layers up to {depth}, 8 a"
    )
    for file in export(plan, "mindspeed"):
        (tmp_path / file.name).write_text(file.text)
    lines = (tmp_path / "mindspeed.sh").read_text().splitlines()
    (idle,) = [line.split()[1].split(",") for line in lines if "--noop-layers" in line]
    assert f"  --num-layers {depth}" in lines
    assert len(idle) == added
    assert max(map(int, idle)) < depth
    asked = replace(question, trainer=None, model="")
    found = check(tmp_path / "mindspeed.sh", asked, search=False)
    assert found.plan is not None
    assert found.plan.trainer == "mindspeed"
    assert found.stages is not None
    assert sum(found.stages) == depth - added
    assert found.stages == tuple(len(chunk) for chunk in View(plan).visits)
    assert found.plan.step == pytest.approx(plan.step, rel=1e-6)


def test_a_search_pads_only_where_the_trainer_does() -> None:
    """61 layers on 8 stages: MindSpeed fills chunks of a stage with empty layers, Megatron says what each holds."""
    question = Question(
        model="deepseek-v3", cluster="a910b:512", trainer="mindspeed", global_batch=512,
        seq_len=4096, pins=("pp=8", "ep=16", "mbs=1", "tp=4", "vpp>=2", "recompute=full"),
    )  # fmt: skip
    plan = find(question)
    assert isinstance(plan, Plan)
    assert plan.degrees.vpp in range(2, 8)
    assert any("empty layer" in text for text in plan.warnings)
    stated = find(replace(question, trainer="megatron"))
    assert isinstance(stated, Plan)
    assert not any("empty layer" in text for text in stated.warnings)
    held = [len(chunk) for chunk in View(stated).visits]
    assert (len(held), sum(held), len(set(held)) > 1) == (8 * stated.degrees.vpp, 61, True)
    assert "--pipeline-model-parallel-layout" in export(stated, "megatron")[0].text


def test_stages_on_different_chips(tmp_path: Path) -> None:
    """The file says which nodes come first; what measures is left out, since its rows have one chip."""
    question = Question(
        model="llama-3-8b",
        cluster="a100-sxm-80gb:32 + h100-sxm:32",
        trainer="megatron",
        global_batch=512,
        seq_len=8192,
        top=1,
    )
    plan = find(question)
    assert isinstance(plan, Plan)
    first, last = plan.degrees.pools
    assert {first, last} == {"a100-sxm-80gb", "h100-sxm"}
    files = {file.name: file.text for file in export(plan, "megatron")}
    assert "remeasure.sh" not in files
    head = files["megatron.sh"].partition("PLAN_CHIPS")[0]
    assert f"start ranks 0-31 on {first}, 32-63 on {last}" in head
    (tmp_path / "megatron.sh").write_text(files["megatron.sh"])
    alike = Question(model="", cluster="h100-sxm:64")
    found = check(tmp_path / "megatron.sh", alike, search=False)
    assert found.stages == plan.degrees.layers
    inside = plan.model_copy(
        update={"degrees": plan.degrees.model_copy(update={"order": ("tp", "cp", "pp", "dp")})}
    )
    with pytest.raises(PlannerError, match="stages on different chips inside data parallelism"):
        export(inside, "megatron")
