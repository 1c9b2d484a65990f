"""What the ranks of a stage send to other stages, as a plan says it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.prices import Prices
from planner.cost.sends import sent_bytes
from planner.plan.schema import Collective


def stage_sends(p: Prices, stage: int) -> Iterator[Collective]:
    """Of every chunk of a stage its result, and the gradient of its input, where they leave the stage.

    ``p`` holds one row.
    """
    pp, vpp = int(p.rows.pp[0]), int(p.rows.vpp[0])
    order = stages_in_order(pp, vpp, folded=bool(p.rows.folded[0]))
    size = float(sent_bytes(p.task, p.rows, p.table.stream[p.key])[0])
    exposed = p.delays(pp)[0]
    hidden = p.sends.hidden_boundaries(pp)[0] if p.mix is None else p.mix.hidden
    for chunk, here in enumerate(order):
        for phase, other in (("forward", chunk + 1), ("backward", chunk - 1)):
            if here != stage or not 0 <= other < len(order) or order[other] == stage:
                continue
            behind = min(here, order[other]) if abs(here - order[other]) == 1 else pp - 1
            yield Collective(
                kind="send",
                tensor="x",
                axis="pp",
                phase="forward" if phase == "forward" else "backward",
                bytes=size,
                seconds=float(exposed[behind] + hidden[behind]),
                exposed=float(exposed[behind]),
            )


def stages_in_order(pp: int, vpp: int, *, folded: bool) -> list[int]:
    """The stage of every chunk in the order in which a token meets them.

    >>> stages_in_order(3, 2, folded=False), stages_in_order(3, 2, folded=True)
    ([0, 1, 2, 0, 1, 2], [0, 1, 2, 2, 1, 0])
    """
    there = list(range(pp))
    return [s for turn in range(vpp) for s in (there[::-1] if folded and turn % 2 else there)]
