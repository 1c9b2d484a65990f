"""What is exported and read back is the same plan; what other people run is read, priced and judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plans import LAYOUTS, plan, stated
from test_files import holding

from planner.api import Question, check, price
from planner.errors import PlannerError
from planner.export.targets import export
from planner.frontends.launch.read import is_trainer_file, read_trainer_file
from planner.graph.blocks import build_model

FILES = {
    "megatron": "megatron.sh",
    "torchtitan": "shardwright_plan.py",
    "torchtitan-0.2": "plan.toml",
    "mindformers": "mindformers.yaml",
    "deepspeed": "deepspeed.json",
    "accelerate": "accelerate.yaml",
    "mindspeed": "mindspeed.sh",
}
OURS = {
    "megatron": ["megatron"],
    "mindspeed": ["mindspeed"],
    "torchtitan": ["torchtitan", "torchtitan-0.2"],
    "mindspore": ["mindformers"],
    "fsdp": ["accelerate"],
    "deepspeed": ["deepspeed"],
}
CASES = [
    (name, to) for name, row in LAYOUTS.items() for to in OURS[row[2]] if name in holding(to)
]  # fmt: skip


def written(name: str, to: str, folder: Path) -> Path:
    for file in export(plan(name), to):
        (folder / file.name).write_text(file.text)
    return folder / FILES[to]


def asked(name: str, to: str) -> Question:
    """What the formats leave open: the cluster always; recipes and models some."""
    model, cluster = LAYOUTS[name][:2]
    keeps = to in ("megatron", "mindformers", "mindspeed")
    return Question(
        model="" if keeps else model,
        cluster=cluster,
    )


@pytest.mark.parametrize(("name", "to"), CASES)
def test_read_back(name: str, to: str, tmp_path: Path) -> None:
    path = written(name, to, tmp_path)
    found = check(path, asked(name, to), search=False)
    assert not found.broken, found.broken
    assert not found.silent
    assert found.plan is not None
    undivided = dict.fromkeys(("layers", "full_layers", "selective_layers"), ())
    assert found.plan.degrees.model_copy(update=undivided) == plan(name).degrees
    if found.stages:  # the file states what the plan leaves to the trainer's rule
        assert found.plan.degrees.layers == found.stages
    if name != "wide":  # dropout and a norm's bias are no arguments of the plan
        assert found.plan.model.num_params == plan(name).model.num_params
    assert found.plan.step == pytest.approx(plan(name).step, rel=1e-3 if name != "wide" else 0.1)
    assert found.chips in (None, plan(name).degrees.chips_used)


def test_stages_of_a_search_are_priced_as_the_file_has_them(tmp_path: Path) -> None:
    question = Question(model="llama-3-8b", cluster="h100-sxm:5", global_batch=40, seq_len=4096)
    stages = {"pp": 5, "mbs": 2, "recompute": "none", "stage-layers": "7+7+7+7+4"}
    own, even = price(question, stages), price(question, {**stages, "stage-layers": "6+6+7+7+6"})
    assert own.memory > 1.05 * even.memory
    for file in export(own, "megatron"):
        (tmp_path / file.name).write_text(file.text)
    found = check(tmp_path / "megatron.sh", replace(question, model=""), search=False)
    assert found.stages == (7, 7, 7, 7, 4)
    assert found.plan is not None
    assert (found.plan.step, found.plan.memory) == (own.step, own.memory)


@pytest.mark.parametrize("name", holding("megatron"))
def test_both_forms_of_arguments_say_the_same(name: str, tmp_path: Path) -> None:
    shell = read_trainer_file(written(name, "megatron", tmp_path))
    listed = read_trainer_file(tmp_path / "megatron.json")
    assert shell.layout == listed.layout
    assert shell.architecture is not None
    assert listed.architecture is not None
    assert (
        build_model(shell.architecture, 64).num_params
        == build_model(listed.architecture, 64).num_params
    )


@pytest.mark.parametrize("name", holding("galvatron-head"))
def test_galvatron_read_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "galvatron_config.json").write_text(export(plan(name), "galvatron-head")[0].text)
    found, d = read_trainer_file(tmp_path / "galvatron_config.json"), plan(name).degrees
    layout = {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1} | dict(found.layout)
    assert [layout[k] for k in ("dp", "tp", "pp", "cp", "ep")] == [d.dp, d.tp, d.pp, d.cp, d.ep]
    assert found.layout["mbs"] == d.micro_batch
    assert found.layout["recompute"] == d.recompute


@pytest.mark.parametrize("to", ["galvatron", "galvatron-head"])
@pytest.mark.parametrize(
    ("trainer", "layout"),
    [
        ("megatron", "tp=4,pp=2,zero=0,recompute=full"),
        ("megatron", "tp=2,pp=3,zero=0"),
        ("megatron", "cp=2,tp=2,zero=0"),
        ("torchtitan", "tp=2,zero=3"),
    ],
)
def test_galvatron_is_priced_as_the_plan(
    to: str, trainer: str, layout: str, tmp_path: Path
) -> None:
    made = stated("llama-3-8b", "h100-sxm:24", trainer, layout, 96)
    if to == "galvatron" and made.degrees.cp > 1:
        with pytest.raises(PlannerError, match="cannot hold cp 2"):
            export(made, to)
        return
    path = tmp_path / "galvatron_config.json"
    path.write_text(export(made, to)[0].text)
    found = check(
        path, Question(model="llama-3-8b", cluster="h100-sxm:24", seq_len=4096), search=False
    )
    assert not found.silent
    assert found.plan is not None
    open_ = {"layers": ()}
    assert found.plan.degrees.model_copy(update=open_) == made.degrees.model_copy(update=open_)
    assert found.plan.step == pytest.approx(made.step, rel=1e-6)


LAUNCH = """#!/bin/bash
NNODES=2
accelerate launch \\
    --config_file fsdp.yaml --num_processes $((NNODES * 8)) --num_machines $NNODES --machine_rank 0 \\
    --fsdp_reshard_after_forward false \\
    run_clm.py --model_name_or_path meta-llama/Meta-Llama-3-8B --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 4 --block_size 4096 --bf16 --gradient_checkpointing
