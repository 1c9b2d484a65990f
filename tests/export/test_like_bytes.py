"""``export --like`` touches nothing but what the plan decides: byte for byte, in every style of YAML and JSON."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plans import plan, stated
from ruamel.yaml import YAML

from planner.api import Question, check
from planner.errors import PlannerError
from planner.export.like import export_like
from planner.export.like_keys import edited
from planner.export.targets import export
from planner.plan.schema import Plan

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [
        *ROOT.glob("tests/**/*.yaml"),
        *ROOT.glob("models/*.yaml"),
        *ROOT.glob("hardware_profiles/*.yaml"),
    ]
)
MINDFORMERS = """# How we trained in May
seed: 0   # of the data

use_parallel: True
runner_config: {epochs: 2, batch_size: 1, sink_mode: True}
lr_schedule:
    type: 'ConstantWarmUpLR'
    learning_rate: 2.20e-4
train_dataset: &train_dataset
    num_samples: 0x10
    seed: ~
train_dataset_task:
    dataset_config: *train_dataset
parallel:
    parallel_mode: 1 # 0-data parallel, 1-semi-auto parallel
    full_batch: False
    dataset_strategy: [[4, 1], [4, 1], [1, 1]]
    enable_parallel_optimizer: True
    pipeline_config:
        pipeline_scheduler: "1f1b"
parallel_config:
    data_parallel: &dp 4     # four a node
    model_parallel: 4
    pipeline_stage: 4
    micro_batch_num: &turns 16
    use_seq_parallel: True

    gradient_aggregation_group: 4
recompute_config:
    recompute: True
    select_recompute: False
    mp_comm_recompute: False
model:
    model_config:
        type: LlamaConfig
        seq_length: 4096
        hidden_size: 4_096
        num_layers: 32
        num_heads: 32
        n_kv_heads: 8
        intermediate_size: 14336
        vocab_size: 128256
        compute_dtype: "bfloat16"
        offset: 0
    arch:
        type: LlamaForCausalLM
callbacks:
- type: MFLossMonitor   # not a key of ours
- {type: CheckpointMonitor, keep_checkpoint_max: 1, remove_redundancy: yes}
"""
ACCELERATE = """# train.py --max_length=4096 --per_device_train_batch_size 1 --gradient_accumulation_steps 4
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: "FSDP"
downcast_bf16: 'no'
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: TRUE   # as in the paper
  fsdp_activation_checkpointing: yes
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
"""
DEEPSPEED = """{
\t"bf16": {"enabled": true},  "steps_per_print": 1e1,
\t"train_micro_batch_size_per_gpu": 1,
\t"gradient_accumulation_steps": 4, "train_batch_size": 64,
\t"zero_optimization": {
\t\t"stage": 3,
\t\t"stage3_max_live_parameters": 1e9,
\t\t"reduce_bucket_size": 5e8
\t},
\t"activation_checkpointing": { "number_checkpoints" : 32 }
}
"""
TOML = """# ours
[model]
name = "llama3"
flavor = "8B"   # é

