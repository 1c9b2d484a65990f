"""Rules of DeepSpeed's ways to split a model: AutoTP its layers, Ulysses its sequence."""

from __future__ import annotations

import math

import numpy as np

from planner.candidates import Candidates
from planner.errors import Fault, listed
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import closest, divisors, every, value
from planner.units import BoolArray


def _head_count(task: Task) -> int:
    """What the numbers of query and of key/value heads of all layers have in common."""
    return math.gcd(*(int(n) for dim in ("heads", "kv_heads") for n in task.model.sizes(dim)))


def _whole_heads(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = _head_count(task) % candidates.cp == 0
    return keeps


def _whole_heads_fault(task: Task, candidates: Candidates) -> Fault:
    cp, fits = value(candidates, "cp"), divisors(_head_count(task))
    what = f"cp {cp} cannot give every rank whole heads of {task.model.name} while it attends (Ulysses)."
    return Fault("D02", what, (f"cp can be {listed(closest(fits, cp))}.",))


WHOLE_HEADS = Rule(
    name="ulysses-heads",
    family="head count",
    sentence="Under Ulysses cp divides the query heads and the key/value heads.",
    needs=frozenset({"cp"}),
    keeps=_whole_heads,
    fault=_whole_heads_fault,
    source="DeepSpeed 0.19.8 UlyssesSPAttentionHF; it can also copy key/value heads, which is not planned",
)


def _dense(task: Task, candidates: Candidates) -> BoolArray:
    return candidates.tp == 1 if task.model.sizes("experts") else every(candidates.tp)


def _dense_fault(task: Task, candidates: Candidates) -> Fault:
    what = f"{task.trainer.name} cannot run tp {value(candidates, 'tp')} of {task.model.name}, which has experts."
    return Fault("T01", what, ("It can with tp 1.",))


DENSE = Rule(
    name="autotp-dense",
    family="trainer rules",
    sentence="AutoTP splits dense models.",
    needs=frozenset({"tp"}),
    keeps=_dense,
    fault=_dense_fault,
    source="DeepSpeed 0.19.8: experts are AutoEP's, which is folded with AutoTP by settings of its own; not planned",
)


def _either(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = np.minimum(candidates.tp, candidates.cp) == 1
    return keeps


def _either_fault(task: Task, candidates: Candidates) -> Fault:
    tp, cp = value(candidates, "tp"), value(candidates, "cp")
    what = f"{task.trainer.name} cannot run tp {tp} (AutoTP) and cp {cp} (Ulysses) together."
    return Fault("T01", what, ("It can with either of them 1.",))


EITHER = Rule(
    name="autotp-or-ulysses",
    family="trainer rules",
    sentence="AutoTP and Ulysses are not combined.",
    needs=frozenset({"tp", "cp"}),
    keeps=_either,
    fault=_either_fault,
    source="DeepSpeed 0.19.8: AutoTP puts its own groups in the place of the mpu that Ulysses registers (engine.py)",
)

RULES = (WHOLE_HEADS, DENSE, EITHER)
