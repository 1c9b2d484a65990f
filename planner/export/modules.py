"""Which torch modules an operator of a plan is, by the names that Llama-like models have in transformers.

The dims of a weight are divided into those of its rows (outputs) and columns (inputs), as ``nn.Linear`` stores them.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.export.refusal import Limits
from planner.export.shape import Shape
from planner.export.view import View
from planner.plan.schema import OperatorPlan


@dataclass(frozen=True, slots=True)
class Linear:
    """One or more modules of an operator with a weight matrix."""

    modules: tuple[str, ...]
    rows: frozenset[str]
    columns: frozenset[str]


def _linear(names: str, rows: str, columns: str) -> Linear:
    return Linear(tuple(names.split()), frozenset(rows.split()), frozenset(columns.split()))


LAYER: dict[str, Linear] = {
    "attn.q": _linear("self_attn.q_proj", "heads head_dim", "embed"),
    "attn.kv": _linear("self_attn.k_proj self_attn.v_proj", "kv_heads head_dim pair", "embed"),
    "attn.out": _linear("self_attn.o_proj", "embed", "heads head_dim value_dim"),
    "attn.q_down": _linear("self_attn.q_a_proj", "q_latent", "embed"),
    "attn.q_up": _linear("self_attn.q_b_proj", "heads head_dim", "q_latent"),
    "attn.kv_down": _linear("self_attn.kv_a_proj_with_mqa", "kv_rope_latent", "embed"),
    "attn.kv_up": _linear("self_attn.kv_b_proj", "heads nope_value", "kv_latent"),
    "mlp.up": _linear("mlp.gate_proj mlp.up_proj", "ffn gates", "embed"),
    "mlp.down": _linear("mlp.down_proj", "embed", "ffn"),
}
ENDS: dict[str, Linear] = {
    "lookup": _linear("embed_tokens", "vocab", "embed"),
    "project": _linear("lm_head", "vocab", "embed"),
}


def style(op: OperatorPlan, linear: Linear, axis: str = "tp") -> str:
    """``column`` where an axis splits the outputs of a product, ``row`` its inputs, else ``whole``."""
    dim = op.split.get(axis)
    return "column" if dim in linear.rows else "row" if dim in linear.columns else "whole"


def llama_like(limits: Limits, view: View, shape: Shape) -> None:
    """Refuses models whose modules have other names: a rule that matches nothing would be taken silently."""
    other = shape.norm != "rms" or shape.biased or shape.positions > 0 or not shape.gated
    limits.refuse(
        other or "attention and MLP in parallel" in shape.odd,
        f"operators of {view.plan.model.name} by name: only those of Llama-like models are known",
        "a plan with tp 1, shardwright plan … --pin tp=1",
    )
