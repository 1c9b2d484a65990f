"""A decoder of Llama's kind, small: the module that plans are applied to when they are run."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from planner.runtime.shrink import Small

VOCAB, WIDTH, HEADS, SEQ = 64, 32, 4, 16
"""Sizes that tp 2 divides everywhere."""


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-5)


class Attention(nn.Module):
    """Attention whose heads are counted by what the projections give: a rank may hold some of them."""

    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, kv_heads * self.size, bias=False)
        self.v = nn.Linear(WIDTH, kv_heads * self.size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [linear(x) for linear in (self.q, self.k, self.v)]
        batch, seq = parts[0].shape[:2]
        q, k, v = (part.view(batch, seq, -1, self.size).transpose(1, 2) for part in parts)
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(o.transpose(1, 2).reshape(batch, seq, -1))
        return found


class FeedForward(nn.Module):
    """Gated, or plain with one up projection."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False) if gated else None
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        found: Tensor = self.down(F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up)
        return found


class Block(nn.Module):
    """One layer."""

    def __init__(self, plan: Small) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.attention = Attention(HEADS // 2 if plan.grouped else HEADS)
        self.mlp = FeedForward(plan.gated)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


class Decoder(nn.Module):
    """The whole model, or the layers of one chunk of it: parts that a chunk lacks are None."""

    def __init__(self, plan: Small) -> None:
        super().__init__()
        self.embedding: nn.Embedding | None = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block(plan) for i in range(plan.layers)})
        self.norm: Norm | None = Norm()
        self.head: nn.Linear | None = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None:
            x = self.norm(x)
        return x if self.head is None else self.head(x)


def whole(plan: Small) -> Decoder:
    """The model with the same weights in every process."""
    torch.manual_seed(0)
    return Decoder(plan)


def chunk(plan: Small, index: int) -> Decoder:
    """The layers of one chunk, with the embedding in the first and the head in the last."""
    model = whole(plan)
    start = sum(plan.visits[:index])
    for layer in range(plan.layers):
        if not start <= layer < start + plan.visits[index]:
            del model.layers[str(layer)]
    if index > 0:
        model.embedding = None
    if index < len(plan.visits) - 1:
        model.norm = model.head = None
    return model


def batch(sequences: int) -> tuple[Tensor, Tensor]:
    """Tokens and what follows each, the same in every process."""
    chance = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (sequences, SEQ + 1), generator=chance)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over tokens."""
    return F.cross_entropy(output.flatten(0, 1).float(), target.flatten())
