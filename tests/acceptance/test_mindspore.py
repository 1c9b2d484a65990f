"""MindSpore cuts a checkpoint by the exported files: every slice is the plan's, and merged back it is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.api import Question, price
from planner.errors import PlannerError
from planner.export.targets import export
from planner.export.view import View
from planner.plan.schema import Degrees, Plan

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = """name: tiny
source: "of this test"
hidden: 64
vocab: 128
max_seq: 64
layers: 4
attention: {heads: 8, kv_heads: 8, head_dim: 8}
"""
DENSE, SPARSE = "mlp: {width: 96}\n", "experts: {count: 8, top_k: 2, width: 96}\n"
SPLIT = {
    "attention.wq.weight": 0, "attention.wk.weight": 0, "attention.wv.weight": 0, "attention.wo.weight": 1,
    "feed_forward.w1.weight": 0, "feed_forward.w3.weight": 0, "feed_forward.w2.weight": 1,
    "tok_embeddings.embedding_weight": 0, "lm_head.weight": 0,
}  # fmt: skip
"""Which dim of a parameter tensor parallelism cuts; the norms are whole."""


def made(folder: Path, layout: dict[str, int | str]) -> Plan:
    (folder / "tiny.yaml").write_text(MODEL + (SPARSE if "ep" in layout else DENSE))
    question = Question(
        model=str(folder / "tiny.yaml"),
        cluster="a910b:8",
        trainer="mindspore",
        global_batch=16,
        seq_len=64,
    )
    return price(question, layout, usual=True)


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


def test_parts_of_layers_are_computed_again(tmp_path: Path) -> None:
    """Cells and primitives of a layer under the names that its parameters have; a layer without them is refused."""
    from mindspore import nn, ops

    class Layer(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.ffn_norm, self.feed_forward = nn.Cell(), nn.Cell(), nn.Cell()
            self.feed_forward.mul, self.feed_forward.w1 = ops.Mul(), nn.Cell()
            self.feed_forward.w1.activation = nn.Cell()
            self.feed_forward.w1.activation.silu, self.other = ops.ReLU(), ops.Add()

    plan = made(tmp_path, {"dp": 4, "tp": 2, "recompute": "selective"})
    files = {file.name: file.text for file in export(plan, "mindspore")}
    scope: dict[str, Any] = {}
    exec(compile(files["auto_parallel.py"], "auto_parallel.py", "exec"), scope)
    layers = [Layer() for _ in range(4)]
    scope["wrapped"](nn.Dense(4, 4), layers)
    for layer in layers:
        gate = layer.feed_forward
        for primitive in (gate.mul, gate.w1.activation.silu):
            assert primitive.get_attr_dict()["recompute"] is True
        assert "recompute" not in layer.other.get_attr_dict()
        for cell in (layer.attention_norm, layer.ffn_norm):
            assert cell.get_scope().startswith("recompute_")
            assert cell.get_flags()["output_recompute"] is True
    with pytest.raises(AttributeError):
        scope["wrapped"](nn.Dense(4, 4), [nn.Cell()])


def test_six_chips_are_refused_here_as_there(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(MODEL + DENSE)
    question = Question(
        model=str(tmp_path / "tiny.yaml"), cluster="a910b:6", global_batch=6, seq_len=64
    )
    plan = price(question, {"dp": 6}, usual=True)
    with pytest.raises(PlannerError, match="6 devices"):
        export(plan, "mindspore")


FIRST, SECOND = "attention-Attention", "feed_forward-FeedForward"


def net_names(d: Degrees, *, experts: bool) -> dict[str, Any]:
    """Every operator of one layer of ``mindspore_simulated``, and the plan's operator whose work it does."""
    kind = "moe" if experts else "dense"
    names: dict[str, Any] = {"_VirtualDataset-op0": [[1, 1]]}
    for norm, source, cell in (("norm1", "x", "attention_norm"), ("norm2", "x_middle", "ffn_norm")):
        for primitive in ("Square", "ReduceMean", "Rsqrt"):
            names[f"{cell}-Norm/{primitive}-op0"] = (0, norm, source)
        names[f"{cell}-Norm/Mul-op0"] = (0, norm, source, source)
        names[f"{cell}-Norm/Mul-op1"] = (0, norm, source, f"{kind}.{norm}.weight")
    products = {
        f"{FIRST}/wq": ("attn.q", "normed1"), f"{FIRST}/wk": ("attn.kv", "normed1"),
        f"{FIRST}/wv": ("attn.kv", "normed1"), f"{FIRST}/wo": ("attn.out", "o"),
    }  # fmt: skip
    for cell, (operator, source) in products.items():
        names[f"{cell}-Weighed/MatMul-op0"] = (0, operator, source, f"{kind}.{operator}.weight")
    names |= _experts() if experts else _feed_forward()
    names |= {
        "Add-op0": (0, "add1", "x", "attn_out"),
        "Add-op1": (0, "add2", "x_middle", "moe_out" if experts else "mlp_out"),
        f"{FIRST}/Softmax-op0": (0, "attn.core", "q_placed"),
        f"{FIRST}/BatchMatMul-op0": (0, "attn.core", "q_placed", "kv_placed"),
        f"{FIRST}/BatchMatMul-op1": (0, "attn.core", "q_placed", "kv_placed"),
        f"{FIRST}/Transpose-op3": (0, "attn.core", "q_placed"),
    }
    for number in range(3):
        names[f"{FIRST}/Transpose-op{number}"] = [[d.dp, 1, d.tp, 1]]
        names[f"{FIRST}/Reshape-op{number}"] = [[1, 1]]
    names[f"{FIRST}/Reshape-op3"] = [[1, 1, 1, 1]]
    return {f"Default/{name}": value for name, value in names.items()}


