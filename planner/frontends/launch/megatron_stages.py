"""How Megatron-LM's arguments divide layers among stages and virtual stages."""

from __future__ import annotations

import re

from planner.frontends.launch.found import Reader

_TERM = re.compile(r"([EtmLT])(?:\*(\d+))?")
_GROUP = re.compile(r"\(([^()]*)\)\*(\d+)")


def read(reader: Reader, layers: int, pp: int) -> tuple[int, ...] | None:
    """Layers of every chunk in the order of visits; None without a pipeline, or where nothing says their number."""
    if pp == 1:
        return None
    if layers < 1:
        return _layout_string(reader, layers, pp)
    for way in (_layout_string, _listed, _ends, _equal):
        found = way(reader, layers, pp)
        if found is not None:
            if sum(found) != layers:
                reader.fault(
                    "P01", f"its stages hold {sum(found)} layers, and the model has {layers}."
                )
            return found
    return None


def _layout_string(reader: Reader, layers: int, pp: int) -> tuple[int, ...] | None:
    text = reader.text("pipeline-model-parallel-layout")
    if not text:
        return None
    found = chunks(text)
    if len(found) % pp:
        what = f"pipeline-model-parallel-layout has {len(found)} stages, no multiple of pp {pp}."
        reader.fault("P01", what, "It names every virtual stage of every rank.")
    return found


def chunks(text: str) -> tuple[int, ...]:
    """Transformer layers of every stage of a layout string.

    >>> chunks("Et*3|(t*4|)*2t*2mL")
    (3, 4, 4, 2)
    """
    flat = text.strip("'\" ")
    while (found := _GROUP.search(flat)) is not None:
        flat = flat[: found.start()] + found[1] * int(found[2]) + flat[found.end() :]
    return tuple(
        sum(int(count or 1) for letter, count in _TERM.findall(part) if letter in "tT")
        for part in flat.split("|")
    )


def _listed(reader: Reader, layers: int, pp: int) -> tuple[int, ...] | None:
    """MindSpeed's list of layers a stage."""
    text = reader.text("num-layer-list").strip("'\"")
    if not text:
        return None
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        reader.fault("W03", f"num-layer-list is {text[:40]!r}, no list of numbers.")
        return None
    if len(found) != pp:
        reader.fault("P01", f"num-layer-list names {len(found)} stages, and pp is {pp}.")
    return found


def _ends(reader: Reader, layers: int, pp: int) -> tuple[int, ...] | None:
    first = reader.number("decoder-first-pipeline-num-layers", default=0)
    last = reader.number("decoder-last-pipeline-num-layers", default=0)
    if not first and not last:
        return None
    given = [size for size in (first, last) if size]
    middle = pp - len(given)
    rest = layers - sum(given)
    if middle < 1 or rest < 0 or rest % middle:
        what = f"{rest} layers do not divide among the {middle} stages between first and last."
        reader.fault("P01", what)
        return None
    return tuple([first] * bool(first) + [rest // middle] * middle + [last] * bool(last))


def _equal(reader: Reader, layers: int, pp: int) -> tuple[int, ...] | None:
    """Equal chunks of the padded depth; layers that do nothing are taken out again."""
    idle = _idle(reader)
    padded = layers + len(idle)
    each = reader.number("num-layers-per-virtual-pipeline-stage", default=0)
    vpp = reader.number("num-virtual-stages-per-pipeline-rank", default=0)
    extra = sum(
        reader.flag(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")
    )
    if reader.text("schedules-method") == "dualpipev":
        vpp = 2
    pieces = pp * (vpp or 1)
    if each:
        if padded % (pp * each):
            reader.fault(
                "P01",
                f"{padded} layers are no multiple of pp {pp} × {each} layers a virtual stage; "
                "Megatron has lost layers over this.",
                "State stages one by one: --pipeline-model-parallel-layout",
            )
            return None
        pieces = padded // each
    if (padded + extra) % pieces:
        near = [p for p in range(1, padded + 1) if (padded + extra) % p == 0]
        fits = min(near, key=lambda p: (abs(p - pieces), p))
        reader.fault(
            "P01",
            f"{padded} layers do not divide among {pieces} stages, as Megatron needs.",
            f"Nearest: {fits} stages. Or state them: --pipeline-model-parallel-layout",
        )
        return None
    size = (padded + extra) // pieces
    sizes = [size] * pieces
    if extra:
        sizes[0] -= reader.flag("account-for-embedding-in-pipeline-split")
        sizes[-1] -= reader.flag("account-for-loss-in-pipeline-split")
    for layer in idle:
        sizes[min(layer // size, pieces - 1)] -= 1
    return tuple(sizes)


def _idle(reader: Reader) -> list[int]:
    """Layers that MindSpeed pads a depth with."""
    text = reader.text("noop-layers").strip("'\"")
    return [int(part) for part in text.split(",") if part.strip().isdigit()]
