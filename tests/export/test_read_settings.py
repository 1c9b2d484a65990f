"""Settings of trainers' files that decide a layout: each is read, and what says no layout is told so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plans import LAYOUTS, plan
from test_files import holding

from planner.api import Question, check, price
from planner.api import plan as find
from planner.errors import PlannerError
from planner.export.targets import export
from planner.frontends.launch.read import is_trainer_file, read_trainer_file
from planner.plan.schema import Plan

OPEN = dict.fromkeys(("layers", "full_layers", "selective_layers"), ())


def same(found: Plan | None, made: Plan) -> bool:
    """The layouts are equal, as far as a layout does not list layers."""
    assert found is not None
    return found.degrees.model_copy(update=OPEN) == made.degrees.model_copy(update=OPEN)


@pytest.mark.parametrize("name", holding("megatron-bridge"))
def test_overrides_of_megatron_bridge_are_read_back(name: str, tmp_path: Path) -> None:
    """Both files, as Megatron's arguments; the model is the recipe's, which is asked for."""
    made = plan(name)
    asked = Question(model=LAYOUTS[name][0], cluster=LAYOUTS[name][1])
    for file in export(made, "megatron-bridge"):
        (tmp_path / file.name).write_text(file.text)
    for file_name in ("bridge.sh", "bridge.json"):
        assert is_trainer_file(tmp_path / file_name)
        found = check(tmp_path / file_name, asked, search=False)
        if made.trainer == "megatron":
            assert not found.broken
            assert found.plan is not None
            assert found.plan.step == pytest.approx(made.step, rel=1e-3)
            assert same(found.plan, made)
        assert found.program == "megatron-bridge"
        assert found.chips == made.degrees.chips_used
        assert any("recipe" in note for note in found.notes)
    with pytest.raises(PlannerError, match="does not say which model"):
        check(tmp_path / "bridge.sh", replace(asked, model=""), search=False)


def test_a_script_that_starts_a_recipe(tmp_path: Path) -> None:
    """What people have: overrides behind the recipe, quoted where a shell would read them."""
    (tmp_path / "run.sh").write_text(
        "NNODES=2\nGPUS_PER_NODE=8\n"
        "torchrun --nnodes $NNODES --nproc_per_node $GPUS_PER_NODE run_recipe.py --recipe llama3_8b_pretrain_config "
        "model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2 model.sequence_parallel=true \\\n"
        "  \"model.pipeline_model_parallel_layout='Et*15|t*17L'\" ++train.micro_batch_size=2 "
        "train.global_batch_size=64 ddp.use_distributed_optimizer=true mixed_precision=bf16_mixed "
        "model.seq_length=4096 model.recompute_granularity=null\n"
    )
    found = read_trainer_file(tmp_path / "run.sh")
    assert dict(found.layout) == {
        "tp": 2, "pp": 2, "dp": 4, "mbs": 2, "sp": "on", "zero": 1, "recompute": "none",
    }  # fmt: skip
    assert found.stages == (15, 17)
    assert (found.chips, found.global_batch, found.seq_len) == (16, 64, 4096)
    assert (found.precision, found.trainer) == ("bf16", "megatron")


@pytest.mark.parametrize(
    "layout",
    [
        "pp=4,vpp=2,schedule=zbv,tp=2,zero=0",
        "pp=4,vpp=2,schedule=interleaved,tp=2,zero=1",
        "tp=2,zero=1,shard-group=4",
        "pp=2,cp=2,tp=2,zero=1,shard-group=4",
    ],
)
def test_sections_below_mindformers_parallel_are_read(layout: str, tmp_path: Path) -> None:
    """The schedule of stages, and over how many ranks the optimizer's states are cut."""
    question = Question(
        model="llama-3-8b", cluster="a910b:32", trainer="mindspore", global_batch=64, seq_len=4096
    )
    made = price(question, dict(pair.split("=") for pair in layout.split(",")), usual=True)
    path = tmp_path / "mindformers.yaml"
    path.write_text(export(made, "mindformers")[0].text)
    found = check(path, Question(model="", cluster="a910b:32"), search=False)
    assert same(found.plan, made)
    assert found.plan is not None
    assert found.plan.step == pytest.approx(made.step, rel=1e-6)


