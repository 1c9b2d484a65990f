"""The trainers that we know, by name, and what a stated layout breaks in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from planner.candidates import SCHEDULES, SPLIT, Candidates
from planner.errors import Fault, PlannerError, listed, nearest
from planner.graph.model import Model
from planner.hardware.chip import Chip
from planner.trainers.deepspeed import DEEPSPEED
from planner.trainers.fsdp import FSDP
from planner.trainers.generations import current
from planner.trainers.megatron import MEGATRON
from planner.trainers.mindspeed import MINDSPEED
from planner.trainers.mindspore import MINDSPORE
from planner.trainers.rules import broken
from planner.trainers.torchtitan import TORCHTITAN
from planner.trainers.trainer import Task, Trainer
from planner.trainers.wording import every, value
from planner.units import BoolArray

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


def check_trains(trainer: Trainer, model: Model) -> None:
    """Refuse a trainer that has no such models.

    Raises:
        PlannerError: the model has an encoder, and the trainer trains decoders only (T03).
    """
    if trainer.encoders or not model.has_encoder:
        return
    able = [t.name for t in TRAINERS if t.encoders]
    what = f"{trainer.name} ({trainer.release}) trains decoders; {model.name} has an encoder before its decoder."
    raise PlannerError.of("T03", what, f"Trainers that can: {listed(able, 'and')}.")


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


def faults(
    task: Task, candidates: Candidates, stated: Collection[str] | None = None
) -> tuple[Fault, ...]:
    """Everything that is wrong with a single stated layout; trainers that could run it are named.

    Args:
        task: the question.
        candidates: a table of one row.
        stated: columns that a person fixed, which another trainer would have to take; all where None.
    """
    found = tuple(fault for _, fault in broken(task, candidates))
    return with_able(task, found, candidates, stated)


def with_able(
    task: Task, found: tuple[Fault, ...], candidates: Candidates, stated: Collection[str] | None
) -> tuple[Fault, ...]:
    """The same faults; those that another trainer would not have name the ones that can.

    Arguments as in :func:`faults`; ``candidates`` are any number of layouts, one of which a trainer must take.
    """
    if all(fault.code != "T01" for fault in found):
        return found
    able = [
        trainer.name
        for trainer in TRAINERS
        if trainer.runs_on(task.cluster.chip, task.recipe.precision)
        and (trainer.encoders or not task.model.has_encoder)
        and _takes(replace(task, trainer=trainer), candidates, stated).any()
    ]
    others = (f"Trainers that can: {listed(able, 'and')}.",) if able else ()
    if not able and all(fault.code == "T01" for fault in found):
        others = ("No other trainer can.",)
    return tuple(replace(f, fix=f.fix + others) if f.code == "T01" else f for f in found)


def _takes(task: Task, candidates: Candidates, stated: Collection[str] | None) -> BoolArray:
    """Which layouts keep the rules that look at what is stated alone."""
    keeps = every(candidates.tp)
    for rule in task.trainer.rules:
        if stated is None or rule.needs <= set(stated):
            keeps &= rule.keeps(task, candidates)
    return keeps


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
    tp, trainer, name = value(candidates, "tp"), task.trainer, task.recipe.optimizer
    found = []
    if name not in trainer.optimizers:
        found.append(
            f"no file is written that starts {trainer.name} with {name}: "
            f"{listed(sorted(trainer.optimizers), 'and')} are known there. Time and memory are those of {name}."
        )
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
