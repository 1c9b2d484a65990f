"""``export --like``: the plan's settings in a person's own file, and everything else as it was."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest
from plans import plan, stated
from test_read_back import SCRIPT

from planner.api import Question, check
from planner.errors import PlannerError
from planner.export.like import export_like
from planner.export.targets import export
from planner.frontends.launch.read import read_trainer_file


def touched(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line[1:] for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]


@pytest.mark.parametrize(
    "layout", ["tp=2,pp=4,recompute=full", "pp=4,vpp=2", "tp=8,zero=0", "pp=8,tp=2"]
)
def test_a_launch_script(layout: str, tmp_path: Path) -> None:
    answer = stated("llama-3-8b", "h100-sxm:16", "megatron", layout)
    found = export_like(answer, "megatron", "run.sh", SCRIPT)
    (tmp_path / "run.sh").write_text(found.text)
    back = read_trainer_file(tmp_path / "run.sh")
    d = answer.degrees
    said = {"tp": 1, "pp": 1, "dp": 1, "vpp": 1, "zero": 0} | dict(back.layout)
    assert [said[k] for k in ("tp", "pp", "dp", "vpp")] == [d.tp, d.pp, d.dp, d.vpp]
    assert said["recompute"] == d.recompute
    assert said["zero"] == (d.sharding == "ZeRO-1" and d.dp > 1)
    assert (said["sp"] == "on") == (d.sequence_parallel and d.tp > 1)
    assert f"TP=${{TP:-{d.tp}}}" in found.text or f"TP={d.tp}\n" in found.text
    lines = touched(SCRIPT, found.text)
    assert all("--" in line or line.startswith(("TP=", "PP=")) for line in lines), lines
    assert (
        "# Llama on two nodes; --tensor-model-parallel-size 1 in a comment is no option"
        in found.text
    )
    assert "--split 949,50,1" in found.text


def test_an_array_and_what_must_go(tmp_path: Path) -> None:
    script = SCRIPT.replace("    --bf16", "    --bf16").replace(
        "    --sequence-parallel \\\n",
        "    --sequence-parallel \\\n    --num-layers-per-virtual-pipeline-stage 4 \\\n",
    )
    answer = stated("llama-3-8b", "h100-sxm:16", "megatron", "tp=1,zero=1")
    text = export_like(answer, "megatron", "run.sh", script).text
    assert "--num-layers-per-virtual-pipeline-stage" not in text
    assert "--sequence-parallel" not in text
    (tmp_path / "run.sh").write_text(text)
    assert read_trainer_file(tmp_path / "run.sh").stages is None


def test_mindformers_keeps_comments(tmp_path: Path) -> None:
    before = export(plan("ascend"), "mindformers")[0].text
    before = before.replace(
        "parallel_config:\n", "parallel_config:  # as we ran it in May\n  # eight a node\n"
    )
    text = export_like(plan("ascend-selective"), "mindformers", "x.yaml", before).text
    assert "# as we ran it in May" in text
    assert "  # eight a node" in text
    (tmp_path / "x.yaml").write_text(text)
    d = plan("ascend-selective").degrees
    found = read_trainer_file(tmp_path / "x.yaml")
    assert (found.layout["tp"], found.layout["dp"], found.layout["recompute"]) == (
        d.tp,
        d.dp,
        d.recompute,
    )
    assert [line.split(":")[0].strip() for line in before.splitlines() if line[:1].isalpha()] == [
        line.split(":")[0].strip() for line in text.splitlines() if line[:1].isalpha()
    ]


def test_deepspeed_keeps_what_is_not_the_plan_s() -> None:
    before = {
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 1, "overlap_comm": False},
        "mine": 3,
    }
    text = export_like(plan("fsdp"), "deepspeed", "ds.json", json.dumps(before, indent=4)).text
    data = json.loads(text)
    assert data["zero_optimization"] == {"stage": 3, "overlap_comm": False}
    assert data["mine"] == 3
    assert data["train_batch_size"] == 64
    assert '\n    "fp16"' in text


def test_torchtitan_job_files(tmp_path: Path) -> None:
    before = (
        '[model]\nname = "llama3"\nflavor = "8B"\n\n[training]\nlocal_batch_size = 4  # what fits\nsteps = 9\n\n'
        "[parallelism]\ntensor_parallel_degree = 8\n\n[checkpoint]\nenable = true\n"
    )
    text = export_like(plan("titan"), "torchtitan-0.2", "job.toml", before).text
    assert "local_batch_size = 1  # what fits" in text
    assert "steps = 9" in text
    assert "[checkpoint]\nenable = true\n" in text
    (tmp_path / "job.toml").write_text(text)
    found = read_trainer_file(tmp_path / "job.toml")
    assert (found.layout["tp"], found.layout["dp"]) == (
        plan("titan").degrees.tp,
        plan("titan").degrees.dp,
    )


CLASSES = '''"""What we trained in May."""

from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.trainer import Trainer


def llama3_8b():
    return Trainer.Config(
        model=ours("8B"),  # é: our own tokenizer
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(
            data_parallel_shard_degree=8,  # one node
            tensor_parallel_degree=8,
        ),
        activation_checkpoint=SelectiveAC.Config(),
    )
'''
ASSIGNED = """from torchtitan.models.llama3.config_registry import llama3_8b as base


