"""MindSpore cuts a checkpoint by the exported files: every slice is the plan's, and merged back it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.api import Question, price
from planner.errors import PlannerError
from planner.export.targets import export
from planner.export.view import View
from planner.plan.schema import Plan

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = """name: tiny
source: "of this test"
hidden: 64
vocab: 128
max_seq: 64
layers: 4
attention: {heads: 8, kv_heads: 8, head_dim: 8}
mlp: {width: 96}
"""
SPLIT = {
    "attention.wq.weight": 0, "attention.wk.weight": 0, "attention.wv.weight": 0, "attention.wo.weight": 1,
    "feed_forward.w1.weight": 0, "feed_forward.w3.weight": 0, "feed_forward.w2.weight": 1,
    "tok_embeddings.embedding_weight": 0, "lm_head.weight": 0,
}  # fmt: skip
"""Which dim of a parameter tensor parallelism cuts; the norms are whole."""


def made(folder: Path, layout: dict[str, int | str]) -> Plan:
    (folder / "tiny.yaml").write_text(MODEL)
    question = Question(
        model=str(folder / "tiny.yaml"),
        cluster="a910b:8",
        trainer="mindspore",
        global_batch=16,
        seq_len=64,
    )
    return price(question, layout)


def stage_files(plan: Plan) -> list[dict[str, Any]]:
    return [
        json.loads(f.text)
        for f in export(plan, "mindspore")
        if f.name.startswith("parameters_stage_")
    ]


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "dp": 4, "zero": 0},
        {"tp": 4, "dp": 2, "zero": 0},
        {"tp": 8, "zero": 0},
        {"tp": 2, "pp": 2, "dp": 2, "zero": 0},
        {"tp": 2, "cp": 2, "dp": 2, "zero": 0},
    ],
)
def test_slices(layout: dict[str, int | str], tmp_path: Path) -> None:
    import mindspore as ms

    plan = made(tmp_path, layout)
    d, view = plan.degrees, View(plan)
    data = stage_files(plan)[0]
    rng = np.random.default_rng(0)
    layouts = data["parallel_layout_item"]
    full = {
        name: rng.normal(size=item["tensor_shape"]).astype("float32")
        for name, item in layouts.items()
    }
    (tmp_path / "src" / "rank_0").mkdir(parents=True)
    rows = [{"name": name, "data": ms.Tensor(value)} for name, value in full.items()]
    ms.save_checkpoint(rows, str(tmp_path / "src" / "rank_0" / "full.ckpt"))
    (tmp_path / "plan.json").write_text(json.dumps(data))
    ms.transform_checkpoints(
        str(tmp_path / "src"), str(tmp_path / "cut"), "c", None, str(tmp_path / "plan.json")
    )
    for rank in range(view.world // d.pp):
        found = ms.load_checkpoint(str(tmp_path / "cut" / f"rank_{rank}" / f"c{rank}.ckpt"))
        assert found.keys() == full.keys()
        for name, value in full.items():
            dim = next((dim for key, dim in SPLIT.items() if name.endswith(key)), None)
            want = value if dim is None else np.split(value, d.tp, axis=dim)[rank % d.tp]
            assert np.array_equal(found[name].asnumpy(), want), (rank, name)
    ms.transform_checkpoints(
        str(tmp_path / "cut"), str(tmp_path / "back"), "b", str(tmp_path / "plan.json"), None
    )
    whole = ms.load_checkpoint(str(tmp_path / "back" / "rank_0" / "b0.ckpt"))
    assert all(np.array_equal(whole[name].asnumpy(), value) for name, value in full.items())


def test_a_wrong_map_is_found_by_this_test(tmp_path: Path) -> None:
    import mindspore as ms

    data = stage_files(made(tmp_path, {"tp": 2, "dp": 4, "zero": 0}))[0]
    name = "model.layers.0.attention.wq.weight"
    data["parallel_layout_item"][name]["tensor_map"] = [-1, 5]
    value = np.zeros(data["parallel_layout_item"][name]["tensor_shape"], dtype="float32")
    (tmp_path / "src" / "rank_0").mkdir(parents=True)
    ms.save_checkpoint(
        [{"name": name, "data": ms.Tensor(value)}], str(tmp_path / "src" / "rank_0" / "full.ckpt")
    )
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(Exception, match=r"."):
        ms.transform_checkpoints(
            str(tmp_path / "src"), str(tmp_path / "cut"), "c", None, str(tmp_path / "plan.json")
        )


def test_every_parameter_of_the_model_is_in_one_stage(tmp_path: Path) -> None:
    """What the file leaves out would be dropped silently."""
    plan = made(tmp_path, {"tp": 2, "pp": 2, "dp": 2, "zero": 0})
    names = [name for data in stage_files(plan) for name in data["parallel_layout_item"]]
    assert len(names) == len(set(names)) == 9 * 4 + 3
    sizes = [
        np.prod(i["tensor_shape"])
        for data in stage_files(plan)
        for i in data["parallel_layout_item"].values()
    ]
    assert sum(sizes) == plan.model.num_params


def test_the_settings_are_what_its_classes_take(tmp_path: Path) -> None:
    """The exported module runs: AutoParallel takes every setting, for pipelines and sharded states."""
    from mindspore import nn

    for layout in ({"tp": 2, "pp": 2, "dp": 2, "zero": 1}, {"tp": 2, "dp": 4, "zero": 1}):
        plan = made(tmp_path, layout)
        text = next(f.text for f in export(plan, "mindspore") if f.name == "auto_parallel.py")
        scope: dict[str, Any] = {}
        exec(compile(text, "auto_parallel.py", "exec"), scope)
        net = scope["configured"](nn.Dense(4, 4))
        assert type(net).__name__ == "AutoParallel"
        stages = set(scope["STAGES"].values())
        assert stages == (set(range(plan.degrees.pp)) if plan.degrees.pp > 1 else set())


def test_six_chips_are_refused_here_as_there(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(MODEL)
    question = Question(
        model=str(tmp_path / "tiny.yaml"), cluster="a910b:6", global_batch=6, seq_len=64
    )
    plan = price(question, {"dp": 6})
    with pytest.raises(PlannerError, match="6 devices"):
        export(plan, "mindspore")
