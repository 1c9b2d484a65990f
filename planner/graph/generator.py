"""An image generator made of transformer layers over ever finer grids: TransGAN as Megatron layers.

A latent vector becomes a coarse grid of wide pixels; every step doubles the grid's sides, and from the third on
quarters the width. Fine grids attend within windows, so that their layers are as narrow as their scores are many:
layers of very different time and memory in one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.architecture import Architecture, Attention, Layer, Mlp
from planner.graph.blocks import layer_block
from planner.graph.builder import STREAM, TOKENS, Builder
from planner.graph.model import Model
from planner.graph.operator import Block

COLOURS = 3
WIDE_GRIDS = 3
"""Grids of the full width, attended to as a whole; each later one has a quarter of the width of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGenerator:
    """Sizes of a generator.

    Source: Jiang et al. 2021, TransGAN (arXiv 2102.07074), section 3; AMP's trans_gan_gen.py for the defaults.
    """

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


def build_generator(g: ImageGenerator, *, fused: bool) -> Model:
    """The graph for one image; a sequence is an image.

    Args:
        g: sizes.
        fused: whether attention runs as one fused kernel.
    """
    used = [grid for grid, layers in enumerate(g.depth) if layers]
    blocks = tuple(_grid(g, grid, fused=fused) for grid in used)
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


def _grid(g: ImageGenerator, grid: int, *, fused: bool) -> Block:
    """A layer of one grid: projections, attention whose scores are kept, feed-forward of four times the width."""
    width, pixels = _width(g, grid), _pixels(g, grid)
    windowed = grid >= WIDE_GRIDS
    layer = Layer(
        name=f"grid{grid + 1}",
        attention=Attention(
            heads=g.heads, kv_heads=g.heads, head_dim=width // g.heads, rotary=False
        ),
        mlp=Mlp(width=4 * width, gated=False),
    )
    arch = Architecture(
        name=g.name,
        hidden=width,
        vocab=1,
        max_seq=pixels,
        kinds=(layer,),
        layers=(0,),
        norm="none",
        dropout=True,
    )
    return layer_block(arch, layer, pixels, fused=fused, keys=g.window**2 if windowed else pixels)


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
