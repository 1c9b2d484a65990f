"""Every format: a plan becomes files that say what the plan says, or is refused with the nearest that fits."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace
from functools import cache

import pytest
from plans import LAYOUTS, plan, stated
from ruamel.yaml import YAML

from planner.errors import PlannerError
from planner.export.targets import TARGETS, export, target
from planner.export.view import View
from planner.planning import plan as solve
from planner.question import Question
from planner.recipe import MOMENT_BYTES
from planner.trainers.registry import get_trainer

OWN = {
    "mindspeed": "mindspeed",
    "megatron": "megatron",
    "torchtitan": "torchtitan",
    "fsdp": "accelerate",
    "deepspeed": "deepspeed",
    "mindspore": "mindformers",
}


def texts(name: str, to: str) -> dict[str, str]:
    return {file.name: file.text for file in export(plan(name), to)}


def yaml(text: str) -> dict:
    return YAML(typ="safe").load(text)


@cache
def holding(to: str) -> list[str]:
    """Plans of the table that a format holds."""
    found = []
    for name in LAYOUTS:
        try:
            export(plan(name), to)
        except PlannerError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_trainer_of_a_plan_takes_it(name: str) -> None:
    files = export(plan(name), OWN[plan(name).trainer])
    assert files
    again = export(plan(name), OWN[plan(name).trainer])
    assert files == again


@pytest.mark.parametrize("to", [t.name for t in TARGETS])
def test_every_file_says_what_it_is_from(to: str) -> None:
    names = holding(to)
    assert names, f"no plan of the table can be exported to {to}"
    for name in names:
        prints = plan(name).fingerprints
        for file in export(plan(name), to):
            assert "made by shardwright" in file.text
            assert all(
                p in file.text
                for p in (prints.model, prints.cluster, prints.recipe, prints.trainer)
            )
            assert target(to).release in file.text or file.name in (
                "train.py",
                "remeasure.sh",
                "accelerate.yaml",
            )
            assert file.text.endswith("\n")


@pytest.mark.parametrize("to", [t.name for t in TARGETS])
def test_what_cannot_be_held_is_refused_with_the_nearest(to: str) -> None:
    refused = [name for name in LAYOUTS if name not in holding(to)]
    for name in refused:
        with pytest.raises(PlannerError) as caught:
            export(plan(name), to)
        for fault in caught.value.faults:
            assert fault.code == "W01"
            assert fault.fix
            assert fault.fix[0].startswith("Nearest that it can: ")
    assert refused or to == "dtensor", "only plain DTensor holds everything"


@pytest.mark.parametrize(
    ("layout", "to", "phrase", "nearest"),
    [
        ("dense", "accelerate", "ZeRO-1", "zero=0"),
        ("dense", "galvatron", "vpp 2", "vpp=1"),
        ("dense", "deepspeed", "pp 4", "pp=1"),
        ("inside", "torchtitan", "stages inside data", "order=tp-cp-dp-pp"),
        ("uneven", "maxtext", "stages of 5, 5, 5, 6, 6, 5 layers", "pp=4"),
        ("ring", "galvatron", "cp 2", "cp=1"),
        ("latent", "mindspore", "latent attention, a bias of the router and prediction modules of", "mindformers"),
        ("titan-experts", "mindspore", "norms of queries and keys of qwen3-30b-a3b: its files name", "mindformers"),
        ("titan-hybrid", "galvatron", "ZeRO-3 over 8 of 32", "shard-group=32"),
        ("titan-stages", "megatron", "recompute of", "recompute=none"),
        ("titan-v", "megatron", "the schedule zbv", "schedule=1f1b"),
        ("titan-v", "galvatron", "the schedule zbv", "schedule=1f1b"),
        ("fsdp-ring", "deepspeed", "cp 2 as a ring", "cp=1"),
        ("megatron-host", "mindformers", "optimizer in host memory", "offload=none"),
        ("fsdp-host", "galvatron", "states in host memory", "offload=none"),
        ("experts", "mindformers", "etp 1 with tp 2", "etp=2"),
    ],
)  # fmt: skip
def test_refusals(layout: str, to: str, phrase: str, nearest: str) -> None:
    with pytest.raises(PlannerError) as caught:
        export(plan(layout), to)
    faults = [str(fault) for fault in caught.value.faults]
    assert any(phrase in fault and nearest in fault for fault in faults), faults


def test_experts_are_sharded_whole_by_accelerate() -> None:
    """transformers holds the experts of a layer as one weight, of which FSDP2 gives whole experts to ranks."""
    for to in ("accelerate", "transformers"):
        wide = stated("mixtral-8x7b", "h100-sxm:64", "fsdp", "zero=3,recompute=full")
        with pytest.raises(
            PlannerError, match=r"8 experts sharded over 64 ranks.*\n.*shard-group=8"
        ):
            export(wide, to)
        near = stated("mixtral-8x7b", "h100-sxm:64", "fsdp", "zero=3,shard-group=8,recompute=full")
        assert export(near, to)


def test_narrow_moments_need_the_distributed_optimizer() -> None:
    """OptimizerConfig asserts it of the precision-aware optimizer, on one data rank as well."""
    copies, alone = plan("copies"), plan("megatron-alone")
    narrow = copies.recipe.model_copy(update={"optimizer": "adamw-bf16"})
    with pytest.raises(PlannerError, match=r"adamw-bf16 with unsharded states.\n.*zero=1"):
        export(copies.model_copy(update={"recipe": narrow}), "megatron")
    single = alone.degrees.model_copy(update={"sharding": "none", "offload": "none"})
    files = export(alone.model_copy(update={"recipe": narrow, "degrees": single}), "megatron")
    assert "--use-distributed-optimizer" in files[0].text


@pytest.mark.parametrize("optimizer", MOMENT_BYTES)
@pytest.mark.parametrize("trainer", OWN)
def test_plans_tell_which_optimizers_files_cannot_hold(trainer: str, optimizer: str) -> None:
    """A trainer's own format refuses an optimizer exactly where a plan warns of it."""
    whole = next(
        p
        for p in map(plan, holding(OWN[trainer]))
        if p.trainer == trainer and p.degrees.sharding != "none"
    )
    other = whole.model_copy(
        update={"recipe": whole.recipe.model_copy(update={"optimizer": optimizer})}
    )
    if optimizer in get_trainer(trainer).optimizers:
        assert export(other, OWN[trainer])
        return
    with pytest.raises(PlannerError, match=f"the optimizer {optimizer}|{optimizer}"):
        export(other, OWN[trainer])


