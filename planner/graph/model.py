"""A model: a list of layers over few distinct blocks, between an embedding and a head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from planner.graph.operator import Block, DimName


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is computed for one sequence: blocks, and the order of the layers that use them.

    Equal layers share a block, so nothing downstream grows with the number of equal layers.
    """

    name: str
    seq: int
    """Tokens in one sequence; the graph is built for it."""
    blocks: tuple[Block, ...]
    """Distinct layer kinds."""
    layers: tuple[int, ...]
    """For every layer in order, the index of its block."""
    embedding: Block
    head: Block
    """Final norm, output projection and loss."""
    mtp: tuple[Block, ...] = ()
    """Multi-token-prediction modules after the last layer; not counted in ``num_params``."""
    source: str = ""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def has_encoder(self) -> bool:
        """Whether a decoder reads what an encoder made."""
        return any("source" in block.sizes for block in self.blocks)

    @property
    def num_params(self) -> int:
        """Parameters without multi-token-prediction modules, as model cards count them."""
        body = sum(self.blocks[index].num_params for index in self.layers)
        return self.embedding.num_params + body + self.head.num_params

    @property
    def num_mtp_params(self) -> int:
        return sum(block.num_params for block in self.mtp)

    @property
    def num_active_params(self) -> float:
        """Parameters that one token meets; the embedding table is counted once."""
        body = sum(self.blocks[index].num_active_params for index in self.layers)
        return self.embedding.num_active_params + body + self.head.num_active_params

    def flops(self) -> float:
        """Forward FLOPs of one sequence, multi-token prediction included."""
        body = sum(self.blocks[index].flops() for index in self.layers)
        return body + self.embedding.flops() + self.head.flops() + sum(b.flops() for b in self.mtp)

    def training_flops(self) -> float:
        """FLOPs of one sequence forwards and backwards: three forward passes, less the gradients of frozen weights."""
        blocks = [self.embedding, *(self.blocks[i] for i in self.layers), *self.mtp, self.head]
        return 3.0 * self.flops() - sum(block.frozen_flops() for block in blocks)

    @property
    def num_trained(self) -> int:
        """Parameters that training changes."""
        body = sum(self.blocks[index].num_trained for index in self.layers)
        return self.embedding.num_trained + body + self.head.num_trained

    @property
    def ends(self) -> Block:
        """Embedding and head as one block: a tied table is one weight of it. Its stream is the layers' stream."""
        return self.embedding.then(self.head)

    def all_blocks(self) -> tuple[Block, ...]:
        """Embedding, distinct layer blocks, multi-token-prediction modules, head: in that order."""
        return (self.embedding, *self.blocks, *self.mtp, self.head)

    def sizes(self, dim: DimName) -> tuple[float, ...]:
        """The distinct sizes of a dim over all blocks, ascending; empty where no block has it."""
        return tuple(sorted({b.sizes[dim] for b in self.all_blocks() if dim in b.sizes}))

    def runs(self) -> Iterator[tuple[Block, int, int]]:
        """Layers folded: (block, first layer, number of equal layers in a row)."""
        first = 0
        for index, group in groupby(self.layers):
            count = len(list(group))
            yield self.blocks[index], first, count
            first += count

    def operator_dims(self) -> dict[str, tuple[DimName, ...]]:
        """Dims of every operator, by the name that means it in all layers: ``layers.*.mlp.up``, ``head.project``."""
        found: dict[str, tuple[DimName, ...]] = {}
        kinds = {block.name for block in self.blocks}
        for block in self.all_blocks():
            place = "layers.*" if block.name in kinds else block.name
            for op in block.operators:
                found.setdefault(f"{place}.{op.name}", op.dims)
        return found
