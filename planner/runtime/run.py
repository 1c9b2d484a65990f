"""Plans run on processes of this computer and held against one process: the loss, and every gradient."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import queue
import socket
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from typing import TypeAlias

from planner.runtime.predicted import Issued
from planner.runtime.program import Program

PATIENCE = 240.0
"""Seconds to wait for one plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What running a plan gave."""

    ranks: int
    loss: float
    expected: float
    """Loss of one process."""
    worst: float
    """Largest difference of a gradient from that of one process, as a share of its largest entry."""
    worst_name: str
    issued: Issued
    """Collectives that the first rank issued in the step."""
    seconds: float
    fault: str = ""
    """What went wrong instead, if anything."""

    @property
    def equal(self) -> bool:
        """Loss and gradients are those of one process, up to rounding in fp32."""
        return (
            not self.fault
            and abs(self.loss - self.expected) < 1e-5 * abs(self.expected)
            and self.worst < 1e-4
        )


Answer: TypeAlias = tuple[int, Ran]
"""The number of a plan, and what running it gave."""


def run(plans: Sequence[Program]) -> list[Ran]:
    """Runs plans one after another, those of equal size in the same processes.

    Torch is loaded once, before the processes fork.
    """
    import planner.runtime.worker  # noqa: F401

    found: dict[int, Ran] = {}
    for ranks in sorted({plan.ranks for plan in plans}):
        places = [index for index, plan in enumerate(plans) if plan.ranks == ranks]
        answers = _pool(ranks, [plans[index] for index in places])
        found |= dict(zip(places, answers, strict=True))
    return [found[index] for index in range(len(plans))]


def _pool(ranks: int, plans: list[Program]) -> list[Ran]:
    """Runs plans in new processes. Where one fails the others may wait for it for ever: the rest starts anew."""
    context = multiprocessing.get_context("fork")
    answers: Queue[Answer] = context.Queue()
    port = _free_port()
    processes = [
        context.Process(target=_work, args=(rank, ranks, port, plans, answers), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    told: dict[int, Ran] = {}
    found: list[Ran] = []
    while len(found) < len(plans) and not (found and found[-1].fault):
        try:
            if len(found) not in told:
                number, ran = answers.get(timeout=PATIENCE)
                told.setdefault(number, ran)
        except queue.Empty:
            told[len(found)] = _failed(plans[len(found)], f"no answer within {PATIENCE:.0f} s")
        if len(found) in told:
            found.append(told[len(found)])
    for process in processes:
        if found[-1].fault:
            process.terminate()
        process.join()
    rest = plans[len(found) :]
    return found + (_pool(ranks, rest) if rest else [])


def _failed(plan: Program, why: str) -> Ran:
    return Ran(
        ranks=plan.ranks,
        loss=0.0,
        expected=0.0,
        worst=0.0,
        worst_name="",
        issued={},
        seconds=0.0,
        fault=why,
    )


def _work(rank: int, ranks: int, port: int, plans: list[Program], answers: Queue[Answer]) -> None:
    """One process: joins the group, runs every plan, and the first process reports; any of them what went wrong."""
    import torch.distributed as dist

    from planner.runtime.worker import compared

    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(
        logging.ERROR
    )  # advice about speed, which nobody wants of toys
    gc.freeze()
    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0)
    for number, plan in enumerate(plans):
        started = time.monotonic()
        try:
            own = dist.PrefixStore(str(number), store)
            dist.init_process_group("gloo", store=own, rank=rank, world_size=ranks)
            ran = compared(plan, number)
        except Exception as error:  # told to the parent, which fails the check
            answers.put((number, _failed(plan, f"{type(error).__name__}: {str(error)[:300]}")))
            break
        if rank == 0:
            answers.put((number, replace(ran, seconds=time.monotonic() - started)))
        dist.destroy_process_group()
        gc.collect()  # or its groups stay, whose threads wake a hundred times a second


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
