"""Which trainer of ours a row's software is, and what is known of its generation.

A generation is not a trainer: the same Megatron fused its attention in 2023. What a row's software does differently is
kept as facts beside the trainer, so that the cost model can be taught them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from planner.calibrate.runs import Run
from planner.recipe import MOMENT_BYTES, OptimizerName
from planner.trainers.fsdp import FSDP
from planner.trainers.megatron import MEGATRON
from planner.trainers.mindspore import MINDSPORE
from planner.trainers.torchtitan import TORCHTITAN
from planner.trainers.trainer import Trainer

Kernel: TypeAlias = Literal["unfused", "flash-1", "flash-2", "triton", "cudnn", "xla", "ascend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A family of programs as far as prices depend on it."""

    name: str
    trainer: Trainer
    attention: Kernel
    """Generation of the attention kernel."""
    classic: bool = False
    """GPT as Megatron builds it: biases, learned positions, norms with biases."""
    dropout: bool = False
    sequence_parallel: bool = True
    """Whether tp ranks share the stream where the row does not say."""
    per_chip_batch: bool = False
    """Batches are stated for a chip and run in one pass, whatever tp is: nothing is accumulated."""
    sharding: int | None = None
    """State sharding where the row does not say; None for the trainer's usual one."""
    experts_as_dense: bool = False
    """Experts are split by tp like everything else where the row does not say, as Megatron's arguments default; recipes
    of Megatron-Bridge and of its MoE Model Zoo state 1."""
    experts_over_data: bool = False
    """Experts are spread over the data ranks where the row does not say."""
    guessed: bool = False
    """Nothing known has this name."""

    @property
    def fused(self) -> bool:
        return self.attention != "unfused"


_MEGATRON = Software(name="megatron-core", trainer=MEGATRON, attention="cudnn", classic=True)
_OLD = Software(
    name="megatron-2021",
    trainer=MEGATRON,
    attention="unfused",
    classic=True,
    dropout=True,
    sequence_parallel=False,
)
_XLA = Software(name="jax", trainer=TORCHTITAN, attention="xla", per_chip_batch=True)
_ALPA = replace(_OLD, name="alpa", sharding=2, experts_over_data=True)
"""Alpa's automatic sharding prefers a reduce-scatter, so that states end up sharded over the data ranks."""
_ASCEND = Software(name="mindspeed", trainer=MEGATRON, attention="ascend", experts_as_dense=True)
_TITAN = Software(name="torchtitan", trainer=TORCHTITAN, attention="flash-2")
_FSDP = Software(name="fsdp", trainer=FSDP, attention="flash-2", classic=True)

FAMILIES: tuple[tuple[str, Software], ...] = (
    (r"foundry|composer", Software(name="foundry", trainer=FSDP, attention="flash-2")),
    (r"kempner", replace(_TITAN, name="kempnerforge")),
    (r"torchtitan|fsdp2|automodel", _TITAN),
    (r"mindformers|mindspore", Software(name="mindspore", trainer=MINDSPORE, attention="ascend")),
    (r"mindspeed|modellink", _ASCEND),
    (r"ascendspeed|\(ascend\)", replace(_ASCEND, name="ascendspeed")),
    (r"maxtext|paxml|pax |levanter|jax \(t5x", _XLA),
    (
        r"alpa.*(data_parallel|zero_)",
        replace(_ALPA, name="alpa-dp", trainer=FSDP, sharding=None, experts_over_data=False),
    ),
    (
        r"alpa.*heuristic",
        replace(_ALPA, trainer=FSDP, name="alpa-heuristic", sharding=3, experts_over_data=False),
    ),
    (r"alpa", _ALPA),
    (r"\bjax\b|flax|easylm|t5x|\bxla\b", _XLA),
    (r"internevo", Software(name="internevo", trainer=MEGATRON, attention="flash-2")),
    (r"aa-scaling", Software(name="aleph", trainer=MEGATRON, attention="flash-2")),
    (
        r"sail-sg.*flash",
        replace(_MEGATRON, name="megatron-2023", attention="flash-2", dropout=True),
    ),
    (r"sail-sg", replace(_OLD, name="megatron-2023", sequence_parallel=True)),
    (r"megascale|megatron-llama", replace(_MEGATRON, name="megatron-2023", attention="flash-2")),
    (r"deepspeed.*(zero-?[23]|hf)", replace(_FSDP, name="deepspeed")),
    (
        r"megatron-deepspeed|deepspeed \+ megatron|gpt-neox",
        replace(_OLD, name="megatron-deepspeed"),
    ),
    (r"megatron-lm \((2020|jan 2021)\)|ptd-p|^megatron$", _OLD),
    (r"flash-attention training", replace(_FSDP, name="flash-attention")),
    (r"without flashattention", replace(_FSDP, name="plain-torch", attention="unfused")),
    (r"bridge", replace(_MEGATRON, name="nemo")),
    (r"nemo", replace(_MEGATRON, name="nemo", experts_as_dense=True)),
    (r"megatron-lm 0\.\d", replace(_MEGATRON, experts_as_dense=True)),
    (r"primus|megatron-core|transformerengine|megatron-lm|megatron", _MEGATRON),
    (r"fsdp|deepspeed|laer|flex|habana|bmtrain|pytorch", _FSDP),
    (r"accelerate|transformers|hugging ?face|axolotl|llama-?factory|litgpt|torchtune|olmo", _FSDP),
)
"""First match wins; patterns on the framework in small letters."""
_SECOND = re.compile(r"flash[-_ ]?attention[-_ ]?(?:v)?2")
_KERNELS: tuple[tuple[str, Kernel], ...] = (
    (_SECOND.pattern, "flash-2"),
    (r"flash", "flash-1"),
    (r"fused|torch|unfused", "unfused"),
)
_THIRD = re.compile(r"\bfa[34]\b|flash[-_ ]?attention[-_ ]?(?:v)?[34]\b")
"""The third and fourth FlashAttention are as fast as the best kernels of Hopper and Blackwell."""
_UNFUSED_NOTES = re.compile(
    r"no --use-flash-attn|flash attention false|no flash attention|without flash"
)
_OLD_SOURCES = re.compile(r"Korthikanti|Narayanan|Smith et al")
"""Papers with Megatron's own layers from before FlashAttention (May 2022), whatever shards their states."""
_BF16_WEIGHTS = re.compile(r"\bweight_dtype\W+bf(?:loat)?16")
_AMP = re.compile(r"\bAMP\b")
"""Its trials ran a fork of DeepSpeed and Megatron-LM whose configuration is published with them."""


