"""An image generator made of transformer layers over ever finer grids: TransGAN as AMP runs it.

A latent vector becomes a coarse grid of wide pixels; every step doubles the grid's sides, and from the third on
quarters the width. Fine grids attend within windows, so that their layers are as narrow as their scores are many:
layers of very different time and memory in one sequence. The code is eager torch without dropout, and what it keeps is
what its operators read: scores before they are scaled, three steps of its own GELU. Its attention reshapes to all heads
on every tensor-parallel rank, each with a part of its size: no rank holds fewer scores than one alone.

Source: Jiang et al. 2021, TransGAN (arXiv 2102.07074), section 3; AMP, megatron/model/trans_gan_gen.py
(``ParallelTransGanAttention``, ``ParallelTransGANMlp``, ``gelu``).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.builder import STREAM, TOKENS, Builder
from planner.graph.model import Model
from planner.graph.operator import Block, DimName, Operator

COLOURS = 3
WIDE_GRIDS = 3
"""Grids of the full width, attended to as a whole; each later one has a quarter of the width of the one before."""
MAPS: tuple[DimName, ...] = (*TOKENS, "maps", "heads")
"""Queries, keys and values: every attention map's part of the width, ``heads``, is what tensor parallelism cuts."""
SCORES: tuple[DimName, ...] = (*TOKENS, "keys", "maps", "kv_heads")
"""Scores of every map; ``kv_heads``, of size 1, follows a cut of ``heads`` and leaves all scores on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGenerator:
    """Sizes of a generator; the defaults are AMP's."""

    name: str
    width: int
    """Channels of a pixel of the coarsest grid."""
    depth: tuple[int, ...]
    """Layers on every grid, coarsest first."""
    side: int = 9
    """Pixels along a side of the coarsest grid."""
    window: int = 18
    """Pixels along a side of the windows of fine grids."""
    heads: int = 4
    latent: int = 512
    """Numbers from which an image is made."""
    source: str = ""


def build_generator(g: ImageGenerator) -> Model:
    """The graph for one image; a sequence is an image."""
    used = [grid for grid, layers in enumerate(g.depth) if layers]
    blocks = tuple(_grid(g, grid) for grid in used)
    layers = tuple(kind for kind, grid in enumerate(used) for _ in range(g.depth[grid]))
    return Model(
        name=g.name,
        seq=g.side**2,
        blocks=blocks,
        layers=layers,
        embedding=_start(g),
        head=_image(g),
        source=g.source,
    )


def _width(g: ImageGenerator, grid: int) -> int:
    return int(g.width // 4 ** max(0, grid + 1 - WIDE_GRIDS))


def _pixels(g: ImageGenerator, grid: int) -> int:
    return int((g.side * 2**grid) ** 2)


def _grid(g: ImageGenerator, grid: int) -> Block:
    """A layer of one grid: attention over all pixels or within windows, feed-forward of four times the width."""
    width, pixels = _width(g, grid), _pixels(g, grid)
    sizes: dict[DimName, float] = {
        "batch": 1, "seq": pixels, "keys": g.window**2 if grid >= WIDE_GRIDS else pixels,
        "embed": width, "maps": g.heads, "heads": width // g.heads, "kv_heads": 1,
        "pair": 2, "ffn": 4 * width,
    }  # fmt: skip
    b = Builder(f"grid{grid + 1}", sizes, "none")
    b.tensor("x", *STREAM)
    attended = _attention(b, b.norm("norm1", "x", "normed1"))
    middle = b.memory("add1", ("x", attended), "x_middle", STREAM)
    out = _feed_forward(b, b.norm("norm2", middle, "normed2"))
    return b.finish(("x",), (b.memory("add2", (middle, out), "y", STREAM),))


def _attention(b: Builder, source: str) -> str:
    """Noise makes the stream fp32, which is cast back; products of permuted heads copy what they read and write."""
    raised = b.memory("attn.noise", (source,), "noised32", STREAM, kind="statistic")
    noised = b.memory("attn.cast", (raised,), "noised", STREAM)
    q = b.linear("attn.q", noised, ("embed",), ("maps", "heads"), "q")
    kv = b.linear("attn.kv", noised, ("embed",), ("pair", "maps", "heads"), "kv")
    q = b.memory("attn.copy_q", (q,), "q_copied", MAPS)
    kv = b.memory("attn.copy_kv", (kv,), "kv_copied", (*TOKENS, "pair", "maps", "heads"))
    space = (*TOKENS, "keys", "maps", "heads")
    b.tensor("scores", *SCORES)
    b.add(
        Operator(
            name="attn.scores",
            kind="matmul",
            dims=space,
            reads=(b.use(q), b.use(kv, seq="keys")),
            writes=("scores",),
            flops=2.0,
            saves=(q, kv),
        )
    )
    scaled = b.memory("attn.scale", ("scores",), "scores_scaled", SCORES, saves=("scores",))
    placed = b.memory("attn.positions", (scaled,), "scores_placed", SCORES)
    probabilities = b.tensor("probabilities", *SCORES)
    b.add(
        Operator(
            name="attn.softmax",
            kind="memory",
            dims=SCORES,
            reads=(b.use(placed),),
            writes=(probabilities,),
            backward=1.5,
            saves=(probabilities,),
            whole=frozenset({"keys"}),
        )
    )
    out = b.tensor("o", *MAPS)
    b.add(
        Operator(
            name="attn.context",
            kind="matmul",
            dims=space,
            reads=(b.use(probabilities), b.use(kv, seq="keys")),
            writes=(out,),
            flops=2.0,
            saves=(probabilities, kv),
        )
    )
    merged = b.memory("attn.merge", (out,), "merged", MAPS)
    return b.linear("attn.out", merged, ("maps", "heads"), ("embed",), "attn_out")


def _feed_forward(b: Builder, source: str) -> str:
    """GELU as ``x * 0.5 * (1.0 + erf(x / sqrt(2)))``: a pass each, of which products and erf keep what they read."""
    inner = (*TOKENS, "ffn")
    up = b.linear("mlp.up", source, ("embed",), ("ffn",), "mlp_up")
    half = b.memory("mlp.half", (up,), "mlp_half", inner)
    scaled = b.memory("mlp.scale", (up,), "mlp_scaled", inner)
    erf = b.memory("mlp.erf", (scaled,), "mlp_erf", inner, saves=(scaled,))
    raised = b.memory("mlp.raise", (erf,), "mlp_raised", inner)
    act = b.memory("mlp.act", (half, raised), "mlp_act", inner, saves=(half, raised))
    return b.linear("mlp.down", act, ("ffn",), ("embed",), "mlp_out")


def _start(g: ImageGenerator) -> Block:
    """The coarsest grid, one product of the latent vector."""
    sizes = {"batch": 1.0, "seq": _pixels(g, 0), "embed": g.width, "latent": g.latent}
    b = Builder("embedding", sizes, "none")
    latent = b.tensor("latent", "batch", "latent")
    out = b.linear("project", latent, ("latent",), ("seq", "embed"), "x")
    return b.finish((latent,), (out,))


def _image(g: ImageGenerator) -> Block:
    """Colours of the finest grid's pixels, and their mean as the loss."""
    last = len(g.depth) - 1
    sizes = {"batch": 1.0, "seq": _pixels(g, last), "embed": _width(g, last), "colours": COLOURS}
    b = Builder("head", sizes, "none")
    b.tensor("x", *STREAM)
    image = b.linear("colours", "x", ("embed",), ("colours",), "image")
    loss = b.memory("mean", (image,), "loss", TOKENS)
    return b.finish(("x",), (loss,))