def _feed_forward() -> dict[str, Any]:
    rows = {"w1": ("mlp.up", "normed2"), "w3": ("mlp.up", "normed2"), "w2": ("mlp.down", "mlp_act")}
    return {
        f"{SECOND}/{cell}-Weighed/MatMul-op0": (0, operator, source, f"dense.{operator}.weight")
        for cell, (operator, source) in rows.items()
    } | {
        f"{SECOND}/ReLU-op0": (0, "mlp.down", "mlp_act"),
        f"{SECOND}/Mul-op0": (0, "mlp.down", "mlp_act", "mlp_act"),
    }


def _experts() -> dict[str, Any]:
    part = "feed_forward-Sparse"
    rows = {"w1": ("moe.up", "routed"), "w3": ("moe.up", "routed"), "w2": ("moe.down", "moe_act")}
    return {
        f"{part}/ffn-Experts/{cell}-Weighed/BatchMatMul-op0": (0, operator, source, f"moe.{operator}.weight")
        for cell, (operator, source) in rows.items()
    } | {
        f"{part}/ffn-Experts/ReLU-op0": (0, "moe.act", "moe_up"),
        f"{part}/ffn-Experts/Mul-op0": (0, "moe.act", "moe_up", "moe_up"),
        f"{part}/router-Router/dense-Weighed/MatMul-op0": (0, "moe.router", "normed2", "moe.moe.router.weight"),
        f"{part}/ReduceMean-op0": (0, "moe.top_k", "router_logits"),
        f"{part}/Mul-op0": (0, "moe.top_k", "router_logits", "router_logits"),
        f"{part}/Reshape-op0": [[1, 1]],
        f"{part}/Reshape-op1": [[1, 1, 1, 1]],
    }  # fmt: skip


