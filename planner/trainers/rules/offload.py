"""Rules of what a trainer can keep in host memory."""

from __future__ import annotations

import numpy as np

from planner.candidates import OFFLOAD, RECOMPUTE, SHARDING, Candidates
from planner.errors import Fault, listed
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import value
from planner.units import BoolArray, IntArray

NO_RECOMPUTE, FULL = RECOMPUTE.index("none"), RECOMPUTE.index("full")


def _kinds(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = np.isin(candidates.offload, task.trainer.offload.kinds)
    return keeps


def _kinds_fault(task: Task, candidates: Candidates) -> Fault:
    wanted = OFFLOAD[value(candidates, "offload")]
    can = [OFFLOAD[index] for index in task.trainer.offload.kinds]
    what = f"{task.trainer.name} cannot run offload {wanted}."
    return Fault("T01", what, (f"It can with {listed(can)}.",))


KINDS = Rule(
    name="offload",
    family="trainer rules",
    sentence="What is kept in host memory is what the trainer can keep there.",
    needs=frozenset({"offload"}),
    keeps=_kinds,
    fault=_kinds_fault,
    source="the trainer's list of what it offloads",
)


def _least(task: Task, candidates: Candidates) -> IntArray:
    """Least state sharding with which optimizer states leave the chip: all of them, or a share."""
    part = (candidates.optimizer_in_host > 0.0) & (candidates.optimizer_in_host < 1.0)
    return np.where(part, task.trainer.offload.share_from, 1)


def _states(task: Task, candidates: Candidates) -> BoolArray:
    c, way = candidates, task.trainer.offload
    enough: BoolArray = ~c.in_host("optimizer") | (c.sharding >= _least(task, c))
    sharded: BoolArray = enough & (~c.in_host("states") | (c.sharding >= way.states_from))
    return sharded | ~_kinds(task, c)  # what it never keeps in host memory is the other rule's


def _states_fault(task: Task, candidates: Candidates) -> Fault:
    sharding, wanted = value(candidates, "sharding"), OFFLOAD[value(candidates, "offload")]
    shown = "unsharded states" if sharding == 0 else SHARDING[sharding]
    weights = bool(candidates.in_host("states")[0])
    least = (
        max(task.trainer.offload.states_from, 1) if weights else int(_least(task, candidates)[0])
    )
    can = [SHARDING[level] for level in task.trainer.shardings if level >= least]
    what = f"{task.trainer.name} cannot run offload {wanted} with {shown}."
    return Fault("T01", what, (f"It can with {listed(can)}.",))


STATES = Rule(
    name="offload-states",
    family="trainer rules",
    sentence="States leave the chip only where they are sharded, weights only where the trainer moves sharded ones.",
    needs=frozenset({"offload", "sharding"}),
    keeps=_states,
    fault=_states_fault,
    source="Megatron: optimizer offload needs the distributed optimizer; DeepSpeed: offload_param needs ZeRO-3",
)


def _activations(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    if task.trainer.offload.checkpoints:
        fine: BoolArray = c.recompute == FULL
    else:
        fine = (c.recompute == NO_RECOMPUTE) & (c.pp == 1)
    keeps: BoolArray = ~c.in_host("activations") | fine
    return keeps


def _activations_fault(task: Task, candidates: Candidates) -> Fault:
    wanted = OFFLOAD[value(candidates, "offload")]
    mode, pp = RECOMPUTE[value(candidates, "recompute")], value(candidates, "pp")
    name = task.trainer.name
    if task.trainer.offload.checkpoints:
        what = f"{name} cannot run offload {wanted} with recompute {mode}: it moves checkpoints."
        return Fault("T01", what, ("It can with recompute full.",))
    what = f"{name} cannot run offload {wanted} with pp {pp} and recompute {mode}."
    return Fault("T01", what, ("It can with pp 1 and recompute none.",))


ACTIVATIONS = Rule(
    name="offload-activations",
    family="trainer rules",
    sentence="Activations leave the chip without recompute and on one stage, or as checkpoints of full recompute.",
    needs=frozenset({"offload", "recompute", "pp"}),
    keeps=_activations,
    fault=_activations_fault,
    source="Megatron-Core transformer_config: cpu_offloading refuses pp > 1 and recompute; DeepSpeed "
    "cpu_checkpointing is an option of activation checkpointing",
)

RULES = (KINDS, STATES, ACTIVATIONS)
