"""MindFormers 1.9.0 takes the exported YAML through its three stages, and gives layers to stages as the plan does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from plans import plan
from test_files import holding

from planner.api import Question, price
from planner.export.targets import export
from planner.export.view import View

os.environ.setdefault("GLOG_v", "4")
pytestmark = pytest.mark.filterwarnings("ignore")


def checked(text: str, folder: Path, world: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parsed by its templates, built into its own objects, and held against its rules."""
    import mindspore as ms
    from mindformers.core.parallel_config import build_parallel_config
    from mindformers.tools import check_rules
    from mindformers.tools.register.config import MindFormerConfig

    path = folder / "plan.yaml"
    path.write_text(text)
    monkeypatch.chdir(folder)  # it writes logs beside itself
    config = MindFormerConfig(str(path))
    build_parallel_config(config)
    config.metric = None  # the trainer turns this section into a list; nothing here needs it
    monkeypatch.setattr(check_rules, "get_real_group_size", lambda: world)
    monkeypatch.setattr(check_rules, "get_device_num_per_node", lambda: 8)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
    check_rules.check_rules(config, "train")
    return config


@pytest.mark.parametrize("name", holding("mindformers"))
def test_degrees(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = View(plan(name))
    d = view.degrees
    config = checked(export(plan(name), "mindformers")[0].text, tmp_path, view.world, monkeypatch)
    found = config.parallel_config
    assert (found.data_parallel, found.model_parallel, found.pipeline_stage) == (d.dp, d.tp, d.pp)
    assert found.context_parallel == d.cp
    assert found.expert_parallel == d.ep
    assert found.micro_batch_num == (d.num_micro_batches if d.pp > 1 else 1)
    assert found.vocab_emb_dp is False
    assert bool(found.recompute.recompute) == (d.recompute == "full")
    assert bool(found.recompute.select_recompute) == (d.recompute == "selective")


@pytest.mark.parametrize("name", [n for n in holding("mindformers") if plan(n).degrees.pp > 1])
def test_layers_of_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own division of layers, offsets and virtual stages included."""
    import mindspore as ms
    from mindformers.parallel_core.training_graph.transformer import utils

    view = View(plan(name))
    config = checked(export(plan(name), "mindformers")[0].text, tmp_path, view.world, monkeypatch)
    monkeypatch.setattr(utils, "is_legacy_model", lambda: True)
    ms.set_auto_parallel_context(pipeline_config=dict(config.parallel.pipeline_config))
    model = config.model.model_config
    setting = utils.LayerSetting(
        model.num_layers, model.offset, config.parallel_config, model.pp_interleave_num
    )
    places = list(zip(map(int, setting.interleave_ids), map(int, setting.pp_ids), strict=True))
    wanted = [
        (turn, stage)
        for turn in range(view.degrees.vpp)
        for stage, chunks in enumerate(view.chunks)
        for _ in chunks[turn]
    ]
    assert places == wanted


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("data_parallel: ", "data_parallel: 3  # "),
        ("use_seq_parallel", "use_sequence_parallel"),
        ("recompute: ", "recomputed: "),
    ],
)
def test_a_wrong_file_is_refused(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = export(plan("ascend"), "mindformers")[0].text
    assert before in text
    with pytest.raises((KeyError, ValueError)):
        checked(text.replace(before, after, 1), tmp_path, View(plan("ascend")).world, monkeypatch)


TINY = """name: tiny
source: "of this test"
hidden: 64
vocab: 128
max_seq: 32
layers: 2
attention: {heads: 4, kv_heads: 2, head_dim: 16}
"""
FEED = {
    "dense": ("mlp: {width: 96}", {}),
    "experts": ("experts: {count: 4, top_k: 2, width: 32}", {"shared_expert_num": 0}),
    "shared": ("experts: {count: 4, top_k: 2, width: 32, shared_width: 32}", {"shared_expert_num": 1}),
}  # fmt: skip


@pytest.mark.parametrize("kind", FEED)
def test_parameters_that_mindspore_s_files_name_are_those_of_its_model(
    kind: str, tmp_path: Path
) -> None:
    """Its own Llama has a parameter of each name and shape, and no other: what a file lacks is dropped silently."""
    import mindspore as ms
    from mindformers.models.llama import LlamaConfig, LlamaForCausalLM

    (tmp_path / "tiny.yaml").write_text(TINY + FEED[kind][0] + "\n")
    question = Question(
        model=str(tmp_path / "tiny.yaml"), cluster="a910b:8", trainer="mindspore", global_batch=16, seq_len=32,
    )  # fmt: skip
    layout: dict[str, int | str] = {"tp": 2, "dp": 4, "zero": 1}
    made = price(question, layout | ({"ep": 2, "etp": 2} if kind != "dense" else {}), usual=True)
    files = {file.name: file.text for file in export(made, "mindspore")}
    rows = json.loads(files["parameters_stage_0.json"])["parallel_layout_item"]
    experts = {"expert_num": 4, "num_experts_chosen": 2, "moe_intermediate_size": 32}
    experts |= {"routing_policy": "TopkRouterV2", "use_gmm": False} | FEED[kind][1]
    ms.reset_auto_parallel_context()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    net = LlamaForCausalLM(
        LlamaConfig(
            batch_size=1, seq_length=32, hidden_size=64, num_layers=2, num_heads=4, n_kv_heads=2, vocab_size=128,
            intermediate_size=96 if kind == "dense" else 32,
            **({"moe_config": experts} if kind != "dense" else {}),
        )
    )  # fmt: skip
    assert {p.name: list(p.shape) for p in net.get_parameters()} == {
        name: row["tensor_shape"] for name, row in rows.items()
    }
    up = [row for name, row in rows.items() if name.endswith("ffn.w1.weight")]
    assert [(row["dev_matrix"], row["tensor_map"]) for row in up] == (
        [([2, 2, 2], [1, 0, -1])] * 2 if kind != "dense" else []
    )
