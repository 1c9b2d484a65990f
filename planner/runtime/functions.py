"""What every operator computes, on the part of its tensors that a rank holds. Positions come from the layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.errors import PlannerError
from planner.runtime.grid import Grid, positions
from planner.runtime.lies import Lies
from planner.runtime.program import Op, Part


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One operator with what it reads and writes."""

    part: Part
    op: Op
    grid: Grid
    lies: Mapping[str, Lies]
    """How its tensors lie for it, weights included."""

    def dims(self, tensor: str) -> tuple[str, ...]:
        return self.part.tensors[tensor]

    def positions(self, tensor: str, dim: str) -> range:
        """Which positions of a dim the rank holds of a tensor."""
        cut = self.lies[tensor].cuts[self.dims(tensor).index(dim)]
        return positions(self.part.sizes[dim], cut, self.grid)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.op.reads)

    @property
    def write(self) -> str:
        return next(iter(self.op.writes))

    @property
    def leads(self) -> bool:
        """Of the ranks whose results are summed, this is the first, which adds what must be added once."""
        return not any(self.grid.place[axis] for axis in self.lies[self.write].partial)


def compute(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """An operator's first result; others are statistics that nobody reads, or come with it along its last dim.

    Raises:
        PlannerError: the runtime does not know the operator (W06).
    """
    op = call.op
    if op.kind in KINDS:
        return KINDS[op.kind](call, reads, weights)
    name = op.name.rpartition(".")[2]
    known = next((word for word in PASSES if word in name), None)
    if known is None:
        raise PlannerError.of("W06", f"Operator {op.name} is not run yet.")
    return PASSES[known](call, reads, weights)


def _product(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """A sum of products over what the result lacks; a bias once."""
    if not weights:
        raise PlannerError.of("W06", f"{call.op.name}: attention is run fused only.")
    names = [call.dims(name) for name in (call.reads[0], next(iter(call.op.weights)), call.write)]
    letter = dict(
        zip(dict.fromkeys(d for dims in names for d in dims), ascii_letters, strict=False)
    )
    source, weight, result = ("".join(letter[d] for d in dims) for dims in names)
    found = torch.einsum(f"{source},{weight}->{result}", reads[0], weights[0].detach())
    if weights[0].requires_grad and torch.is_grad_enabled():
        later = _ForWeight.apply(
            weights[0], reads[0].detach(), found.detach(), f"{source},{result}->{weight}"
        )
        found = _Both.apply(found, later)
    for name, bias in zip(list(call.op.weights)[1:], weights[1:], strict=True):
        own = call.dims(name)
        shape = [n if d in own else 1 for d, n in zip(names[2], found.shape, strict=True)]
        found = found + bias.view(shape) * float(call.leads)
    return found


class _ForWeight(torch.autograd.Function):
    """Zeros that stand for a product and lead to its weight alone: only there is what the product read needed again."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, weight: Tensor, read: Tensor, like: Tensor, equation: str
    ) -> Tensor:
        ctx.save_for_backward(read)
        ctx.equation = equation
        return like.new_zeros(()).expand(like.shape)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (read,) = ctx.saved_tensors
        return torch.einsum(ctx.equation, read, grads[0]), None, None, None


class _Both(torch.autograd.Function):
    """A product, whose gradient goes to what it read and to its weight."""

    @staticmethod
    def forward(ctx: FunctionCtx, product: Tensor, weight: Tensor) -> Tensor:
        return product.view_as(product)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


class Repeated(torch.autograd.Function):
    """An operator of which nothing is kept but what it takes: it runs again in the backward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, call: Call, *taken: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(*taken)
        return computed(call, *taken)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        own = [
            tensor.detach().requires_grad_(needed)
            for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
        ]
        wanted = [tensor for tensor in own if tensor.requires_grad]
        with torch.enable_grad():
            made = iter(torch.autograd.grad(computed(ctx.call, *own), wanted, grads[0]))
        return (None, *(next(made) if tensor.requires_grad else None for tensor in own))


def computed(call: Call, *taken: Tensor) -> Tensor:
    """As :func:`compute`, of what an operator reads and then its weights."""
    count = len(call.op.reads)
    return compute(call, taken[:count], taken[count:])


def repeated(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """As :func:`compute`, keeping nothing that can be computed again."""
    if not call.op.keeps:
        return compute(call, reads, weights)
    found: Tensor = Repeated.apply(call, *reads, *weights)
    return found


def _attention(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Causal, over all keys that are there; some query heads share a key head, and each may have a sink."""
    q = reads[0]
    k, v = reads[1].unbind(2) if len(reads) == 2 else reads[1:]
    rows, columns = (call.positions(name, "seq") for name in call.reads[:2])
    seen = None
    if rows != columns:
        seen = torch.arange(rows.start, rows.stop)[:, None] >= torch.arange(
            columns.start, columns.stop
        )
    heads = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    plain = k.shape[-1] == v.shape[-1] and not weights
    found: Tensor = _attended(heads, seen) if plain else _Attend.apply(seen, *heads, *weights)
    return found.transpose(1, 2)


def _attended(heads: Sequence[Tensor], seen: Tensor | None) -> Tensor:
    """Fused attention of queries, keys and values. Shapes: (batch, heads, tokens, size).

    A fourth tensor has a sink for every head: a logit beside those of the keys that leads nowhere.
    """
    q, k, v, *sinks = heads
    if not sinks:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=q.shape[1] != k.shape[1]
        )
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    mask = seen if seen is not None else torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    beside = sinks[0][None, :, None, None].expand(*scores.shape[:-1], 1)
    shares = torch.cat([scores.masked_fill(~mask, -torch.inf), beside], -1).softmax(-1)
    return shares[..., :-1] @ v


class _Attend(torch.autograd.Function):
    """Fused attention that torch has no kernel for; it keeps its inputs, as kernels for it do."""

    @staticmethod
    def forward(ctx: FunctionCtx, seen: Tensor | None, *heads: Tensor) -> Tensor:
        ctx.save_for_backward(*heads)
        ctx.seen = seen
        return _attended(heads, seen)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            own = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            found = torch.autograd.grad(_attended(own, ctx.seen), own, grads[0])
        return (None, *found)


def _lookup(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Rows of the table; zero for those that another rank holds."""
    here = call.positions(next(iter(call.op.weights)), "vocab")
    row = reads[0] - here.start
    mine = (row >= 0) & (row < len(here))
    found = F.embedding(row.clamp(0, len(here) - 1), weights[0])
    return found if len(here) == call.part.sizes["vocab"] else found * mine[..., None]


def _exchange(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Tokens to the rows of their experts, or back: a rank's own tokens, in order."""
    chosen = chosen_experts(call, call.reads[-1])
    tokens = [
        torch.tensor([token for token, some in enumerate(chosen) if e in some])
        for e in range(call.part.sizes["experts"])
    ]
    if len(reads) == 1:
        flat = reads[0].flatten(0, 1)
        return torch.stack([flat[some] for some in tokens])
    rows, shares = reads[0], reads[1].flatten(0, 1)
    found = rows.new_zeros((len(chosen), rows.shape[-1]))
    for e, some in enumerate(tokens):
        found = found.index_add(0, some, rows[e] * shares[some, e, None])
    return found.view(*reads[1].shape[:2], -1)


def chosen_experts(call: Call, tensor: str) -> list[set[int]]:
    """Which experts every token of a rank goes to: by its place, so that every expert gets as many, as plans assume."""
    sizes = call.part.sizes
    experts, each = sizes["experts"], sizes["batch"] * sizes["seq"]
    top = round(sizes["capacity"] * experts / each)
    places = list(call.positions(tensor, "seq")) * len(call.positions(tensor, "batch"))
    return [{(place * top + n) % experts for n in range(top)} for place in places]


def _norm(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """RMS norm, or layer norm with a bias, over the dims of its weights."""
    x = reads[0]
    over = tuple(weights[0].shape) if weights else tuple(x.shape[-1:])
    if len(weights) > 1:
        return F.layer_norm(x, over, *weights)
    return F.rms_norm(x, over, *weights, eps=1e-5)


def _key_norm(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """A norm of the keys of keys and values."""
    return _keys(call, reads[0], lambda k: _norm(call, [k], weights))


def _keys(call: Call, pair: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Keys and values with the keys changed; a rank may hold only one of them."""
    parts = zip(call.positions(call.reads[0], "pair"), pair.unbind(2), strict=True)
    return torch.stack([part if which else change(part) for which, part in parts], 2)


def _latent_norm(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """A norm of the latent part; what is left is the rotary key, behind it."""
    size = call.part.sizes["kv_latent"]
    return torch.cat([_norm(call, [reads[0][..., :size]], weights), reads[0][..., size:]], -1)


class _Rotate(torch.autograd.Function):
    """Pairs of numbers turned by angles that grow with their position; keeps nothing but the positions."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, places: range) -> Tensor:
        ctx.places = places
        return _turned(x, places, 1.0)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return _turned(grads[0], ctx.places, -1.0), None


def _turned(x: Tensor, places: range, way: float) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(places.start, places.stop)[:, None] / 100.0 ** (torch.arange(half) / half)
    angle = angle.view(1, len(places), *[1] * (x.dim() - 3), half)
    cos, sin = angle.cos().to(x.dtype), (way * angle.sin()).to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _rotary(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    x, name = reads[0], call.reads[0]
    places = call.positions(name, "seq")
    if "pair" in call.dims(name):
        return _keys(call, x, lambda k: _Rotate.apply(k, places))
    still = x.shape[-1] - call.part.sizes.get("rope_dim", x.shape[-1])
    return torch.cat([x[..., :still], _Rotate.apply(x[..., still:], places)], -1)


def _build_k(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Keys of every head: their own part, and the rotary part that all share."""
    kv, shared = reads
    value = call.part.sizes["value_dim"]
    turned = _Rotate.apply(shared, call.positions(call.reads[1], "seq"))[:, :, None]
    return torch.cat([kv[..., :-value], turned.expand(*kv.shape[:3], -1)], -1)


def _act(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    x, dims = reads[0], call.dims(call.reads[0])
    if "gates" not in dims:
        return F.gelu(x)
    gate, up = x.unbind(dims.index("gates"))
    return F.silu(gate) * up


def _top_k(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Shares of the chosen experts; zero for the others."""
    experts = range(call.part.sizes["experts"])
    some = [[e not in token for e in experts] for token in chosen_experts(call, call.reads[0])]
    return reads[0].masked_fill(torch.tensor(some).view_as(reads[0]), -torch.inf).softmax(-1)


def _positions(call: Call, reads: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    here = call.positions(call.reads[0], "seq")
    return reads[0] + weights[0][here.start : here.stop]


KINDS: dict[str, Callable[[Call, Sequence[Tensor], Sequence[Tensor]], Tensor]] = {
    "matmul": _product,
    "attention": _attention,
    "lookup": _lookup,
    "exchange": _exchange,
}
PASSES: dict[str, Callable[[Call, Sequence[Tensor], Sequence[Tensor]], Tensor]] = {
    "k_norm": _key_norm,
    "kv_norm": _latent_norm,
    "norm": _norm,
    "rotary": _rotary,
    "join": lambda call, reads, weights: torch.cat(list(reads), -1),
    "layout": lambda call, reads, weights: reads[0],
    "dropout": lambda call, reads, weights: reads[0],
    "build_k": _build_k,
    "split_v": lambda call, reads, weights: reads[0][..., -call.part.sizes["value_dim"] :],
    "act": _act,
    "top_k": _top_k,
    "gating": lambda call, reads, weights: reads[0] * reads[1].sigmoid(),
    "add": lambda call, reads, weights: sum(reads[1:], reads[0]),
    "positions": _positions,
}
"""Passes over memory by a word of their name; the first that is in it counts."""


def loss(call: Call, logits: Tensor, target: Tensor) -> Tensor:
    """Sum of the cross-entropy of a rank's tokens, over their number on all ranks.

    Where axes cut the vocabulary, three numbers a token are reduced over them: first the largest logit, then the sum of
    exponentials and the target's logit.
    """
    name, grid, sizes = call.reads[0], call.grid, call.part.sizes
    here = call.positions(name, "vocab")
    axes = sorted(call.lies[call.write].partial)
    together = [tuple(axes)] if grid.joint and axes else [(axis,) for axis in axes]
    groups = [grid.groups[some] for some in together]
    top = logits.detach().amax(-1)
    for group in groups:
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
    row = target - here.start
    mine = (row >= 0) & (row < len(here))
    own = logits.gather(-1, row.clamp(0, len(here) - 1)[..., None])[..., 0] - top
    parts = torch.stack([(logits - top[..., None]).exp().sum(-1), own * mine], -1)
    for group in groups:
        parts = _Sum.apply(parts, group)
    return (parts[..., 0].log() - parts[..., 1]).sum() / (sizes["batch"] * sizes["seq"])


class _Sum(torch.autograd.Function):
    """A sum over ranks, who all go on with it: each has its whole gradient already."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        value = value.clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
