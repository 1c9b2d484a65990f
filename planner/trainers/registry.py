"""The trainers that we know, by name, and what a stated layout breaks in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.candidates import SCHEDULES, SPLIT, Candidates
from planner.errors import Fault, PlannerError, listed, nearest
from planner.hardware.chip import Chip
from planner.trainers.deepspeed import DEEPSPEED
from planner.trainers.fsdp import FSDP
from planner.trainers.generations import current
from planner.trainers.megatron import MEGATRON
from planner.trainers.mindspeed import MINDSPEED
from planner.trainers.mindspore import MINDSPORE
from planner.trainers.rules import allowed, broken
from planner.trainers.torchtitan import TORCHTITAN
from planner.trainers.trainer import Task, Trainer
from planner.trainers.wording import value

TRAINERS: tuple[Trainer, ...] = tuple(
    map(current, (MEGATRON, TORCHTITAN, FSDP, DEEPSPEED, MINDSPORE, MINDSPEED))
)
DEFAULT = TRAINERS[0]


def get_trainer(name: str) -> Trainer:
    """The trainer of a name or an alias, in any case.

    Raises:
        PlannerError: no trainer has that name (T02); the nearest names are given.
    """
    wanted = name.strip().lower().replace("_", "-")
    names = {known: trainer for trainer in TRAINERS for known in (trainer.name, *trainer.aliases)}
    if wanted in names:
        return names[wanted]
    close = listed(nearest(wanted, names), "and")
    known = listed([trainer.name for trainer in TRAINERS], "and")
    raise PlannerError.of(
        "T02", f"no trainer named '{name}'. Nearest: {close}.", f"Trainers: {known}."
    )


def check_runs(trainer: Trainer, chip: Chip, precision: str) -> None:
    """Refuse a trainer where it cannot run.

    Raises:
        PlannerError: on that chip or in that precision it does not (T03); those that do are named.
    """
    if trainer.runs_on(chip, precision):
        return
    where = precision if precision in trainer.lacks else chip.name
    able = [
        t.name for t in TRAINERS if t.runs_on(chip, precision) and chip.vendor not in t.elsewhere
    ]
    what = f"{trainer.name} ({trainer.release}) does not run {'in' if where == precision else 'on'} {where}."
    raise PlannerError.of("T03", what, f"Trainers that do: {listed(able, 'and')}.")


def faults(task: Task, candidates: Candidates) -> tuple[Fault, ...]:
    """Everything that is wrong with a single stated layout; trainers that could run it are named."""
    found = broken(task, candidates)
    if not any(fault.code == "T01" for _, fault in found):
        return tuple(fault for _, fault in found)
    able = [t.name for t in TRAINERS if allowed(replace(task, trainer=t), candidates)[0]]
    others = (f"Trainers that can: {listed(able, 'and')}.",) if able else ()
    return tuple(
        Fault(f.code, f.what, f.fix + others, f.where) if f.code == "T01" else f for _, f in found
    )


def padding(task: Task, chunks: Sequence[int]) -> tuple[str, ...]:
    """What a person should know about chunks of these numbers of layers: sentences, no faults."""
    most = max(chunks)
    empty = most * len(chunks) - sum(chunks)
    if not empty or not task.trainer.pads_layers:
        return ()
    layers = "1 empty layer fills" if empty == 1 else f"{empty} empty layers fill"
    return (
        f"{layers} the {sum(chunks)} layers up to {most * len(chunks)}, {most} a chunk, as {task.trainer.name} needs; "
        "they take neither time nor memory.",
    )


def notes(task: Task, candidates: Candidates) -> tuple[str, ...]:
    """What a person should know about a layout that is allowed: sentences, no faults."""
    tp = value(candidates, "tp")
    found = []
    schedule = value(candidates, "schedule")
    if task.trainer.name == "torchtitan" and schedule in SPLIT:
        found.append(
            f"torchtitan runs {SCHEDULES[schedule]} only without torch.compile; times are those of compiled code."
        )
    for vocab in task.model.sizes("vocab"):
        rows = task.trainer.padded_vocab(int(vocab), tp)
        if rows != vocab:
            found.append(
                f"{task.trainer.name} pads the vocabulary from {int(vocab)} to {rows} with tp {tp}; "
                "another tp may give another size, which a checkpoint must match."
            )
    return tuple(found)
