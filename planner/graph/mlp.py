"""Feed-forward layers as operators: plain, gated, and mixtures of experts."""

from __future__ import annotations

from planner.graph.architecture import Experts, Mlp
from planner.graph.builder import STREAM, TOKENS, Builder
from planner.graph.operator import DimName, Operator

ACTIVATION = frozenset({"activation"})
EXPERT_ACTIVATION = frozenset({"activation", "expert_activation"})
GATED = frozenset({"gated"})
"""Tag of activations that multiply a gate."""


def mlp(b: Builder, source: str, layer: Mlp, prefix: str = "mlp", width: DimName = "ffn") -> str:
    """Up projection(s), activation, down projection."""
    into: tuple[DimName, ...] = ("gates", width) if layer.gated else (width,)
    up = b.linear(f"{prefix}.up", source, ("embed",), into, f"{prefix}_up", bias=layer.bias)
    tags = ACTIVATION | GATED if layer.gated else ACTIVATION
    act = b.memory(
        f"{prefix}.act", (up,), f"{prefix}_act", (*TOKENS, width), saves=(up,), tags=tags
    )
    return b.linear(f"{prefix}.down", act, (width,), ("embed",), f"{prefix}_out", bias=layer.bias)


def experts(b: Builder, source: str, layer: Experts) -> str:
    """Router, dispatch, expert products, combine, and the shared expert beside them.

    Dispatch writes ``(experts, capacity, embed)`` whose ``capacity`` inherits the token split; turning that split into
    a split of ``experts`` is the all-to-all.
    """
    _router(b, source, layer)
    if layer.one_hot:
        _one_hot(b, source, layer)
    sent = b.tensor("routed", "experts", "capacity", "embed")
    _exchange(b, "moe.dispatch", (source,), sent, ())
    into: tuple[DimName, ...] = ("gates", "expert_ffn") if layer.gated else ("expert_ffn",)
    up = b.linear("moe.up", sent, ("embed",), into, "moe_up", bias=layer.bias, expert=True)
    dims: tuple[DimName, ...] = ("experts", "capacity", "expert_ffn")
    tags = EXPERT_ACTIVATION | GATED if layer.gated else EXPERT_ACTIVATION
    act = b.memory("moe.act", (up,), "moe_act", dims, saves=(up,), tags=tags)
    down = b.linear(
        "moe.down", act, ("expert_ffn",), ("embed",), "moe_down", bias=layer.bias, expert=True
    )
    out = b.tensor("moe_out", *STREAM)
    _exchange(b, "moe.combine", (down, "router_weights"), out, (down,))
    if not layer.shared_width:
        return out
    shared = mlp(
        b, source, Mlp(width=layer.shared_width, gated=layer.gated), "shared", "shared_ffn"
    )
    if layer.shared_gate:
        gate = b.linear("shared.gate", source, ("embed",), ("one",), "shared_gate")
        shared = b.memory(
            "shared.gating", (shared, gate), "shared_gated", STREAM, saves=(shared, gate)
        )
    return b.memory("moe.add", (out, shared), "moe_sum", STREAM)


def _router(b: Builder, source: str, layer: Experts) -> None:
    logits = b.tensor("router_logits", *TOKENS, "experts", kind="statistic")
    weights = [b.tensor(f"{b.name}.moe.router.weight", "embed", "experts", kind="weight")]
    if layer.router_bias:
        weights.append(b.tensor(f"{b.name}.moe.router.bias", "experts", kind="weight"))
    b.add(
        Operator(
            name="moe.router",
            kind="matmul",
            dims=(*TOKENS, "embed", "experts"),
            reads=(b.use(source),),
            writes=(logits,),
            weights=tuple(weights),
            flops=2.0,
            saves=(source,),
            whole=frozenset({"experts", "embed"}),
        )
    )
    chosen = b.tensor("router_weights", *TOKENS, "experts", kind="statistic")
    b.memory(
        "moe.top_k",
        (logits,),
        chosen,
        b.tensors[logits].dims,
        saves=(logits, chosen),
        tags=frozenset({"choice"}),
        whole=frozenset({"experts"}),
    )


def _one_hot(b: Builder, source: str, layer: Experts) -> None:
    """Products of a group's tokens with matrices that have a column for every place that its experts have.

    They are made from the router's choice, once with its weights and once without; the second takes tokens to their
    places, the first takes results back. What is exchanged afterwards is exchanged as anywhere.

    Source: Lepikhin et al. 2020, GShard (arXiv 2006.16668), algorithm 1 and its einsums; alpa/model/moe.py.
    """
    b.sizes["places"] = layer.top_k * layer.one_hot
    chosen = b.memory("moe.combining", ("router_weights",), "combining", (*TOKENS, "places"))
    mask = b.memory("moe.mask", (chosen,), "mask", (*TOKENS, "places"))
    placed = b.tensor("placed", "batch", "places", "embed")
    b.tensor("taken", *STREAM)
    space: tuple[DimName, ...] = (*TOKENS, "places", "embed")
    for name, reads, out, backward in (
        ("moe.place", (mask, source), placed, 1.0),
        ("moe.take", (chosen, placed), "taken", 2.0),
    ):
        b.add(
            Operator(
                name=name,
                kind="matmul",
                dims=space,
                reads=tuple(b.use(tensor) for tensor in reads),
                writes=(out,),
                flops=2.0,
                backward=backward,
                saves=reads,
            )
        )


def _exchange(
    b: Builder, name: str, sources: tuple[str, ...], target: str, saves: tuple[str, ...]
) -> None:
    names = (*sources, target)
    space = dict.fromkeys(dim for tensor in names for dim in b.tensors[tensor].dims)
    b.add(
        Operator(
            name=name,
            kind="exchange",
            dims=tuple(space),
            reads=tuple(b.use(source) for source in sources),
            writes=(target,),
            saves=saves,
            whole=frozenset({"embed"}),
            tags=frozenset({"exchange"}),
        )
    )
