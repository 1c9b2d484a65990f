"""What programs on JAX keep for the backward pass, by the name of their policy, and what runs keep on the host."""

from __future__ import annotations

import re

from planner.calibrate.runs import Run

_QKV = ("attn.q", "attn.kv", "attn.q_up", "attn.kv_up")
_PRODUCTS = (
    *_QKV,
    "attn.out",
    "mlp.up",
    "mlp.down",
    "moe.up",
    "moe.down",
    "shared.up",
    "shared.down",
)
_LAST = ("mlp.down", "shared.down", "add", "add2")
"""What makes a layer's output, which nothing in the layer needs again: XLA drops it."""
POLICIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"minimal_flash", (*_PRODUCTS, "attn.core")),
    (r"save_dot_with_context_except_mlp", (*_QKV, "attn.core", "attn.out")),
    (r"save_qkv_out_proj|remat_policy\W+custom", (*_QKV, "attn.out")),
    (r"save_qkv_proj", _QKV),
    (r"qkv_proj_offloaded", ()),
)
"""Operators whose results a policy keeps, on the chip or, where all goes to the host, there; first pattern that is
found. Policies that are not listed keep every product. Source: MaxText and Pax; ``custom`` lists tensors, in the
published recipes the projections of attention."""
_HOST = re.compile(r"remat_policy\W+custom.*offload|remat with host offload")


def kept_products(run: Run) -> frozenset[str]:
    """Tags of what a run on JAX recomputes where it says ``selective``."""
    words = f"{run.parallel.recompute} {run.remarks}".lower()
    kept = next((names for pattern, names in POLICIES if re.search(pattern, words)), _PRODUCTS)
    kinds = ("matmul", "memory", "attention", "exchange")
    return frozenset((*kinds, *(f"!{name}" for name in (*kept, *_LAST))))


_AT_HOST: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("states", re.compile(r"param|weights|infinity")),
    ("optimizer", re.compile(r"optimizer|adam|cpu|zero-offload|\byes\b")),
)
"""What the words for an offload name; weights take the optimizer's states along."""
_ACTIVATIONS = re.compile(r"(?:^|[+,&] ?|\band )activation")

_LAYERS = re.compile(r"activations of (\d+)(?: of \d+)? layers")


def hosted(run: Run) -> float:
    """Share of the layers whose activations leave the chip: all where a row does not count them."""
    told = _LAYERS.search((run.parallel.offload or "").lower())
    layers = run.model.layers
    return min(int(told[1]) / layers, 1.0) if told and layers and int(told[1]) else 1.0


def offload(run: Run) -> str:
    """What a run keeps in host memory, a word of ``planner.candidates.OFFLOAD``."""
    words = (run.parallel.offload or "").lower()
    kinds = [kind for kind, named in _AT_HOST if named.search(words)][:1]
    if _ACTIVATIONS.search(words) or _HOST.search(run.remarks.lower()):
        kinds.append("activations")
    return "+".join(kinds) or "none"