def test_a_schedule_that_is_not_priced_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mindformers.yaml"
    text = export(plan("ascend"), "mindformers")[0].text
    before = 'pipeline_scheduler: "1f1b"'
    assert before in text
    path.write_text(text.replace(before, "pipeline_scheduler: seqpipe"))
    notes = read_trainer_file(path).notes
    assert "not priced: pipeline_scheduler seqpipe; priced as 1f1b" in notes


@pytest.mark.parametrize(
    ("name", "to", "file"),
    [
        ("ascend", "mindspore", "auto_parallel.py"),
        ("ascend", "mindspore", "operator_strategy.py"),
        ("fsdp", "transformers", "train.py"),
    ],
)
def test_modules_that_say_no_layout_are_no_torchtitan_configuration(
    name: str, to: str, file: str, tmp_path: Path
) -> None:
    """A wrong reading would be priced without a word."""
    texts = {each.name: each.text for each in export(plan(name), to)}
    (tmp_path / file).write_text(texts[file])
    assert not is_trainer_file(tmp_path / file)
    with pytest.raises(PlannerError, match="no configuration of a trainer that we read"):
        read_trainer_file(tmp_path / file)


@pytest.mark.parametrize(("name", "to"), [
    ("dense", "megatron"), ("dense", "megatron-bridge"), ("titan", "torchtitan"), ("ascend", "mindformers"),
    ("zero", "deepspeed"), ("ascend", "mindspore"),
])  # fmt: skip
def test_a_script_that_measures_names_no_layout(name: str, to: str, tmp_path: Path) -> None:
    texts = {file.name: file.text for file in export(plan(name), to)}
    (tmp_path / "remeasure.sh").write_text(texts["remeasure.sh"])
    with pytest.raises(PlannerError, match=r"sets nothing itself\.\n.*shardwright check"):
        read_trainer_file(tmp_path / "remeasure.sh")


def test_accelerate_without_sharded_states_is_priced(tmp_path: Path) -> None:
    """Plain data parallelism, which no plan of FSDP is."""
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"
        "# train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 2048\n"
    )
    found = check(path, Question(model="llama-3.2-1b", cluster="h100-sxm"), search=False)
    assert found.plan is not None
    d = found.plan.degrees
    assert (d.dp, d.micro_batch, d.num_micro_batches, d.sharding) == (8, 2, 4, "none")
    assert any("not sharded" in note for note in found.notes)


def test_tensor_parallelism_of_accelerate_is_priced(tmp_path: Path) -> None:
    """It has no sequence parallelism, which torchtitan's has: said, and no rule that the file breaks."""
    made = plan("autotp")
    for file in export(made, "transformers"):
        (tmp_path / file.name).write_text(file.text)
    found = check(
        tmp_path / "accelerate.yaml",
        Question(model=LAYOUTS["autotp"][0], cluster=LAYOUTS["autotp"][1]),
        search=False,
    )
    assert not found.broken
    assert found.plan is not None
    assert same(found.plan, made.model_copy(
        update={"degrees": made.degrees.model_copy(update={"sequence_parallel": True})}
    ))  # fmt: skip
    assert any("without sequence parallelism" in note for note in found.notes)


def test_a_loop_of_transformers_cuts_the_model_by_the_plan() -> None:
    """Without it the ranks of tensor parallelism would train copies of the whole model."""
    texts = {file.name: file.text for file in export(plan("transformers/dense"), "transformers")}
    assert 'tp_plan=rules, device_mesh=accelerator.torch_device_mesh["tp"]' in texts["train.py"]
    assert "ParallelismConfig(tp_size=2)" in texts["train.py"]
    alone = {file.name: file.text for file in export(plan("fsdp"), "transformers")}
    assert "tp_plan" not in alone["train.py"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.yaml", "parallel_config:\n  data_parallel: x\n", "data_parallel is 'x', no whole number"),
        ("a.toml", "[parallelism\n", "is not TOML"),
        ("a.json", '{"zero_optimization": 3, "train_batch_size": "many"}', "train_batch_size is 'many'"),
    ],
)  # fmt: skip
def test_a_trainer_s_file_with_wrong_values_is_no_wrong_model(
    name: str, text: str, told: str, tmp_path: Path
) -> None:
    """Asked to plan for it, what is wrong with the trainer's keys is told, not what a model would need."""
    (tmp_path / name).write_text(text)
    assert is_trainer_file(tmp_path / name)
    with pytest.raises(PlannerError, match=told):
        find(Question(model=str(tmp_path / name), cluster="h100-sxm:8", global_batch=64))