"""


def test_a_script_that_calls_accelerate(tmp_path: Path) -> None:
    """The file that it names, what its own options replace, and the batches of the training script."""
    (tmp_path / "fsdp.yaml").write_text(export(plan("fsdp"), "accelerate")[0].text)
    (tmp_path / "run.sh").write_text(LAUNCH)
    found = read_trainer_file(tmp_path / "run.sh")
    assert found.program == "accelerate"
    assert dict(found.layout) == {
        "dp": 16, "zero": 2, "sp": "off", "recompute": "full", "mbs": 2,
    }  # fmt: skip
    assert (found.chips, found.global_batch, found.seq_len, found.precision) == (
        16,
        128,
        4096,
        "bf16",
    )
    (tmp_path / "fsdp.yaml").unlink()
    with pytest.raises(PlannerError, match="cannot read"):
        read_trainer_file(tmp_path / "run.sh")
    bare = LAUNCH.replace(
        "--config_file fsdp.yaml", "--use_fsdp --fsdp_version 2 --mixed_precision bf16"
    )
    (tmp_path / "run.sh").write_text(bare)
    assert read_trainer_file(tmp_path / "run.sh").layout == found.layout


def test_batches_that_nothing_says_are_told(tmp_path: Path) -> None:
    text = export(plan("fsdp"), "accelerate")[0].text
    (tmp_path / "a.yaml").write_text(text.replace("use it as:", "").replace("train.py", "ours.py"))
    found = read_trainer_file(tmp_path / "a.yaml")
    assert found.global_batch is None
    assert any("batches are decided in the training script" in note for note in found.notes)


SCRIPT = """#!/bin/bash
# Llama on two nodes; --tensor-model-parallel-size 1 in a comment is no option
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=${TP:-4}
PP=2
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size ${PP} \\
    --sequence-parallel \\
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
    --seq-length 4096 --max-position-embeddings 4096 \\
    --micro-batch-size 1 --global-batch-size 64 \\
    --swiglu --normalization RMSNorm --disable-bias-linear \\
    --untie-embeddings-and-output-weights --position-embedding-type rope \\
    --vocab-size 128256 --bf16 --use-distributed-optimizer