def test_a_plan_warns_of_an_optimizer_that_no_file_names() -> None:
    question = Question(
        model="llama-3.2-1b", cluster="h100-sxm:8", global_batch=64, optimizer="muon"
    )
    sentence = (
        "no file is written that starts megatron with muon: adamw, adamw-8bit, adamw-bf16 and"
    )
    assert any(warning.startswith(sentence) for warning in solve(question).warnings)
    assert not any("no file" in w for w in solve(replace(question, optimizer="sgd")).warnings)


def test_the_loop_steps_with_the_optimizer_of_the_plan() -> None:
    whole = next(p for p in map(plan, holding("accelerate")) if p.trainer == "fsdp")
    sgd = whole.model_copy(update={"recipe": whole.recipe.model_copy(update={"optimizer": "sgd"})})
    loops = [
        next(f.text for f in export(p, "accelerate") if f.name == "train.py") for p in (whole, sgd)
    ]
    assert "torch.optim.AdamW(model.parameters(), lr=1e-5)" in loops[0]
    assert "torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)" in loops[1]


def test_an_unknown_format_and_an_old_plan() -> None:
    with pytest.raises(PlannerError, match=r"Nearest: .*megatron.*\n.*Possible") as caught:
        export(plan("data"), "megatorn")
    assert caught.value.faults[0].code == "W02"
    old = plan("data")
    blocks = tuple(block.model_copy(update={"sizes": {}}) for block in old.blocks)
    with pytest.raises(PlannerError, match="Make the plan again"):
        export(old.model_copy(update={"blocks": blocks}), "megatron")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("dense", "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4L"),
        ("uneven", "Et*5|t*5|t*5|t*6|t*6|t*5L"),
        ("ends", "E|" + "t|" * 32 + "L"),
    ],
)
def test_layout_strings(name: str, layout: str) -> None:
    words = json.loads(texts(name, "megatron")["megatron.json"])["plan"]
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == layout
    assert f"'{layout}'" in texts(name, "megatron")["megatron.sh"]


