"""MindFormers 1.9.0 takes the exported YAML through its three stages, and gives layers to stages as the plan does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from plans import plan
from test_files import holding

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
