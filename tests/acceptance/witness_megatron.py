"""What Megatron-LM and Megatron-Bridge derive from an export, and what Megatron-Core builds of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron_cpu import groups, load
from plans import plan
from test_megatron import accepted
from witness import Facts, batches, degrees, group, stages, weights

from planner.export.view import View


def facts(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Everything: the parser, the groups of the last rank, and the model of a rank of every stage."""
    view = View(plan(name))
    args, config = accepted(name)
    micro = args.micro_batch_size
    found: Facts = {
        "degrees": (
            [args.data_parallel_size, args.tensor_model_parallel_size, args.pipeline_model_parallel_size,
             args.context_parallel_size, config.expert_model_parallel_size,
             args.virtual_pipeline_model_parallel_size or 1],
            degrees(view),
        ),
        "batches": (
            [micro, args.global_batch_size // (micro * args.data_parallel_size), args.global_batch_size,
             args.seq_length],
            batches(view),
        ),
    }  # fmt: skip
    return found | built(view, lambda rank: accepted(name, rank), monkeypatch)


def built(view: View, configured: Any, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Layers, parameters and groups of ranks as Megatron-Core makes them from a configuration."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    d = view.degrees
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "Stream", lambda *a, **k: None)
    cut: dict[int, list[int]] = {}
    counts = []
    for stage in range(d.pp):
        rank = stage * (view.world // d.pp)
        args, config = configured(rank)
        with groups(args, view.world, rank):
            for chunk in range(d.vpp):
                vp = chunk if d.vpp > 1 else None
                start = get_transformer_layer_offset(config, vp, stage)
                size = get_num_layers_to_build(config, vp, stage)
                cut[chunk * d.pp + stage] = list(range(start, start + size))
            counts.append(parameters(args, config, stage, d.pp, d.vpp))
    last = view.world - 1
    args, _ = configured(last)
    with groups(args, view.world, last) as state:
        made = {
            "tp": state.get_tensor_model_parallel_group(),
            "cp": state.get_context_parallel_group(),
            "dp": state.get_data_parallel_group(),
            "pp": state.get_pipeline_model_parallel_group(),
        }
        ranks = {axis: torch.distributed.get_process_group_ranks(g) for axis, g in made.items()}
    return {
        "stages": ([cut[n] for n in range(len(cut))], stages(view)),
        "ranks": (ranks, {axis: group(view, last, axis) for axis in made}),
        "parameters": (counts, [weights(view, stage) for stage in range(d.pp)]),
    }


def parameters(args: Any, config: Any, stage: int, pp: int, vpp: int) -> int:
    """Numbers that a rank's part of Megatron's own model has."""
    load()
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding
    from torch._subclasses.fake_tensor import FakeTensorMode

    config.use_cpu_initialization, config.gradient_accumulation_fusion = True, False
    config.sequence_parallel = False  # the norm of the local layers refuses it; it changes no shape
    config.context_parallel_size = (
        1  # what needs Transformer Engine or HybridEP, and changes no shape either
    )
    config.persist_layer_norm = False
    config.moe_grouped_gemm, config.moe_token_dispatcher_type = False, "alltoall"
    experts = config.num_moe_experts
    count = 0
    with FakeTensorMode():
        for chunk in range(vpp):
            place = stage + chunk * pp
            model = GPTModel(
                config=config,
                transformer_layer_spec=get_gpt_layer_local_spec(
                    num_experts=experts, normalization="RMSNorm", qk_layernorm=config.qk_layernorm
                ),
                vocab_size=vocab_size_with_padding(args.vocab_size, args, logging_enabled=False),
                max_sequence_length=args.max_position_embeddings,
                pre_process=place == 0,
                post_process=place == pp * vpp - 1,
                share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                position_embedding_type="rope",
                vp_stage=chunk if vpp > 1 else None,
            )  # fmt: skip
            count += sum(p.numel() for p in model.parameters())
    return count


def bridge(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Bridge's own configuration after its validation; stages and groups as Megatron-Core makes them from it."""
    from test_bridge import configured, loaded

    view = View(plan(name))
    for variable in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.setenv(variable, "1")
    config = configured(loaded(), name)
    model, micro = config.model, config.train.micro_batch_size
    batch = config.train.global_batch_size
    found: Facts = {
        "degrees": (
            [config.data_parallel_size, model.tensor_model_parallel_size, model.pipeline_model_parallel_size,
             model.context_parallel_size, model.expert_model_parallel_size,
             model.virtual_pipeline_model_parallel_size or 1],
            degrees(view),
        ),
        "batches": (
            [micro, batch // (micro * config.data_parallel_size), batch, config.dataset.seq_length],
            batches(view),
        ),
    }  # fmt: skip
    args = SimpleNamespace(
        **{key: getattr(model, key) for key in (
            "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
            "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size")},
        num_distributed_optimizer_instances=config.ddp.num_distributed_optimizer_instances,
        use_tp_pp_dp_mapping=config.dist.use_tp_pp_dp_mapping, vocab_size=model.vocab_size,
        make_vocab_size_divisible_by=model.make_vocab_size_divisible_by,
        max_position_embeddings=model.seq_length, rank=0,
        untie_embeddings_and_output_weights=not model.share_embeddings_and_output_weights,
    )  # fmt: skip
    return found | built(view, lambda rank: (args, model), monkeypatch)