def software_of(run: Run) -> Software:
    """The family of a row's software, with what the row itself says about attention.

    Sharded data parallelism joined with tensor, pipeline or expert parallelism is torchtitan's: FSDP has none of them.
    """
    framework = (run.parallel.framework or "").lower()
    found = next((s for pattern, s in FAMILIES if re.search(pattern, framework)), None)
    if found is None:
        guess = FSDP if run.parallel.zero == 3 else MEGATRON
        found = replace(_MEGATRON, name="unknown", trainer=guess, guessed=True)
    own = found.name not in (_FSDP.name, "unknown")
    if found.trainer is FSDP and not found.name.startswith("alpa") and _divides(run, own=own):
        found = replace(_TITAN, attention=found.attention, guessed=found.guessed)
    if _OLD_SOURCES.search(run.source):
        if found.trainer is FSDP:
            found = replace(found, attention="unfused", dropout=True)
        elif "deepspeed" not in framework:
            name = "megatron-2022" if "Korthikanti" in run.source else "megatron-2021"
            found = replace(_OLD, name=name)
    if found.name == "megatron-deepspeed" and _AMP.search(run.source):
        found = replace(found, name="amp")
    if found.name == "foundry" and _by_triton(run):
        found = replace(found, attention="triton")
    kernel = str(run.parallel.other("kernel") or "").lower()
    stated = next((k for pattern, k in _KERNELS if kernel and re.search(pattern, kernel)), None)
    if stated is None and _SECOND.search(framework):
        stated = "flash-2"
    if stated is None and _THIRD.search(f"{framework} {run.remarks.lower()}"):
        stated = "cudnn"
    if stated is None and _UNFUSED_NOTES.search(run.remarks):
        stated = "unfused"
    return found if stated is None else replace(found, attention=stated)


def _divides(run: Run, *, own: bool) -> bool:
    """Whether a run divides experts, or layers or weights where its program has no ``own`` name: FSDP does neither."""
    p = run.parallel
    experts = (p.ep or 1) if (run.model.experts or 0) > 1 else 1
    return max(experts, 1 if own else p.tp or 1, 1 if own else p.pp or 1) > 1


def _by_triton(run: Run) -> bool:
    """Whether a run of llm-foundry's tables attended by Triton's first FlashAttention.

    Source: the default of submit_benchmarks.py when the tables of A100 and of up to 64 H100 were made (``attn_impl``,
    pull request 543); sweep.py of those of 128 H100 and more names the kernel of each model.
    """
    many = (run.hardware.num_chips or 0) >= 128 and "h100" in (run.hardware.chip_key or "")
    return not many or any(size in run.model.name for size in ("13b", "30b"))


def bf16_weights(run: Run) -> bool:
    """Whether a run of MaxText stores weights in bf16, whose gradients and moments are then bf16 too (optax's)."""
    return bool(_BF16_WEIGHTS.search(run.remarks.lower()))


def optimizer_of(run: Run, software: Software) -> OptimizerName:
    """The optimizer of a row: what it states, or what the program's published configurations of such models use.

    Source: Alpa's benchmark of GShard's models (benchmark_one_case_moe.py) trains with Adafactor; Megatron-Bridge's
    recipes of DeepSeek's models and their likes keep moments in bf16 (use_precision_aware_optimizer).
    """
    stated = next((name for name in MOMENT_BYTES if name == run.parallel.other("optimizer")), None)
    if stated is not None:
        return stated
    if bf16_weights(run):
        return "adamw-bf16"
    if software.name.startswith("alpa") and (run.model.experts or 0) > 1:
        return "adafactor"
    if software.name == "nemo" and run.model.mla is not None:
        return "adamw-bf16"
    return "adamw"