"
DATA_ARGS=(
    --data-path $DATA_PATH   # where it lies
    --split 949,50,1
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS "${DATA_ARGS[@]}" --exit-on-missing-checkpoint | tee log.txt
"""


def test_a_launch_script(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    found = read_trainer_file(tmp_path / "run.sh")
    assert dict(found.layout) == {
        "tp": 4,
        "pp": 2,
        "dp": 2,
        "mbs": 1,
        "sp": "on",
        "zero": 1,
        "recompute": "none",
    }
    assert (found.chips, found.global_batch, found.seq_len, found.precision) == (
        16,
        64,
        4096,
        "bf16",
    )
    assert found.architecture is not None
    assert build_model(found.architecture, 4096).num_params == 8_030_261_248


def test_comments_of_a_script_are_no_options(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    found = read_trainer_file(tmp_path / "run.sh")
    first, rest = SCRIPT.split("\n", 1)
    told = "# once: accelerate launch \\\n#--tensor-model-parallel-size 8\n"
    end = "\n# --micro-batch-size 16\n"
    (tmp_path / "run.sh").write_text(f"{first}\n{told}{rest}{end}")
    assert read_trainer_file(tmp_path / "run.sh") == found


def changed(tmp_path: Path, before: str, after: str) -> Path:
    assert before in SCRIPT
    (tmp_path / "run.sh").write_text(SCRIPT.replace(before, after))
    return tmp_path / "run.sh"


@pytest.mark.parametrize(
    ("before", "after", "code", "phrase"),
    [
        ("PP=2", "PP=3", "D01", "tp 4 × pp 3 × cp 1 = 12 does not divide 16 chips"),
        ("--num-layers 32", "--num-layers 31", "P01", "31 layers do not divide among 2 stages"),
        ("--num-layers 32", "--num-layers 80 --num-layers-per-virtual-pipeline-stage 3", "P01",
         "80 layers are no multiple"),
        ("--hidden-size 4096", "--hidden-size wide", "W03", "hidden-size is 'wide'"),
        ("--vocab-size 128256 ", "", "M02", "does not say --vocab-size"),
        ("--bf16", '--bf16 --pipeline-model-parallel-layout Et*16|t*15L', "P01", "stages hold 31 layers"),
        ("--bf16", "--bf16 --decoder-first-pipeline-num-layers 33", "P01", "-1 layers do not divide"),
    ],
)  # fmt: skip
def test_what_a_script_cannot_mean(
    before: str, after: str, code: str, phrase: str, tmp_path: Path
) -> None:
    with pytest.raises(PlannerError) as caught:
        read_trainer_file(changed(tmp_path, before, after))
    assert any(f.code == code and phrase in f.what for f in caught.value.faults), caught.value


@pytest.mark.parametrize(
    ("before", "after", "phrase"),
    [
        ("${TP:-4}", "${TP:-1}", "sequence-parallel does nothing"),
        ("--bf16", "--bf16 --recompute-granularity full --recompute-method block --recompute-num-layers 17",
         "recompute-num-layers 17 is more than the 16"),
        ("--use-distributed-optimizer", "--use-distributed-optimizer --num-distributed-optimizer-instances 3",
         "instances 3 does not divide dp × cp = 2"),
        ("--sequence-parallel", "--num-experts 8", "experts with tp 4 need sequence-parallel"),
    ],
)  # fmt: skip
def test_what_megatron_takes_silently(before: str, after: str, phrase: str, tmp_path: Path) -> None:
    found = read_trainer_file(changed(tmp_path, before, after))
    assert any(phrase in fault.what for fault in found.faults), found.faults


def test_stages_of_a_script(tmp_path: Path) -> None:
    ends = "--bf16 --decoder-first-pipeline-num-layers 15"
    assert read_trainer_file(changed(tmp_path, "--bf16", ends)).stages == (15, 17)
    idle = ["--num-layers 32", "--num-layers 34 --noop-layers 32,33"]
    found = read_trainer_file(changed(tmp_path, *idle))
    assert found.stages == (17, 15)
    assert found.architecture is not None
    assert len(found.architecture.layers) == 32


def test_a_better_plan_is_named(tmp_path: Path) -> None:
    """Full recompute on sixteen chips that have room for everything: the search finds what saves it."""
    path = changed(
        tmp_path,
        "--bf16",
        "--bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    )
    found = check(path, Question(model="", cluster="h100-sxm"))
    assert found.plan is not None
    assert found.plan.degrees.recompute == "full"
    assert 0.1 < found.gain < 0.9
    assert found.holds


def test_rules_that_a_file_breaks_are_told(tmp_path: Path) -> None:
    path = changed(
        tmp_path, "--num-attention-heads 32", "--num-attention-heads 30 --kv-channels 128"
    )
    found = check(path, Question(model="", cluster="h100-sxm"), search=False)
    assert found.plan is None
    assert {fault.code for fault in found.broken} == {"D02"}
    assert not found.holds


def test_keys_that_deepspeed_and_accelerate_ignore(tmp_path: Path) -> None:
    data = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
            "zero_optimisation": {}, "zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}}  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(data))
    found = read_trainer_file(tmp_path / "ds.json")
    assert [f.what for f in found.faults if "zero_optimisation" in f.what]
    assert [f.what for f in found.faults if "offload_param does nothing" in f.what]
    assert found.chips == 16
    data |= {"train_batch_size": 66}
    (tmp_path / "ds.json").write_text(json.dumps(data))
    with pytest.raises(PlannerError, match="no multiple of 1 × 4"):
        read_trainer_file(tmp_path / "ds.json")
    text = export(plan("fsdp"), "accelerate")[0].text.replace(
        "fsdp_offload_params", "fsdp_offload_param"
    )
    (tmp_path / "a.yaml").write_text(text.replace("num_processes: 16", "num_processes: 32"))
    found = read_trainer_file(tmp_path / "a.yaml")
    assert any(
        "fsdp_offload_param'" in f.what and "fsdp_offload_params" in f.fix[0] for f in found.faults
    )
    assert any("16 ranks, and num_processes is 32" in f.what for f in found.faults)


def test_what_is_no_trainer_s_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x\nlayers: 3\n")
    (tmp_path / "x.json").write_text('{"architectures": []}')
    (tmp_path / "x.sh").write_text("echo hello\n")
    for name in ("x.yaml", "x.json", "x.sh"):
        assert not is_trainer_file(tmp_path / name)
        with pytest.raises(PlannerError) as caught:
            read_trainer_file(tmp_path / name)
        assert caught.value.faults[0].code == "W03"
    with pytest.raises(PlannerError, match="Nearest: megatron"):
        read_trainer_file(tmp_path / "x.sh", "megatorn")
    with pytest.raises(PlannerError, match="cannot read"):
        read_trainer_file(tmp_path / "none.sh")


def test_a_trainer_s_file_stands_for_model_recipe_and_trainer(tmp_path: Path) -> None:
    from planner.api import plan as find

    path = written("ascend", "mindformers", tmp_path)
    answer = find(Question(model=str(path), cluster="a910b:64", top=1))
    assert answer.trainer == "mindspore"
    assert answer.recipe.global_batch == LAYOUTS["ascend"][3]
    assert answer.recipe.seq == LAYOUTS["ascend"][4]
    assert answer.model.num_params == plan("ascend").model.num_params
    assert any("mindformers.yaml" in a.text for a in answer.assumptions)
    own = answer.alternatives[-1]
    assert own.degrees == plan("ascend").degrees
    assert own.step == pytest.approx(plan("ascend").step, rel=1e-6)
    other = find(Question(model=str(path), cluster="a910b:32", top=1))
    assert len(other.alternatives) == 1, "its layout is for other chips"
