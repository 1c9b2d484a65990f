"""Launch configurations that people run on Ascend, and mistakes that people made: read, judged, priced.

The configurations are facts outside the project; without them their tests are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import PlannerError
from planner.frontends.launch import megatron
from planner.frontends.launch.found import TrainerFile
from planner.frontends.launch.read import read_trainer_file
from planner.graph.blocks import build_model
from planner.question import Question
from planner.studies.check import check

FACTS = Path(__file__).parents[2].parent / "shared" / "facts"
EXAMPLES = FACTS / "runs" / "mindspeed_llm_example_configs.jsonl"
outside = pytest.mark.skipif(not EXAMPLES.exists(), reason="the configurations are not here")
BILLIONS = {
    "deepseek3_671b": 671.0, "deepseek2_lite_16b": 15.7, "qwen3_235b": 235.1, "qwen3_30b_a3b": 30.5,
    "glm45-moe_106b": 106.0, "qwen25_7b": 7.6, "qwen3_32b": 32.8, "qwen3_14b": 14.8, "qwen3_480b": 480.2,
}  # fmt: skip
"""Words of a script's name to the parameters that the model's card states."""


def examples() -> list[dict]:
    return [json.loads(line) for line in EXAMPLES.read_text().splitlines()]


def read(example: dict) -> TrainerFile:
    return megatron.read(example["script"], example["args"], example["cluster"])


@outside
def test_every_configuration_is_read() -> None:
    """All 99 are read with whole degrees; those without a vocabulary or with too few chips say so."""
    rows, missing, sizes = examples(), [], 0
    assert len(rows) == 99
    for row in rows:
        try:
            found = read(row)
        except PlannerError as error:
            assert {fault.code for fault in error.faults} <= {"M02", "D01"}, (row["script"], error)
            missing.append(row["script"])
            continue
        layout = {"tp": 1, "pp": 1, "cp": 1, "dp": 1} | dict(found.layout)
        used = layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"]
        assert used == found.chips == int(row["cluster"]["WORLD_SIZE"])
        assert found.architecture is not None
        count = build_model(found.architecture, 1024).num_params / 1e9
        for word, stated in BILLIONS.items():
            if word in row["script"]:
                assert count == pytest.approx(stated, rel=0.03), row["script"]
                sizes += 1
    assert len(missing) <= 6, missing
    assert sizes >= 15


@outside
def test_padded_depths() -> None:
    """DeepSeek-V3's 61 layers padded to 64, Qwen3-235B's 94 to 96: what is added does nothing (case B33)."""
    rows = [
        row
        for row in examples()
        if "noop-layers" in row["args"] and "deepseek3_671b" in row["script"]
    ]
    assert rows
    for row in rows:
        found = read(row)
        assert found.architecture is not None
        assert len(found.architecture.layers) == 61
        assert found.stages is not None
        assert sum(found.stages) == 61


@outside
def test_configurations_are_priced(tmp_path: Path) -> None:
    """A sample of different models is priced on the chips it names; rules of Megatron that it breaks are few."""
    wanted = {}
    for row in examples():
        wanted.setdefault(row["script"].split("/")[2], row)
    priced, broken = 0, {}
    for row in wanted.values():
        try:
            found = check(
                as_script(row, tmp_path), Question(model="", cluster="a910b"), search=False
            )
        except PlannerError:
            continue
        if found.plan is None:
            broken[row["script"]] = [fault.code for fault in found.broken]
            continue
        priced += 1
        assert 0.0 < found.plan.mfu < 0.8, row["script"]
    assert priced >= 10, broken
    assert len(broken) <= priced // 2, broken


def as_script(row: dict, folder: Path) -> Path:
    """The extract as the launch script that it was."""
    words = [
        f"--{key}" if value is True else f"--{key} {value}" for key, value in row["args"].items()
    ]
    lines = [f"{key}={value}" for key, value in row["cluster"].items()]
    path = folder / Path(row["script"]).name
    path.write_text("\n".join([*lines, f"torchrun pretrain_gpt.py {' '.join(words)}", ""]))
    return path


LLAMA = (
    "--num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --ffn-hidden-size 11008 "
    "--swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --vocab-size 32000 --seq-length 2048 --max-position-embeddings 2048 --bf16 "
    "--micro-batch-size 1 --use-distributed-optimizer "
)


def script(
    folder: Path, world: int, more: str, layers: int = 32, hidden: int = 4096, heads: int = 32
) -> Path:
    path = folder / "run.sh"
    words = LLAMA.format(layers=layers, hidden=hidden, heads=heads)
    path.write_text(f"WORLD_SIZE={world}\ntorchrun pretrain_gpt.py {words} {more}\n")
    return path


@pytest.mark.parametrize(
    ("case", "world", "more", "layers", "heads", "codes", "phrase"),
    [
        ("B01", 64, "--pipeline-model-parallel-size 16 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 64",
         80, 32, {"P01"}, "80 layers do not divide among 32 stages"),
        ("B02", 64, "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2 --global-batch-size 64",
         40, 32, {"P01"}, "40 layers are no multiple of pp 8 × 2"),
        ("B04", 256, "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --global-batch-size 64",
         46, 32, {"P01"}, "46 layers do not divide among 4 stages"),
        ("B08", 8, "--tensor-model-parallel-size 8 --global-batch-size 64", 32, 52, {"D02"}, "52"),
        ("B19", 7, "--global-batch-size 256 ", 32, 32, {"B01"}, "256 is not a multiple"),
        ("B30", 4, "--num-experts 8 --expert-model-parallel-size 8 --global-batch-size 64", 32, 32, {"E02"}, "ep 8"),
    ],
)  # fmt: skip
def test_mistakes_that_people_made(
    case: str,
    world: int,
    more: str,
    layers: int,
    heads: int,
    codes: set[str],
    phrase: str,
    tmp_path: Path,
) -> None:
    """Cases B of the collection, as launch scripts: refused with what is wrong, not trained with layers lost."""
    hidden = 6656 if heads == 52 else 4096
    path = script(tmp_path, world, more, layers, hidden, heads)
    try:
        found = check(path, Question(model="", cluster="a100-sxm-80gb"), search=False)
        faults = found.broken
        assert found.plan is None, case
    except PlannerError as error:
        faults = error.faults
    assert {fault.code for fault in faults} & codes, (case, faults)
    assert any(phrase in str(fault) for fault in faults), (case, faults)


def test_expert_degrees_default_as_megatron_s_do(tmp_path: Path) -> None:
    """Case B15: experts' tensor parallelism is tp unless stated, so that it is always exported."""
    more = "--tensor-model-parallel-size 4 --num-experts 8 --expert-model-parallel-size 4 --sequence-parallel "
    found = read_trainer_file(script(tmp_path, 16, more + "--global-batch-size 64"))
    assert (found.layout["ep"], found.layout["etp"]) == (4, 4)
    stated = more + "--expert-tensor-parallel-size 1 --global-batch-size 64"
    assert "etp" not in read_trainer_file(script(tmp_path, 16, stated)).layout
