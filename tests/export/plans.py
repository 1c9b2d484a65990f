"""Plans to export: dense, grouped-query, mixture of experts, uneven stages, context parallel, one for each format."""

from __future__ import annotations

from functools import lru_cache

from matrix import cell

from planner.api import Question, price
from planner.plan.schema import Plan

LAYOUTS: dict[str, tuple[str, str, str, int, int, str]] = {
    "dense": ("llama-3-8b", "h100-sxm:64", "megatron", 256, 4096, "tp=4,pp=4,vpp=2,recompute=full"),
    "data": ("llama-3-8b", "h100-sxm:16", "megatron", 64, 4096, "zero=1"),
    "copies": ("llama-3-8b", "h100-sxm:16", "megatron", 64, 4096, "zero=0,tp=2"),
    "uneven": ("llama-3-8b", "h100-sxm:48", "megatron", 64, 4096, "tp=2,pp=6,zero=1"),
    "ends": ("llama-3-8b", "h100-sxm:68", "megatron", 68, 4096, "pp=17,vpp=2,zero=1,dp=4"),
    "ring": ("llama-3-70b", "h100-sxm:128", "megatron", 64, 8192, "tp=4,pp=4,cp=2,recompute=full"),
    "inside": ("llama-3-8b", "h100-sxm:32", "megatron", 64, 4096, "tp=2,pp=4,order=tp-cp-pp-dp"),
    "instances": ("llama-3-8b", "h100-sxm:64", "megatron", 256, 4096, "shard-group=8"),
    "wide": ("gpt-22b", "a100-sxm-80gb:64", "megatron", 64, 2048, "tp=8,pp=2,recompute=full"),
    "experts": ("mixtral-8x7b", "h100-sxm:64", "megatron", 128, 4096, "tp=2,pp=2,ep=8,recompute=selective"),
    "latent": ("deepseek-v3", "h100-sxm:512", "megatron", 512, 4096, "tp=1,pp=8,ep=32,recompute=full"),
    "titan": ("llama-3-8b", "h100-sxm:64", "torchtitan", 128, 8192, "tp=4,zero=3,recompute=full"),
    "titan-stages": ("llama-3-8b", "h100-sxm:24", "torchtitan", 48, 8192, "tp=2,pp=6,zero=2,recompute=selective"),
    "titan-chunks": ("llama-3-70b", "h100-sxm:64", "torchtitan", 64, 8192, "tp=4,pp=4,vpp=2,zero=2,recompute=full"),
    "titan-v": ("llama-3-8b", "h100-sxm:32", "torchtitan", 64, 8192, "pp=4,vpp=2,schedule=zbv,zero=2,tp=2"),
    "titan-ring": ("llama-3-8b", "h100-sxm:32", "torchtitan", 64, 8192, "cp=4,zero=3"),
    "titan-hybrid": ("llama-3-8b", "h100-sxm:32", "torchtitan", 64, 8192, "shard-group=8,zero=3,recompute=full"),
    "titan-experts": ("qwen3-30b-a3b", "h100-sxm:64", "torchtitan", 128, 4096, "tp=2,ep=8,zero=3,recompute=full"),
    "fsdp": ("llama-3-8b", "h100-sxm:16", "fsdp", 64, 4096, "zero=3,recompute=full"),
    "fsdp-2": ("llama-3-8b", "h100-sxm:16", "fsdp", 64, 4096, "zero=2"),
    "fsdp-hybrid": ("llama-3-8b", "h100-sxm:16", "fsdp", 64, 4096, "zero=3,shard-group=8,recompute=full"),
    "fsdp-ring": ("llama-3-8b", "h100-sxm:16", "fsdp", 32, 8192, "zero=3,cp=2,recompute=full"),
    "zero": ("llama-3-8b", "h100-sxm:16", "deepspeed", 64, 4096, "zero=3,recompute=full"),
    "autotp": ("llama-3-8b", "h100-sxm:16", "deepspeed", 64, 4096, "zero=2,tp=2,recompute=full"),
    "autotp-tied": ("llama-3.2-1b", "h100-sxm:16", "deepspeed", 64, 4096, "zero=1,tp=4"),
    "ulysses": ("llama-3-8b", "h100-sxm:16", "deepspeed", 32, 8192, "zero=3,cp=4,recompute=full"),
    "megatron-host": ("llama-3-8b", "h100-sxm:8", "megatron", 64, 4096, "zero=1,offload=optimizer,tp=2"),
    "megatron-alone": ("llama-3-8b", "h100-sxm:1", "megatron", 64, 4096, "zero=1,offload=optimizer,recompute=full"),
    "titan-host": ("llama-3-8b", "h100-sxm:8", "torchtitan", 64, 4096, "zero=3,offload=states,recompute=full"),
    "fsdp-host": ("llama-3-8b", "h100-sxm:8", "fsdp", 64, 4096, "zero=3,offload=states,recompute=full"),
    "ascend": ("llama-3-8b", "a910b:64", "mindspore", 64, 4096, "tp=4,pp=4,recompute=full"),
    "ascend-uneven": ("llama-3-70b", "a910b:96", "mindspore", 96, 4096, "tp=8,pp=6,recompute=full"),
    "ascend-selective": ("llama-3-8b", "a910b:32", "mindspore", 64, 4096, "tp=4,dp=8,recompute=selective"),
    "ascend-speed": ("llama-3-8b", "a910b:64", "mindspeed", 64, 4096, "tp=4,pp=4,recompute=full,zero=1"),
    "ascend-experts": ("deepseek-v3", "a910b:512", "mindspore", 512, 4096, "pp=8,ep=64,recompute=full"),
}  # fmt: skip
"""Name to model, cluster, trainer, global batch, sequence, layout."""


@lru_cache
def plan(name: str) -> Plan:
    """A plan of the table, or of a cell such as ``megatron/dense``, priced once."""
    if "/" in name:
        return cell(name)
    model, cluster, trainer, batch, seq, layout = LAYOUTS[name]
    question = Question(
        model=model, cluster=cluster, trainer=trainer, global_batch=batch, seq_len=seq
    )
    return price(question, dict(pair.split("=") for pair in layout.split(",")), usual=True)


@lru_cache
def stated(model: str, cluster: str, trainer: str, layout: str, batch: int = 64) -> Plan:
    """A plan that only one test needs."""
    question = Question(
        model=model, cluster=cluster, trainer=trainer, global_batch=batch, seq_len=4096
    )
    return price(question, dict(pair.split("=") for pair in layout.split(",")), usual=True)
