"""The trainers as data: names, references into the graph, and what they say of stated layouts."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.candidates import SHARDING, Candidates
from planner.errors import PlannerError
from planner.planning import plan
from planner.question import Question, understand
from planner.trainers import wording
from planner.trainers.registry import TRAINERS, faults, get_trainer, notes
from planner.trainers.rules import RULES, pipeline
from planner.trainers.rules.sizes import splits
from planner.trainers.trainer import EVERY_SECOND, EVERYTHING, Task, Trainer

MakeTask = Callable[[dict[str, Any]], Task]
MakeRows = Callable[[dict[str, Any]], Candidates]


def test_examples_in_docstrings() -> None:
    results = [doctest.testmod(module) for module in (wording, pipeline)]
    assert all(result.attempted and not result.failed for result in results)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("megatron", "megatron"),
        ("Megatron-LM", "megatron"),
        ("megatron_core", "megatron"),
        ("titan", "torchtitan"),
        ("DeepSpeed", "deepspeed"),
        ("zero", "deepspeed"),
        ("accelerate", "fsdp"),
        ("mindformers", "mindspore"),
        ("MindSpeed-LLM", "mindspeed"),
    ],
)
def test_names_and_aliases(name: str, expected: str) -> None:
    assert get_trainer(name).name == expected


def test_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(PlannerError) as caught:
        get_trainer("megatorn")
    (fault,) = caught.value.faults
    assert fault.code == "T02"
    assert "no trainer named 'megatorn'. Nearest: megatron" in fault.what
    assert "megatron, torchtitan, fsdp, deepspeed, mindspore and mindspeed" in fault.fix[0]


def test_no_name_is_used_twice() -> None:
    names = [name for trainer in TRAINERS for name in (trainer.name, *trainer.aliases)]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and "_" not in name for name in names)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_trainer_refers_to_what_exists(trainer: Trainer, task_of: MakeTask) -> None:
    models = [
        task_of({"model": facts, "recipe": {"fused_attention": fused}}).model
        for facts in ({}, {"experts": 8, "shared_ffn": 64}, {"latent": True})
        for fused in (True, False)
    ]
    operators = [op for model in models for block in model.all_blocks() for op in block.operators]
    dims = {dim for model in models for block in model.all_blocks() for dim in block.sizes}
    tags = {tag for op in operators for tag in op.tags}
    assert {dim for role in trainer.roles.values() for dim in role} <= dims
    used = frozenset.union(*trainer.recompute.values(), trainer.recompute_unfused)
    assert used - {EVERYTHING, EVERY_SECOND} <= tags
    assert set(trainer.roles) - {"edp", "etp"} <= trainer.axes
    assert all(set(order) == {"dp", "cp", "tp", "pp"} for order in trainer.orders)
    assert set(trainer.shardings) <= set(range(len(SHARDING)))
    assert all(part.source for part in (trainer.memory, trainer.overlap, trainer.overhead, trainer))


def test_every_rule_belongs_to_some_trainer() -> None:
    used = {rule.name for trainer in TRAINERS for rule in trainer.rules}
    assert used == {rule.name for rule in RULES}


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_every_split_dim_is_guarded(trainer: Trainer, task_of: MakeTask) -> None:
    """What an axis splits either has a rule, or the trainer splits it unevenly."""
    task = task_of({"trainer": trainer.name, "model": {"experts": 8, "shared_ffn": 64}})
    names = {rule.name for rule in trainer.rules}
    guards = {
        "heads": "heads",
        "kv_heads": "kv-heads",
        "ffn": "widths",
        "shared_ffn": "widths",
        "vocab": "widths",
        "experts": "experts",
        "expert_ffn": "expert-widths",
    }
    for axis in ("tp", "ep", "etp"):
        for dim, _ in splits(task, axis):
            whole = axis == "etp" and "whole-experts" in names
            assert guards[dim] in names or dim in trainer.uneven or whole, dim


def test_selective_recompute_takes_the_core_only_where_scores_are_kept() -> None:
    megatron = get_trainer("megatron")
    assert "core" not in megatron.recomputed("selective", fused=True)
    assert "core" in megatron.recomputed("selective", fused=False)
    assert megatron.recomputed("full", fused=False) == {"*"}
    assert megatron.recomputed("none", fused=False) == frozenset()


@pytest.mark.parametrize(
    ("vocab", "tp", "rows"), [(32000, 2, 32000), (32003, 2, 32256), (50257, 8, 51200)]
)
def test_padded_vocabulary_is_noted(
    vocab: int, tp: int, rows: int, task_of: MakeTask, rows_of: MakeRows
) -> None:
    """B26: the padded vocabulary depends on tp, so a checkpoint may not fit another tp."""
    task = task_of({"model": {"vocab": vocab}})
    assert task.trainer.padded_vocab(vocab, tp) == rows
    said = " ".join(notes(task, rows_of({"tp": tp})))
    assert (f"from {vocab} to {rows} with tp {tp}" in said) == (rows != vocab)
    assert get_trainer("mindspore").padded_vocab(vocab, tp) == vocab


def test_faults_name_the_trainers_that_can(task_of: MakeTask, rows_of: MakeRows) -> None:
    row = rows_of({"dp": 2, "pp": 4, "sharding": "ZeRO-3"})
    (fault,) = faults(task_of({"chips": 8}), row)
    assert fault.code == "T01"
    assert fault.fix[-1] == "Trainers that can: torchtitan."


def test_several_faults_come_together(task_of: MakeTask, rows_of: MakeRows) -> None:
    task = task_of(
        {"chips": 8, "model": {"heads": 12, "kv_heads": 4}, "recipe": {"global_batch": 50}}
    )
    found = faults(task, rows_of({"dp": 4, "tp": 8, "pp": 8}))
    assert [fault.code for fault in found] == ["D02", "D02", "P01", "D01", "B01"]


def test_a_good_layout_has_no_faults(task_of: MakeTask, rows_of: MakeRows) -> None:
    row = rows_of({"dp": 2, "tp": 2, "pp": 2, "sp": True, "sharding": "ZeRO-1"})
    assert faults(task_of({"chips": 8}), row) == ()


@pytest.mark.parametrize(
    ("trainer", "cluster", "precision", "able"),
    [
        ("mindspeed", "h100-sxm:8", "bf16", "megatron, torchtitan, fsdp and deepspeed"),
        ("mindspore", "tpu-v5p:4", "bf16", "torchtitan, fsdp and deepspeed"),
        ("mindspore", "h100-sxm:8", "fp8", "megatron, torchtitan, fsdp and deepspeed"),
    ],
)
def test_a_trainer_is_refused_where_it_does_not_run(trainer, cluster, precision, able) -> None:
    asked = Question(model="gpt2", cluster=cluster, trainer=trainer, precision=precision)
    with pytest.raises(PlannerError) as caught:
        understand(asked)
    (fault,) = caught.value.faults
    assert fault.code == "T03"
    assert fault.fix == (f"Trainers that do: {able}.",)


@pytest.mark.parametrize(
    ("trainer", "cluster", "port"),
    [
        ("megatron", "h100-sxm:8", ""),
        ("megatron", "ascend-910b2:8", "--trainer mindspeed"),
        ("mindspeed", "ascend-910b2:8", ""),
        ("mindspore", "h100-sxm:8", "CUDA 11.6"),
    ],
)
def test_what_runs_in_place_of_a_trainer_is_among_what_is_assumed(trainer, cluster, port) -> None:
    known = understand(Question(model="gpt2", cluster=cluster, trainer=trainer))
    told = [each.text for each in known.assumptions if each.key == "port"]
    assert len(told) == bool(port)
    assert all(port in text for text in told)


def test_virtual_stages_under_another_schedule_name_all_that_have_them() -> None:
    asked = Question(model="gpt2", cluster="h100-sxm:8", trainer="torchtitan", global_batch=64)
    with pytest.raises(PlannerError) as caught:
        plan(replace(asked, pins=("vpp=5", "schedule=1f1b")))
    (fault,) = caught.value.faults
    assert fault.fix == ("It can with interleaved or zb-h1.", "No other trainer can.")