def test_prediction_modules_stand_before_the_loss() -> None:
    words = json.loads(texts("latent", "megatron")["megatron.json"])["plan"]
    assert words[words.index("--pipeline-model-parallel-layout") + 1].endswith("mL")


def test_environment_of_overlap() -> None:
    """Before Blackwell the parser refuses tp and cp without one connection; Blackwell has no such need."""
    assert json.loads(texts("ring", "megatron")["megatron.json"])["environment"]
    assert not json.loads(texts("data", "megatron")["megatron.json"])["environment"]
    newer = stated("llama-3-8b", "b200:16", "megatron", "tp=2")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in export(newer, "megatron")[0].text


@pytest.mark.parametrize("name", holding("megatron-bridge"))
def test_bridge_overrides(name: str) -> None:
    words = json.loads(texts(name, "megatron-bridge")["bridge.json"])["overrides"]
    keys = dict(word.split("=", 1) for word in words)
    assert not any(key.startswith(("+", "~")) for key in keys)
    d = plan(name).degrees
    assert int(keys["model.tensor_model_parallel_size"]) == d.tp
    assert keys["ddp.use_distributed_optimizer"] == str(d.sharding == "ZeRO-1").lower()


@pytest.mark.parametrize("name", holding("deepspeed"))
def test_deepspeed_batches(name: str) -> None:
    data, d = json.loads(texts(name, "deepspeed")["deepspeed.json"]), plan(name).degrees
    micro, turns = data["train_micro_batch_size_per_gpu"], data["gradient_accumulation_steps"]
    assert data["train_batch_size"] == micro * turns * d.dp
    assert data["zero_optimization"]["stage"] == View(plan(name)).level


@pytest.mark.parametrize("name", holding("accelerate"))
def test_accelerate_sizes(name: str) -> None:
    data = yaml(texts(name, "accelerate")["accelerate.yaml"])
    sizes = [v for k, v in data.get("parallelism_config", {}).items() if k.endswith("_size")]
    assert math.prod(sizes) == data["num_processes"] == View(plan(name)).world
    assert data["fsdp_config"]["fsdp_activation_checkpointing"] == (
        plan(name).degrees.recompute == "full"
    )


@pytest.mark.parametrize("name", holding("accelerate"))
def test_sharded_gradients_are_reduced_with_every_micro_batch(name: str) -> None:
    sharded = View(plan(name)).level > 0
    assert f"num_steps=COUNT, sync_each_batch={sharded})" in texts(name, "accelerate")["train.py"]


@pytest.mark.parametrize("name", holding("torchtitan-0.2"))
def test_job_files(name: str) -> None:
    data, view = tomllib.loads(texts(name, "torchtitan-0.2")["plan.toml"]), View(plan(name))
    p = data["parallelism"]
    used = [p[f"{k}_degree"] for k in ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel",
                                       "context_parallel", "pipeline_parallel")]  # fmt: skip
    assert math.prod(used) == view.world
    assert data["training"]["global_batch_size"] == view.plan.recipe.global_batch