def plan():
    config = base()
    config.training.local_batch_size = 4  # what fits
    config.training.steps = 9
    config.parallelism.tensor_parallel_degree = 8
    config.parallelism.module_fqns_per_model_part = [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "norm", "lm_head"],
    ]
    config.activation_checkpoint = None
    return config
"""


UNSAID = {
    "classes": CLASSES,
    "assigned": ASSIGNED,
    "classes-unsaid": CLASSES.replace("        activation_checkpoint=SelectiveAC.Config(),\n", ""),
    "assigned-unsaid": ASSIGNED.replace("    config.activation_checkpoint = None\n", ""),
}


@pytest.mark.parametrize("before", UNSAID.values(), ids=UNSAID)
@pytest.mark.parametrize("name", ["titan", "titan-stages", "titan-hybrid", "titan-host"])
def test_torchtitan_modules(before: str, name: str, tmp_path: Path) -> None:
    text = export_like(plan(name), "torchtitan", "ours.py", before).text
    compile(text, "ours.py", "exec")
    (tmp_path / "ours.py").write_text(text)
    found, d = read_trainer_file(tmp_path / "ours.py"), plan(name).degrees
    layout = {"tp": 1, "pp": 1, "cp": 1, "offload": "none"} | dict(found.layout)
    assert [layout[k] for k in ("tp", "pp", "cp", "dp", "mbs", "recompute", "offload")] == [
        d.tp, d.pp, d.cp, d.dp, d.micro_batch, d.recompute, d.offload
    ]  # fmt: skip
    assert (found.chips, layout["zero"]) == (d.chips_used, int(d.sharding[-1]))
    for line in before.splitlines():
        if "#" in line:
            assert line.partition("#")[2] in text, "comments stay"
    assert ("steps=1000" if "steps=1000" in before else "config.training.steps = 9") in text
    if d.recompute == "full":
        assert "import FullAC\n" in text


def test_a_module_that_says_nothing_of_a_section() -> None:
    with pytest.raises(PlannerError, match="sets nothing of training"):
        export_like(plan("titan"), "torchtitan", "x.py", "activation_checkpoint = 3\n")


def test_accelerate_sizes(tmp_path: Path) -> None:
    before = export(plan("fsdp"), "accelerate")[0].text + "downcast_bf16: 'no'\n"
    text = export_like(plan("fsdp-hybrid"), "accelerate", "a.yaml", before).text
    assert "downcast_bf16: 'no'" in text
    (tmp_path / "a.yaml").write_text(text)
    assert read_trainer_file(tmp_path / "a.yaml").layout["shard-group"] == 8


@pytest.mark.parametrize(
    ("name", "to", "text", "phrase"),
    [
        ("titan", "torchtitan", "", "cannot be edited for torchtitan"),
        ("dense", "megatron", "echo --num-layers 3", "has no --tensor-model-parallel-size"),
    ],
)
def test_what_is_not_edited(name: str, to: str, text: str, phrase: str) -> None:
    with pytest.raises(PlannerError) as caught:
        export_like(plan(name), to, "run.sh", text)
    assert caught.value.faults[0].code == "W05"
    assert phrase in caught.value.faults[0].what


def test_what_cannot_be_held_is_refused_here_too() -> None:
    with pytest.raises(PlannerError) as caught:
        export_like(plan("titan"), "megatron", "run.sh", SCRIPT)
    assert {fault.code for fault in caught.value.faults} == {"W01"}


def test_a_script_that_says_the_plan_keeps_what_it_says(tmp_path: Path) -> None:
    """Values that are the plan's are not spelled anew, and what is usual is not written out."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    made = check(tmp_path / "run.sh", Question(model="", cluster="h100-sxm:16"), search=False).plan
    assert made is not None
    lines = touched(SCRIPT, export_like(made, "megatron", "run.sh", SCRIPT).text)
    gone = {line.strip(" \\") for line in lines if "--tensor-model-parallel-size ${TP}" in line}
    assert len(lines) == 2, "one line, before and after"
    old, new = sorted(gone, key=len)
    added = set(new.split()) - set(old.split())
    assert {word for word in added if word.startswith("--")} == {
        "--pipeline-model-parallel-layout", "--overlap-grad-reduce", "--overlap-param-gather",
        "--tp-comm-overlap",
    }  # fmt: skip
    again = export_like(
        made, "megatron", "run.sh", export_like(made, "megatron", "run.sh", SCRIPT).text
    )
    assert not touched(export_like(made, "megatron", "run.sh", SCRIPT).text, again.text)


def test_a_variable_s_default_stays_a_default() -> None:
    made = stated("llama-3-8b", "h100-sxm:16", "megatron", "tp=8,pp=2")
    text = export_like(made, "megatron", "run.sh", SCRIPT.replace("PP=2", 'PP="2"  # stages')).text
    assert "TP=${TP:-8}\n" in text
    assert 'PP="2"  # stages\n' in text