def compiled(
    devices: int, rank: int, file: Path, experts: int = 0
) -> subprocess.CompletedProcess[str]:
    spec: dict[str, Any] = {
        "batch": 8,
        "seq": 64,
        "hidden": 64,
        "heads": 8,
        "ffn": 96,
        "experts": experts,
    }
    spec |= {"devices": devices, "rank": rank, "file": str(file)}
    program = Path(__file__).with_name("mindspore_simulated.py")
    return subprocess.run(
        [sys.executable, str(program), json.dumps(spec)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def written(plan: Plan, file: Path) -> dict[str, list[list[int]]]:
    """The operator strategies of the net, written by the exported module."""
    text = next(f.text for f in export(plan, "mindspore") if f.name == "operator_strategy.py")
    scope: dict[str, Any] = {}
    exec(compile(text, "operator_strategy.py", "exec"), scope)
    scope["strategy_file"](str(file), net_names(plan.degrees, experts=View(plan).experts))
    items = json.loads(file.read_text())["parallel_strategy_item"]
    return {name: item["parallel_strategy"] for name, item in items.items()}


def loaded(
    layout: dict[str, int], folder: Path, experts: int = 0
) -> tuple[set[str], dict[str, list[int]]]:
    """Compiled with the exported strategies, as which the compiler tells them and cuts every weight of a layer.

    Gives the names of operators that have a strategy, and groups of ranks by the names that it gives them.
    """
    plan = made(folder, layout | {"zero": 0})
    wanted = written(plan, folder / "operators.json")
    done = compiled(8, 5, folder / "operators.json", experts)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    own, told = (
        {name: cut for name, cut in some.items() if "Reshape" not in name}
        for some in (wanted, found["strategies"])
    )
    assert told == own
    layouts = stage_files(plan)[0]["parallel_layout_item"]
    weights = {name: item for name, item in found["layouts"].items() if name != "x"}
    assert len(weights) == (10 if experts else 9)
    for name, item in weights.items():
        stated = layouts[f"model.layers.0.{name}"]
        parts = [1 if at < 0 else stated["dev_matrix"][::-1][at] for at in stated["tensor_map"]]
        sizes = zip(stated["tensor_shape"], parts, strict=True)
        assert item["slice"] == [size // count for size, count in sizes], name
    return set(wanted), found["groups"]


@pytest.mark.parametrize("layout", [{"tp": 2, "dp": 4}, {"tp": 4, "dp": 2}, {"tp": 8}, {"dp": 8}])
def test_the_compiler_loads_the_strategies_and_cuts_by_them(
    layout: dict[str, int], tmp_path: Path
) -> None:
    """The compiler's own strategies, slices of weights and groups of ranks, for devices that are not there."""
    _, found = loaded(layout, tmp_path)
    tp, groups = layout.get("tp", 1), {tuple(ranks) for ranks in found.values()}
    mesh = {tuple(range(5 // tp * tp, 5 // tp * tp + tp)), tuple(range(5 % tp, 8, tp))}
    whole, one = tuple(range(8)), (5,)
    assert groups >= mesh - {whole, one}, "that of all ranks is there already"


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "dp": 4, "ep": 2, "etp": 2}, {"tp": 2, "dp": 4, "ep": 4, "etp": 2}, {"dp": 8, "ep": 4, "etp": 1}],
)  # fmt: skip
def test_the_compiler_loads_the_strategies_of_experts(
    layout: dict[str, int], tmp_path: Path
) -> None:
    """The same of a layer with experts."""
    names, _ = loaded(layout, tmp_path, experts=8)
    assert sum("BatchMatMul" in name and "Experts" in name for name in names) == 3


def test_a_wrong_strategy_does_not_compile(tmp_path: Path) -> None:
    """What the file says is used: a product whose sides do not fit is refused."""
    written(made(tmp_path, {"tp": 2, "dp": 4, "zero": 0}), tmp_path / "operators.json")
    data = json.loads((tmp_path / "operators.json").read_text())
    wrong = data["parallel_strategy_item"][f"Default/{SECOND}/w2-Weighed/MatMul-op0"]
    wrong["parallel_strategy"] = [[4, 2], [1, 1]]
    (tmp_path / "operators.json").write_text(json.dumps(data))
    done = compiled(8, 0, tmp_path / "operators.json")
    assert done.returncode != 0
    assert "Load strategies failed" in done.stderr