[training]
local_batch_size=16
global_batch_size = 64
seq_len = 4096 # tokens
steps = 1_000

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree  =  2
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = 1
fsdp_reshard_after_forward = 'never'
module_fqns_per_model_part = [
    # the layers. of the first
    ["tok_embeddings", LAYERS_0],  # one more
    [LAYERS_1, "norm", 'output'],
]
[activation_checkpoint]
mode = 'full'
[checkpoint]
enable = true
"""
for part, layers in enumerate((range(17), range(17, 32))):
    TOML = TOML.replace(f"LAYERS_{part}", ", ".join(f'"layers.{n}"' for n in layers))
RESHARD = "  fsdp_reshard_after_forward: TRUE   # as in the paper\n"
STYLES = {
    "mindformers": ("mindformers", "x.yaml", MINDFORMERS),
    "accelerate": ("accelerate", "a.yaml", ACCELERATE),
    "older": (
        "accelerate",
        "a.yml",
        ACCELERATE.replace("version: 2", "sharding_strategy: FULL_SHARD").replace(RESHARD, ""),
    ),
    "deepspeed": ("deepspeed", "ds.json", DEEPSPEED),
    "job": ("torchtitan-0.2", "job.toml", TOML),
}  # fmt: skip


def other_lines(text: str) -> str:
    """The same with the line ends of another system, and without the last one."""
    return text.replace("\n", "\r\n").removesuffix("\r\n")


def own(to: str, name: str, text: str, folder: Path, chips: int) -> Plan:
    """What the file says, priced as it is."""
    (folder / name).write_bytes(text.encode())
    question = Question(
        model="" if to == "mindformers" else "llama-3-8b",
        cluster=f"a910b:{chips}" if to == "mindformers" else f"h100-sxm:{chips}",
        seq_len=None if to == "mindformers" else 4096,
    )
    found = check(folder / name, question, search=False).plan
    assert found is not None
    return found


@pytest.mark.parametrize("ends", [str, other_lines], ids=["as they are", "other ends"])
@pytest.mark.parametrize("style", STYLES)
def test_the_plan_that_a_file_says_changes_no_byte_of_it(
    style: str, ends: Any, tmp_path: Path
) -> None:
    to, name, text = STYLES[style]
    text = ends(text)
    assert (
        export_like(
            own(to, name, text, tmp_path, 64 if to == "mindformers" else 16), to, name, text
        ).text
        == text
    )


@pytest.mark.parametrize(
    ("name", "to", "file"),
    [
        *(("ascend", "mindformers", 0), ("ascend-uneven", "mindformers", 0), ("ascend-experts", "mindformers", 0)),
        *(("ascend-selective", "mindformers", 0), ("fsdp", "accelerate", 0), ("fsdp-hybrid", "accelerate", 0)),
        *(("fsdp-ring", "accelerate", 0), ("zero", "deepspeed", 0), ("autotp", "deepspeed", 0)),
        *(("ulysses", "deepspeed", 0), ("titan", "torchtitan", 0), ("titan-stages", "torchtitan", 0)),
        *(("titan", "torchtitan-0.2", 0), ("titan-stages", "torchtitan-0.2", 0)),
        *(("dense", "megatron", 0), ("uneven", "megatron", 0)),
    ],
)  # fmt: skip
def test_an_export_with_its_own_plan_is_the_same_file(name: str, to: str, file: int) -> None:
    written = export(plan(name), to)[file]
    assert export_like(plan(name), to, written.name, written.text).text == written.text


PARALLEL = (
    "data_parallel", "model_parallel", "pipeline_stage", "micro_batch_num", "use_seq_parallel", "recompute",
    "dataset_strategy", "enable_parallel_optimizer", "context_parallel", "gradient_accumulation", "offset",
    "pipeline_interleave", "pp_interleave_num", "runner_config", "parallel_optimizer_config", "optimizer_weight",
    "vocab_emb_dp", "fsdp_", "parallelism_config", "num_processes", "num_machines", "distributed_type", "stage",
    "train_micro_batch", "train_batch_size", "offload", "tensor_parallel", "sequence_parallel_size",
    "device", "number_checkpoints",
    "_parallel_", "module_fqns", "layers.", "mode", "local_batch_size", "global_batch_size", "selective_ac",
)  # fmt: skip
OTHERS = {
    "mindformers": [
        lambda: plan("ascend-selective"),
        lambda: stated("llama-3-8b", "a910b:64", "mindspore", "tp=2,pp=8,recompute=full,stage-layers=4+4+4+4+5+5+3+3"),
        lambda: stated("llama-3-8b", "a910b:64", "mindspore", "tp=8,pp=4,vpp=2,zero=0"),
    ],
    "accelerate": [
        lambda name=name: plan(name) for name in ("fsdp-2", "fsdp-hybrid", "fsdp-ring", "fsdp-host")
    ],
    "torchtitan-0.2": [
        lambda name=name: plan(name) for name in ("titan", "titan-stages", "titan-hybrid", "titan-host")
    ],
    "deepspeed": [
        lambda name=name: plan(name) for name in ("autotp", "ulysses", "fsdp-2", "fsdp-host")
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("style", "number"), [(s, n) for s, row in STYLES.items() for n in range(len(OTHERS[row[0]]))]
)
def test_another_plan_touches_its_own_lines(style: str, number: int, tmp_path: Path) -> None:
    to, name, text = STYLES[style]
    made = OTHERS[to][number]()
    for before in (text, other_lines(text)):
        after = export_like(made, to, name, before).text
        rows = list(
            difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True))
        )
        touched = [row[2:] for row in rows if row[:1] in "+-"]
        bare = [row.rstrip(" ,\r\n") for row in touched]
        touched = [row for row in bare if row.strip("\t {}]") and bare.count(row) == 1]
        assert touched
        strange = [row for row in touched if not any(key in row for key in PARALLEL)]
        if before.endswith("\n"):
            assert not strange, strange
        found, d = own(to, name, after, tmp_path, made.degrees.chips_used).degrees, made.degrees
        keys = [
            "dp",
            "tp",
            "pp",
            "cp",
            "vpp",
            "sharding",
            "recompute",
            "offload",
            "micro_batch",
            "num_micro_batches",
        ]
        assert {key: getattr(found, key) for key in keys} == {key: getattr(d, key) for key in keys}


def test_an_anchor_moves_with_what_repeats_it() -> None:
    text = MINDFORMERS.replace("[[4, 1], [4, 1], [1, 1]]", "[[*dp, 1], [*dp, 1], [1, 1]]")
    head, _, rest = text.partition("parallel:\n    par")
    section, _, tail = rest.partition("parallel_config:")
    keys, _, end = tail.partition("recompute_config:")
    text = f"{head}parallel_config:{keys}parallel:\n    par{section}recompute_config:{end}"
    after = export_like(plan("ascend-selective"), "mindformers", "x.yaml", text).text
    assert "data_parallel: &dp 8     # four a node" in after
    assert "dataset_strategy: [[*dp, 1], [*dp, 1], [1, 1]]" in after
    assert "hidden_size: 4_096" in after


def leaves(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        elif isinstance(key, str):
            yield (*path, key), value


def loaded(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def with_value(data: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    return {**data, path[0]: with_value(data[path[0]], path[1:], value)}


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_one_value_of_any_file(file: Path) -> None:
    """The same value changes nothing; another changes the lines of that value, and the data nowhere else."""
    text = file.read_text(encoding="utf-8")
    data = loaded(text)
    if not isinstance(data, dict):
        pytest.skip("a list of entries")
    rows = list(leaves(data))
    few = len(text) > 4000  # reading is slow, and is done anew after every change
    for path, value in rows[:: max(1, len(rows) // (1 if few else 2))]:
        assert edited(text, {path: value}, file.name) == text
        for new in (17,) if few else (True, [1, "b c"], "q: #"):
            after = edited(text, {path: new}, file.name)
            assert loaded(after) == with_value(data, path, new), (path, new)
            kept = set(text.splitlines()) - set(after.splitlines())
            lines = 1 + (value.count("\n") if isinstance(value, str) else 400)
            assert len(kept) <= lines, kept
        if value is not None and len(data) > 1:
            assert path not in dict(leaves(loaded(edited(text, {path: None}, file.name))))


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("a: True\nb: False\n", ("c",), False, "a: True\nb: False\nc: False\n"),
        ("a: true # x\n", ("a",), False, "a: false # x\n"),
        ("a: yes\n", ("a",), True, "a: yes\n"),
        ("s:\n    a: 1\n# end\n", ("s", "b"), 2, "s:\n    a: 1\n    b: 2\n# end\n"),
        ("s: {a: 1}\n", ("s", "b"), 2, "s: {a: 1, b: 2}\n"),
        ("s: {}\n", ("s", "b"), 2, "s: {b: 2}\n"),
        ("s:   # none yet\nt: 1\n", ("s", "b"), 2, "s:   # none yet\n  b: 2\nt: 1\n"),
        ("s: # x\n- 1\n- 2\nt: 1\n", ("s",), [3], "s: [3] # x\nt: 1\n"),
        ("s:\n  a: 1\n  b: 2 # b\n\nt: 1\n", ("s", "b"), None, "s:\n  a: 1\n\nt: 1\n"),
        ("s:\n  a: 1\nt: 1\n", ("s", "a"), None, "t: 1\n"),
        ("a: 'x'\n", ("a",), "it's", "a: 'it''s'\n"),
        ('a: "x"\n', ("a",), 'a"b\\', 'a: "a\\"b\\\\"\n'),
        ("b: &b {x: 1}\ns: {<<: *b, y: 2}\n", ("s", "x"), 3, "b: &b {x: 1}\ns: {<<: *b, y: 2, x: 3}\n"),
        ("b: &b {x: 1}\ns: *b\n", ("s", "x"), 1, "b: &b {x: 1}\ns: *b\n"),
        ("a: |\n  x\n  y\nb: 1\n", ("a",), 5, "a: 5\nb: 1\n"),
        ("a: 1", ("b",), 2, "a: 1\nb: 2\n"),
        ("a: !!int 1 # c\n", ("a",), 2, "a: !!int 2 # c\n"),
        ("é: ü\na: 1\n", ("a",), 2, "é: ü\na: 2\n"),
    ],
)  # fmt: skip
def test_styles(before: str, path: tuple[str, ...], value: Any, after: str) -> None:
    assert edited(before, {path: value}, "x.yaml") == after


def test_a_section_that_repeats_another_is_not_changed() -> None:
    with pytest.raises(PlannerError, match=r"s\.x stands in a section that repeats another"):
        edited("b: &b {x: 1}\ns: *b\n", {("s", "x"): 3}, "x.yaml")


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "", "a: b: c\n", "{"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    for name in ("x.yaml", "x.json"):
        with pytest.raises(PlannerError) as caught:
            edited(text, {("a",): 1}, name)
        assert caught.value.faults[0].code == "W05"


@pytest.mark.parametrize("indent", [None, 1, 2, "\t"])
@pytest.mark.parametrize("value", [3, [1], {"device": "cpu"}, None])
def test_json_in_any_style(indent: Any, value: Any) -> None:
    data = {"a": 1.50, "s": {"x": [1, {"y": "}"}], "z": '\u00e9"'}, "e": {}}
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    for path in (("s", "z"), ("s", "new"), ("e", "new"), ("a",), ("new",)):
        after = edited(text, {path: value}, "x.json")
        wanted = json.loads(text)
        inside = wanted
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value
        if value is None:
            del inside[path[-1]]
        assert json.loads(after) == wanted
        assert len(set(text.splitlines()) - set(after.splitlines())) <= (indent is None) + 2
