"""Megatron-LM 0.19.2 takes the exported arguments and derives the plan's degrees, stages, groups and batches."""

from __future__ import annotations

import json
import re

import pytest
from megatron_cpu import FOR_CPU, LATER, groups, load, parsed, without
from plans import LAYOUTS, plan

from planner.export.targets import export
from planner.export.view import View

NAMES = [
    name for name, row in LAYOUTS.items() if row[2] == "megatron"
] + ["ascend", "ascend-uneven", "ascend-experts"]  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")


def exported(name: str) -> dict:
    files = {file.name: file.text for file in export(plan(name), "megatron")}
    return json.loads(files["megatron.json"])


def accepted(name: str, rank: int = 0) -> tuple:
    data = exported(name)
    words = [*without([*data["plan"], *data["model"]], LATER), *FOR_CPU]
    return parsed(words, data["world_size"], rank, **data["environment"])


@pytest.mark.parametrize("name", NAMES)
def test_degrees_and_batches(name: str) -> None:
    args, config = accepted(name)
    d, recipe = plan(name).degrees, plan(name).recipe
    assert args.data_parallel_size == d.dp
    assert (args.tensor_model_parallel_size, args.context_parallel_size) == (d.tp, d.cp)
    assert args.pipeline_model_parallel_size == d.pp
    assert (args.virtual_pipeline_model_parallel_size or 1) == d.vpp
    assert args.global_batch_size == d.dp * d.micro_batch * d.num_micro_batches
    assert args.sequence_parallel == (d.sequence_parallel and d.tp > 1)
    alone = d.dp * d.cp == 1
    assert args.use_distributed_optimizer == (
        d.offload == "optimizer" if alone else d.sharding == "ZeRO-1"
    ), "one data rank has nothing to share, but only this optimizer steps on the host"
    assert config.num_layers == plan(name).model.num_layers
    assert args.seq_length == recipe.seq
    granularity = {"none": None, "full": "full", "selective": "selective"}
    assert config.recompute_granularity == granularity[d.recompute]
    if View(plan(name)).experts:
        assert (config.expert_model_parallel_size, config.expert_tensor_parallel_size) == (
            d.ep,
            d.etp,
        )


@pytest.mark.parametrize("name", [n for n in NAMES if "pp=" in LAYOUTS[n][5]])
def test_layers_of_every_stage(name: str) -> None:
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    view = View(plan(name))
    d = view.degrees
    for stage in sorted({0, 1, d.pp // 2, d.pp - 1}):
        inside = view.world // d.pp
        rank = stage * inside if d.order.index("pp") > d.order.index("dp") else stage * d.tp
        args, config = accepted(name, rank)
        with groups(args, view.world, rank):
            for chunk, layers in enumerate(view.chunks[stage]):
                vp = chunk if d.vpp > 1 else None
                assert get_num_layers_to_build(config, vp, stage) == len(layers)
                if layers:
                    assert get_transformer_layer_offset(config, vp, stage) == layers[0]


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_the_mesh_of_the_plan(name: str) -> None:
    view = View(plan(name))
    d, rank = view.degrees, view.world - 1
    args, _ = accepted(name, rank)
    with groups(args, view.world, rank) as state:
        found = {
            "tp": state.get_tensor_model_parallel_group(),
            "cp": state.get_context_parallel_group(),
            "dp": state.get_data_parallel_group(),
            "pp": state.get_pipeline_model_parallel_group(),
        }
        import torch

        stride = 1
        for axis in d.order:
            size = getattr(d, axis)
            ranks = torch.distributed.get_process_group_ranks(found[axis])
            last = rank - (size - 1) * stride
            assert ranks == list(range(last, rank + 1, stride)), axis
            stride *= size
        if view.experts:
            assert state.get_expert_model_parallel_world_size() == d.ep
            assert state.get_expert_data_parallel_world_size() == d.dp * d.cp * d.tp // (
                d.ep * d.etp
            )
        if args.num_distributed_optimizer_instances > 1:
            part = state.get_data_parallel_group(
                with_context_parallel=True, partial_data_parallel=True
            )
            assert torch.distributed.get_world_size(part) == d.shard_group


@pytest.mark.parametrize("name", ["dense", "uneven", "wide"])
def test_every_option_is_known(name: str) -> None:
    """Also those that the check leaves out because they need Transformer Engine."""
    import argparse

    data = exported(name)
    load()
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_megatron_arguments(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    asked = {word for word in [*data["plan"], *data["model"]] if word.startswith("--")}
    assert asked <= known
    assert LATER & asked


def test_a_wrong_plan_is_refused() -> None:
    """The check can fail: one layer too many in the layout, one stage less, a world that does not divide."""
    data = exported("uneven")
    words = [*without([*data["plan"], *data["model"]], LATER), *FOR_CPU]
    at = words.index("--pipeline-model-parallel-layout") + 1
    longer = [*words[:at], re.sub(r"L$", "tL", words[at]), *words[at + 1 :]]
    for wrong, world in ((longer, data["world_size"]), (words, data["world_size"] + 1)):
        with pytest.raises(ValueError, match=r"."):
            parsed(wrong, world, **data["environment"])
    with pytest.raises(ValueError, match="CUDA_DEVICE_MAX_CONNECTIONS"):
        parsed(words, data["world_size"])


@pytest.mark.parametrize(
    ("name", "stage"), [("dense", 0), ("dense", 2), ("dense", 3), ("uneven", 4), ("copies", 0)]
)
def test_parameters_of_a_rank(name: str, stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron's own model, built without memory for one rank, has the parameters whose bytes the plan counts."""
    import torch

    load()
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding
    from torch._subclasses.fake_tensor import FakeTensorMode

    view = View(plan(name))
    d = view.degrees
    rank = stage * (view.world // d.pp)
    args, config = accepted(name, rank)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "Stream", lambda *a, **k: None)
    config.use_cpu_initialization, config.gradient_accumulation_fusion = True, False
    config.sequence_parallel = False  # the norm of the local layers refuses it; it changes no shape
    count = 0
    with groups(args, view.world, rank), FakeTensorMode():
        for chunk in range(d.vpp):
            place = stage + chunk * d.pp
            model = GPTModel(
                config=config,
                transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
                vocab_size=vocab_size_with_padding(args.vocab_size, args, logging_enabled=False),
                max_sequence_length=args.max_position_embeddings,
                pre_process=place == 0,
                post_process=place == d.pp * d.vpp - 1,
                share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                position_embedding_type="rope",
                vp_stage=chunk if d.vpp > 1 else None,
            )
            count += sum(p.numel() for p in model.parameters())
    weights = next(term for term in view.plan.stages[stage].memory if term.name == "memory.weights")
    assert count == pytest.approx(weights.value / 2, rel=1e-9)
