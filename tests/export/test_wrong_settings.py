"""Settings that trainers take without a word, or refuse only when they train: check says so before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plans import plan

from planner.api import Question, check
from planner.errors import PlannerError
from planner.export.targets import export
from planner.frontends.launch.read import read_trainer_file
from planner.units import Json

DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 2},
}
GALVATRON = {
    "pp_deg": 2, "tp_sizes_enc": ",".join("2" * 32), "tp_consecutive_flags": ",".join("1" * 32),
    "dp_types_enc": ",".join("0" * 32), "use_sp": ",".join("0" * 32), "checkpoint": ",".join("0" * 32),
    "global_bsz": 64, "chunks": 8, "pp_division": "16,16", "pipeline_type": "pipedream_flush",
    "default_dp_type": "ddp", "vtp": 2, "vsp": 0, "embed_sdp": 0, "world_size": 16,
}  # fmt: skip


def said(path: Path) -> str:
    """What reading a file says of its settings, refused or not."""
    try:
        return "\n".join(map(str, read_trainer_file(path).faults))
    except PlannerError as error:
        return str(error)


def autotp(**more: Json) -> dict[str, Json]:
    return {"tensor_parallel": {"autotp_size": 2} | more}


@pytest.mark.parametrize(
    ("change", "phrases"),
    [
        ({"foo": 1}, ["has no key 'foo'"]),
        ({"zero_optimization": {"stage": 1, "overlap_com": True}}, ["DeepSpeed refuses it", "Nearest: overlap_comm"]),
        ({"activation_checkpointing": {"partition_activation": True}}, ["activation_checkpointing has no key"]),
        ({"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}}, ["does nothing at stage 1"]),
        (autotp(preset_model="lama"), ["preset_model 'lama' is no preset"]),
        (autotp(autotp_sise=2), ["tensor_parallel has no key 'autotp_sise'"]),
        (autotp(partition_config={"layer_spec": []}), ["partition_config has no key 'layer_spec'"]),
        (autotp(partition_config={"layer_specs": [{"patern": ["x"]}]}), ["no key 'patern'", "matches nothing"]),
        (autotp(partition_config={"layer_specs": [{"patterns": ["x"], "partition_type": "colum"}]}),
         ["partition_type is 'colum'", "column, row or skip"]),
    ],
)  # fmt: skip
def test_deepspeed(change: dict[str, Json], phrases: list[str], tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEEPSPEED | change))
    told = said(path)
    assert all(phrase in told for phrase in phrases), told
    path.write_text(json.dumps(DEEPSPEED))
    assert not said(path)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"pipeline_type": "1f1b"}, "pipeline_type '1f1b' is taken and means nothing"),
        ({"foo": 1}, "has no key 'foo'; it is ignored"),
        ({"default_dp_type": "zero9"}, "default_dp_type 'zero9' is taken and means nothing"),
        ({"chunks": 128}, "chunks 128 is more than the 16 sequences of a data rank"),
        ({"pp_division": "16,15"}, "pp_division holds 31 layers, and the lists have 32"),
    ],
)
def test_galvatron(change: dict[str, Json], phrase: str, tmp_path: Path) -> None:
    path = tmp_path / "galvatron.json"
    path.write_text(json.dumps(GALVATRON | change))
    assert phrase in said(path)
    path.write_text(json.dumps(GALVATRON))
    assert not said(path)
    question = Question(model="llama-3-8b", cluster="h100-sxm", seq_len=4096)
    found = check(path, question, search=False)
    assert found.plan is not None
    assert (found.plan.degrees.dp, found.plan.degrees.tp, found.plan.degrees.pp) == (4, 2, 2)


CHANGES = [
    ("titan-stages", "torchtitan", "disable_cuda_graphs = True", "disable_cuda_graphs = False", "no CUDA graphs"),
    ("titan-stages", "torchtitan", "parallelism.tensor_parallel_degree", "parallelism.tensor_parallel_degre",
     "no key 'tensor_parallel_degre'"),
    ("titan-stages", "torchtitan", "'1F1B'", "'1F1C'", "torch has no such schedule"),
    ("titan", "torchtitan", "global_batch_size = 128", "global_batch_size = 63", "63 is no multiple"),
    ("titan", "torchtitan-0.2", 'mode = "full"', 'mode = "fulll"', "activation_checkpoint.mode is 'fulll'"),
    ("fsdp", "accelerate", "num_processes: 16", "num_processes: 12", "make 16 ranks, and num_processes is 12"),
    ("fsdp", "accelerate", "fsdp_offload_params", "fsdp_offlod_params", "has no key 'fsdp_offlod_params'"),
    ("ascend", "mindformers", "vocab_emb_dp: false", "vocab_emb_dp: true", "vocab_emb_dp is turned off"),
    ("titan", "torchtitan-0.2", "tensor_parallel_degree", "tensor_paralel_degree", "Nearest: tensor_parallel_degree"),
    ("ascend", "mindformers", "expert_parallel: 1", "expert_parallel: 3", "expert_parallel 3 does nothing"),
    ("ascend", "mindformers", "parallel_mode: 1", "parallel_mode: 7", "parallel_mode is '7', and MindSpore refuses it"),
    ("ascend", "mindformers", "model_parallel:", "model_paralel:", "no key 'model_paralel'"),
    ("ascend", "mindformers", "recompute_config:", "recompute_confg:", "section 'recompute_confg' is not read"),
    ("ascend", "mindformers", "recompute: true", "recompute: [20, 0, 0, 0]", "20 layers of stage 0, which has 8"),
    ("dense", "megatron", "--tensor-model-parallel-size", "--tensor-model-parallel-sise",
     "tensor-model-parallel-sise is no option"),
    ("wide", "megatron", "--recompute-num-layers 1", "--recompute-num-layers 5", "no divisor of the 24 layers"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "to", "before", "after", "phrase"), CHANGES)
def test_changed_exports(
    name: str, to: str, before: str, after: str, phrase: str, tmp_path: Path
) -> None:
    text = next(file for file in export(plan(name), to) if before in file.text)
    path = tmp_path / text.name
    path.write_text(text.text)
    assert phrase not in said(path)
    path.write_text(text.text.replace(before, after))
    assert phrase in said(path)


@pytest.mark.parametrize(
    ("file", "text", "phrase"),
    [
        ("ds.json", json.dumps(DEEPSPEED | autotp(autotp_size=3)), "tp 3 cannot split 32 heads"),
        ("ds.json", json.dumps(DEEPSPEED | {"sequence_parallel_size": 16}), "cp 16 cannot give every rank whole heads"),
    ],
)  # fmt: skip
def test_degrees_that_a_parser_takes(file: str, text: str, phrase: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    question = Question(model="llama-3-8b", cluster="h100-sxm", seq_len=4096)
    found = check(tmp_path / file, question, search=False)
    assert any(phrase in str(fault) for fault in found.broken), found.broken
