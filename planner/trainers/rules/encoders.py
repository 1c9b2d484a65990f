"""Rules of models with an encoder before the decoder."""

from __future__ import annotations

import numpy as np

from planner.candidates import Candidates
from planner.errors import Fault
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import value
from planner.units import BoolArray


def _whole(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = np.logical_or(candidates.cp == 1, not task.model.has_encoder)
    return keeps


def _whole_fault(task: Task, candidates: Candidates) -> Fault:
    cp, model = value(candidates, "cp"), task.model.name
    what = f"{task.trainer.name} cannot run cp {cp} with {model}: an encoder sees its source as a whole."
    return Fault("T01", what, ("It can with cp 1.",))


ENCODER_SEQUENCE = Rule(
    name="encoder-sequence",
    family="trainer rules",
    sentence="Sequences of a model with an encoder are not cut: context parallelism is for decoders.",
    needs=frozenset({"cp"}),
    keeps=_whole,
    fault=_whole_fault,
    source="assumed: context parallelism balances causal masks, and no trainer here was seen to cut a source",
)


def _together(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = np.logical_or(candidates.pp == 1, not task.model.has_encoder)
    return keeps


def _together_fault(task: Task, candidates: Candidates) -> Fault:
    pp, model = value(candidates, "pp"), task.model.name
    what = f"{task.trainer.name} cannot run pp {pp} with {model}: encoder and decoder stand on one stage."
    return Fault("T01", what, ("It can with pp 1.",))


ENCODER_STAGES = Rule(
    name="encoder-stages",
    family="trainer rules",
    sentence="An encoder and the decoder that reads its result stand on one stage.",
    needs=frozenset({"pp"}),
    keeps=_together,
    fault=_together_fault,
    source="Megatron-LM, commit b600e38d (July 2025), which removed stages of an encoder's own",
)

RULES = (ENCODER_SEQUENCE, ENCODER_STAGES)
