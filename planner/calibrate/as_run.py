"""The trainer as a run used it: its generation, with what the row itself says about overlap and kernels."""

from __future__ import annotations

from collections.abc import Mapping

from planner.calibrate.software import Software
from planner.trainers.generations import BASES, table, varied
from planner.trainers.trainer import Trainer
from planner.units import Json

OVERLAPPED_EXPERTS = 0.4
"""Exposed share of all-to-alls that a run says it overlaps, over that of one that does not.
Source: a matched pair of Megatron-Bridge runs, 24.7 against 21.0 s, reproduced by hiding 60 %."""
EXCHANGE = 0.8e-3
"""Seconds that the host needs to go on once interleaved stages have exchanged results: the device is empty until the
next kernels come. Source: makes up for what interleaving costs over 1F1B in a pair of runs of 14.6B on 16 A100
(arXiv 2401.10241, 48 micro-batches), whose launch file forbids overlap (--no-overlap-p2p-communication)."""
KERNELS = {"flash-1": "flash-1", "flash-2": "flash-2", "triton": "triton"}
"""Attention kernels that a row may name; every other fused one is the best of its chip."""

FP32_ACCUMULATION = 10.0
"""Bytes a parameter that DeepSpeed's bf16 optimizer moves to add a micro-batch's gradients in fp32. It all-reduces
those whole, once a step. Source: runtime/pipe/engine.py, _bf16_reduce_grads. What stages send is split over tp as in
fp16: 80 layers on ten stages take 1.1 % longer than in fp16, eight layers on one stage 0.9 % (BLOOM's chronicles)."""

TOLD: Mapping[str, tuple[str, Json]] = {
    "dispatcher": ("sends_once", True),
    "exchanges": ("exchange", EXCHANGE),
    "blocking": ("waits_for", "kernels"),
    "captured": ("operator", 0.0),
    "zero_bubble": ("step_barrier", False),
    "in_place_loss": ("logit_bytes", 2.0),
    "fused_loss": ("logit_bytes", 2.0),
    "exchanges_heads": ("kept", {"core": 2.0}),
    "nemo": ("weighs_inside", False),
}
"""Numbers and flags that a trait alone decides."""


def generation_name(software: Software, traits: Mapping[str, Json]) -> str:
    """Which generation of our data a run's software is."""
    name = software.name
    overlapped = bool(traits["tp_overlap"])
    if name == "megatron-deepspeed":
        return name if traits["before_2023"] else "megatron-deepspeed-2023"
    if name == "aleph":
        if traits["norm_kernel"]:
            return name
        return "aleph-eager" if traits["eager_scores"] else "aleph-plain-norm"
    if name == "torchtitan":
        if not traits["compiled"]:
            return "torchtitan-eager"
        return "torchtitan-2024" if traits["in_2024"] else "torchtitan"
    if name == "kempnerforge":
        return name if traits["compiled"] else "kempnerforge-eager"
    if name in ("mindspeed", "ascendspeed"):
        return "mindspeed-mc2" if overlapped else "mindspeed"
    if name in ("megatron-core", "nemo", "unknown") and software.trainer.name == "megatron":
        return "megatron-core-overlap" if overlapped else "megatron-core"
    own = ("foundry", "deepspeed", "alpa-dp", "alpa-heuristic")
    if software.trainer.name == "fsdp" and name not in own:
        return "fsdp-flash-1" if software.attention == "flash-1" else "fsdp"
    return name


def as_run(software: Software, traits: Mapping[str, Json]) -> Trainer:
    """The trainer of a run.

    Returns:
        A trainer whose name tells apart everything that was changed, so that runs of equal names share prices.
    """
    name = generation_name(software, traits)
    data = table()[name]
    changes: dict[str, Json] = {"kernel": KERNELS.get(software.attention, "best")}
    if traits["early_sinks"]:
        changes["kernel"] = "early-sinks"
    base = BASES[data["base"]]
    changes |= {field: value for trait, (field, value) in TOLD.items() if traits[trait]}
    if traits["no_overlap"]:
        sends = data.get("sends", base.overlap.sends)
        changes |= {"gradients": 1.0, "weights": 1.0, "ep": 1.0, "sends": max(1.0, sends)}
    if traits["tp_exposed"]:
        changes |= {"tp_gradients": 1.0, "tp_again": 1.0}
    if traits["exchanges_heads"]:
        changes |= {"cp": 1.0, "apart": {("cp", "attn.core"): ("heads",)}}
    if traits["ep_overlap"]:
        changes["ep"] = OVERLAPPED_EXPERTS * data.get("ep", base.overlap.ep)
    if traits["bf16_gradients"] or software.name == "nemo":
        changes["gradient_bytes"] = 2.0
        if data.get("engine"):
            changes["accumulation"] = data["accumulation"] / 2.0
    if traits["recomputes"] and base is BASES["megatron"]:
        changes["selective"] = traits["recomputes"]
    if traits["bf16_optimizer"]:
        changes |= {"accumulation": FP32_ACCUMULATION, "reduced_bytes": 4.0, "reduces_whole": True}
    if traits["liger"]:
        changes |= {"logit_bytes": traits["liger"], "kept": {}}
    if traits["keeps"]:
        changes["selective"] = sorted(traits["keeps"])
    told = ",".join(f"{key}={value}" for key, value in sorted(changes.items()))
    return varied(base, data | changes, f"{name} {told}")
