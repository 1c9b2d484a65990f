"""What a refusal calls nearest can be had: pins followed one after another lead to a file."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner.api import Question, price
from planner.errors import PlannerError
from planner.export.refusal import LEVELS
from planner.export.targets import TARGETS, export
from planner.trainers.registry import TRAINERS

ASKED: dict[str, tuple[str, str, str, int]] = {
    "megatron": ("llama-3-8b", "h100-sxm:32", "tp=2,pp=2,cp=2", 8192),
    "megatron-experts": ("qwen3-30b-a3b", "h100-sxm:32", "tp=2,ep=8,pp=2", 4096),
    "torchtitan": ("llama-3-8b", "h100-sxm:32", "pp=4,vpp=2,schedule=zbv,zero=2,tp=2", 8192),
    "fsdp": ("llama-3-8b", "h100-sxm:16", "cp=2,zero=2,shard-group=8", 8192),
    "deepspeed": ("llama-3-8b", "h100-sxm:16", "cp=2,zero=2", 8192),
    "deepspeed-layers": ("llama-3-8b", "h100-sxm:16", "tp=2,zero=1", 8192),
    "mindspore": ("llama-3-8b", "a910b:24", "tp=2,pp=3", 4096),
    "mindspore-experts": ("qwen3-30b-a3b", "a910b:32", "tp=2,ep=8,pp=2", 4096),
}
"""Name, that of the trainer first, to model, cluster, layout and sequence."""
CASES = [
    (name, target.name)
    for name in ASKED
    for target in TARGETS
    if name.partition("-")[0] in (target.trainers or tuple(LEVELS))
]


@pytest.mark.parametrize(("name", "to"), CASES)
def test_nearest_plans_can_be_made_and_written(name: str, to: str) -> None:
    model, cluster, words, seq = ASKED[name]
    trainer = name.partition("-")[0]
    question = Question(model=model, cluster=cluster, trainer=trainer, global_batch=96, seq_len=seq)
    question = replace(question, global_batch=96 if cluster.endswith("24") else 128)
    layout: dict[str, int | str] = dict(pair.split("=") for pair in words.split(","))
    told = []
    for _ in range(5):
        try:
            assert export(price(question, layout), to)
        except PlannerError as error:
            told.append(str(error))
            fixes = " ".join(fix for fault in error.faults for fix in fault.fix)
            pins = re.findall(r"--pin ([\w-]+)=([\w+-]*\w)", fixes)
            other = re.search(r"--to (\w+)", fixes)
            assert pins or other, told
            to = other[1] if other and not pins else to
            layout |= dict(reversed(pins))
            if str(layout.get("pp", 1)) == "1":
                layout = {key: v for key, v in layout.items() if key not in ("vpp", "schedule")}
        else:
            return
    pytest.fail("\n".join(told))


def test_levels_and_names_are_those_of_the_trainers() -> None:
    assert {trainer.name: trainer.shardings for trainer in TRAINERS} == LEVELS
    assert {name for target in TARGETS for name in target.trainers} == LEVELS.keys()


def test_a_plan_for_another_trainer_is_told_what_to_plan_for() -> None:
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:16", trainer="megatron", global_batch=64, seq_len=4096
    )
    with pytest.raises(PlannerError) as caught:
        export(price(question, {"tp": 2, "pp": 2}), "torchtitan")
    last = caught.value.faults[-1]
    assert "for megatron" in last.what
    assert last.fix == ("Nearest that it can: shardwright plan … --trainer torchtitan.",)