@pytest.mark.parametrize("to", ["galvatron", "galvatron-head"])
def test_galvatron_lists(to: str) -> None:
    for name in holding(to):
        data, view = json.loads(texts(name, to)["galvatron_config.json"]), View(plan(name))
        count = view.plan.model.num_layers
        lists = [v for k, v in data.items() if k.endswith("_enc") or k in ("use_sp", "checkpoint")]
        assert all(len(text.split(",")) == count for text in lists)
        assert sum(map(int, data["pp_division"].split(","))) == count
        ranks = view.world // (data["pp_deg"] * int(data["tp_sizes_enc"].split(",")[0]))
        assert data["global_bsz"] % (ranks // view.degrees.cp) == 0


@pytest.mark.parametrize("name", holding("mindformers"))
def test_mindformers_product_and_stages(name: str) -> None:
    data, view = yaml(texts(name, "mindformers")["mindformers.yaml"]), View(plan(name))
    p = data["parallel_config"]
    product = p["data_parallel"] * p["model_parallel"] * p["context_parallel"] * p["pipeline_stage"]
    assert product == view.world
    turns = p["micro_batch_num"] * data["runner_config"]["gradient_accumulation_steps"]
    assert (
        data["runner_config"]["batch_size"] * turns * p["data_parallel"]
        == view.plan.recipe.global_batch
    )
    model = data["model"]["model_config"]
    pieces = p["pipeline_stage"] * model["pp_interleave_num"]
    offset = model["offset"]
    rest = (
        [0] * pieces
        if offset == 0
        else [v for row in offset for v in (row if isinstance(row, list) else [row])]
    )
    assert [model["num_layers"] // pieces + extra for extra in rest] == [
        len(v) for v in view.visits
    ]


@pytest.mark.parametrize("name", holding("maxtext"))
def test_maxtext_product(name: str) -> None:
    data, view = yaml(texts(name, "maxtext")["maxtext.yml"]), View(plan(name))
    sizes = [v for k, v in data.items() if re.fullmatch(r"(ici|dcn)_\w+_parallelism", k)]
    assert math.prod(sizes) == view.world
    batch = data["per_device_batch_size"] * view.world * data["gradient_accumulation_steps"]
    assert batch == view.plan.recipe.global_batch


@pytest.mark.parametrize("name", holding("mindspore"))
def test_mindspore_layouts_cut_as_the_plan_does(name: str) -> None:
    view, files = View(plan(name)), texts(name, "mindspore")
    d, held = view.degrees, []
    for stage in range(d.pp):
        data = json.loads(files[f"parameters_stage_{stage}.json"])["parallel_layout_item"]
        held += data
        for layout in data.values():
            assert math.prod(layout["dev_matrix"]) == view.world // d.pp
            assert len(layout["tensor_map"]) == len(layout["tensor_shape"])
            for size, axis in zip(layout["tensor_shape"], layout["tensor_map"], strict=True):
                assert axis == -1 or size % layout["dev_matrix"][-1 - axis] == 0
        for key, want in (("attention.wq.weight", [0, -1]), ("feed_forward.w2.weight", [-1, 0])):
            found = [v["tensor_map"] for k, v in data.items() if k.endswith(key)]
            assert all(m == (want if d.tp > 1 else [-1, -1]) for m in found) or d.tp == 1
    each = 9 + view.experts  # the router
    assert len(held) == len(set(held)) == each * view.plan.model.num_layers + 3
    compile(files["auto_parallel.py"], "auto_parallel.py", "exec")


def test_tp_plans_have_no_layer_numbers() -> None:
    """A key with a layer's number is taken by transformers and gives wrong gradients."""
    split = stated("llama-3-8b", "h100-sxm:2", "megatron", "tp=2,zero=0,sp=off")
    data = json.loads(export(split, "transformers")[0].text)["tp_plan"]
    assert (
        data["model.layers.*.self_attn.q_proj"] == data["model.layers.*.mlp.up_proj"] == "colwise"
    )
    assert data["model.layers.*.mlp.down_proj"] == "rowwise"
    assert data["lm_head"] == "colwise_gather_output"
    assert not any(re.search(r"\.\d", key) for key in data)


def test_adapters_are_refused_everywhere() -> None:
    made = plan("data")
    tuned = made.model_copy(update={"recipe": made.recipe.model_copy(update={"lora": "rank 8"})})
    for to in ("megatron", "deepspeed", "dtensor"):
        with pytest.raises(PlannerError, match="cannot hold LoRA rank 8"):
            export(tuned, to)
