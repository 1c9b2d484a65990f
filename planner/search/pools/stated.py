"""A layout on pools as a person states it."""

from __future__ import annotations

from dataclasses import replace

from planner.candidates import SCHEDULES, Candidates, single
from planner.errors import PlannerError, listed, nearest
from planner.plan.layout import SEATS
from planner.search.pins import Pins
from planner.search.pools.place import Seats, Site
from planner.trainers.trainer import Task


def seats_of(text: str, site: Site) -> Seats:
    """Seats in words: ``h100-sxm:2+a100-sxm-80gb:1``, from the first stage to the last.

    Raises:
        PlannerError: a pool that is not there, or no number of stages (N02).
    """
    names = [task.cluster.name for task in site.tasks]
    pools, stages = [], []
    for part in text.split("+"):
        name, _, count = part.strip().rpartition(":")
        if name not in names:
            close = listed(nearest(name or part, names, 2))
            raise PlannerError.of(
                "N02", f"{SEATS}={text}: no pool named '{name or part}'.", f"Nearest: {close}."
            )
        if not (count.isascii() and count.isdigit() and 0 < int(count) < 10**6):
            what = f"{SEATS}={text}: '{count}' is no number of stages."
            raise PlannerError.of(
                "N02", what, f"Write it like {SEATS}={'+'.join(f'{n}:1' for n in names)}"
            )
        pools.append(names.index(name))
        stages.append(int(count))
    if len(set(pools)) < len(pools):
        raise PlannerError.of("N02", f"{SEATS}={text}: a pool's stages follow one another.")
    return Seats(tuple(pools), tuple(stages))


def stated_row(site: Site, pins: Pins, seats: Seats | None) -> tuple[Candidates, tuple[Task, ...]]:
    """A stated layout as a table of one row, and the question on each pool that it uses, of as many chips as it takes.

    Degrees that are left out are 1, but for dp: what the smallest share of chips for a stage leaves.

    Raises:
        PlannerError: more stages than the chips of a pool have room for, or another number of stages than pp (D01).
    """
    given = {pin.column: pin.value for pin in pins.pins if pin.compare == "="}
    inner = given.get("tp", 1) * given.get("cp", 1)
    pp = given.get("pp", 1 if seats is None else sum(seats.stages))
    chips = [task.cluster.num_chips for task in site.tasks]
    if seats is None:
        used = tuple(range(len(chips)))
        most = sum(chips) // pp
    else:
        used = seats.pools
        most = min(chips[p] // n for p, n in zip(seats.pools, seats.stages, strict=True))
        if pp != sum(seats.stages):
            what = f"pp {pp}, but {SEATS} names {sum(seats.stages)} stages."
            raise PlannerError.of("D01", what)
    dp = given.get("dp", max(1, most // inner))
    if dp * inner > most:
        what = f"a stage of dp {dp} with cp × tp {inner} needs {dp * inner} chips."
        raise PlannerError.of("D01", what, f"The pools have {most} for each stage.")
    first = site.tasks[used[0]]
    usual = {
        "sharding": max(
            x for x in first.trainer.shardings if x <= 1 or min(first.trainer.shardings) > 1
        ),
        "sp": int(True in first.trainer.sequence_parallel and given.get("tp", 1) > 1),
        "schedule": SCHEDULES.index("interleaved" if given.get("vpp", 1) > 1 else "1f1b"),
    }
    row = single(**(usual | given | {"pp": pp, "dp": dp}))
    total = int(row.ranks[0])
    tasks = (site.tasks[pool] for pool in used)
    return row, tuple(replace(t, cluster=replace(t.cluster, num_chips=total)) for t in tasks)
