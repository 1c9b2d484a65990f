"""Rules of features: sequence parallelism, state sharding, recompute."""

from __future__ import annotations

import numpy as np

from planner.candidates import RECOMPUTE, SHARDING, Candidates
from planner.errors import Fault, listed
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import closest, divisors, value
from planner.units import BoolArray


def _sp(task: Task, candidates: Candidates) -> BoolArray:
    c, allowed = candidates, task.trainer.sequence_parallel
    split = np.where(c.sp, True in allowed, False in allowed)
    keeps: BoolArray = np.where(c.tp > 1, split, ~c.sp)
    return keeps


def _sp_fault(task: Task, candidates: Candidates) -> Fault:
    tp, name = value(candidates, "tp"), task.trainer.name
    if tp == 1:
        return Fault(
            "T01",
            f"{name} cannot run sequence parallelism with tp 1: the tp ranks are what it uses.",
            ("It can with tp 2 or more, or without.",),
        )
    state = "with" if candidates.sp[0] else "without"
    other = "without" if candidates.sp[0] else "with"
    what = f"{name} cannot run tp {tp} {state} sequence parallelism."
    return Fault("T01", what, (f"It can {other} it.",))


SEQUENCE_PARALLEL = Rule(
    name="sequence-parallel",
    family="trainer rules",
    sentence="Sequence parallelism goes with tp > 1, and there as the trainer has it.",
    needs=frozenset({"tp", "sp"}),
    keeps=_sp,
    fault=_sp_fault,
    source="Megatron-LM 0.19.2 turns it off silently at tp 1",
)


def _sharding(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = np.isin(candidates.sharding, task.trainer.shardings)
    return keeps


def _sharding_fault(task: Task, candidates: Candidates) -> Fault:
    wanted = SHARDING[value(candidates, "sharding")]
    shown = "unsharded states" if wanted == "none" else wanted
    can = [SHARDING[index] for index in task.trainer.shardings]
    return Fault(
        "T01", f"{task.trainer.name} cannot run {shown}.", (f"It can with {listed(can)}.",)
    )


STATE_SHARDING = Rule(
    name="state-sharding",
    family="trainer rules",
    sentence="States are sharded in a way that the trainer has.",
    needs=frozenset({"sharding"}),
    keeps=_sharding,
    fault=_sharding_fault,
    source="the trainer's list of shardings",
)


def _group(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    keeps: BoolArray = c.dp * c.cp % c.shard_group == 0
    return keeps


def _group_fault(task: Task, candidates: Candidates) -> Fault:
    data, group = int(candidates.dp[0] * candidates.cp[0]), value(candidates, "shard_group")
    fits = closest(divisors(data), group)
    what = f"shard group {group} does not divide the {data} data ranks (dp × cp)."
    return Fault("D04", what, (f"Shard groups of {listed(fits)} do.",))


SHARD_GROUP = Rule(
    name="shard-group",
    family="trainer rules",
    sentence="The ranks over which states are sharded divide dp · cp.",
    needs=frozenset({"dp", "cp", "shard_group"}),
    keeps=_group,
    fault=_group_fault,
    source="Megatron-LM parallel_state: divisible by the partial DistOpt shard factor; torchtitan: "
    "dp_replicate · dp_shard is dp",
)


def _hsdp(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    whole = c.shard_group == c.dp * c.cp
    keeps: BoolArray = whole | np.logical_and(task.trainer.hsdp, c.sharding > 0)
    return keeps


def _hsdp_fault(task: Task, candidates: Candidates) -> Fault:
    data, group = int(candidates.dp[0] * candidates.cp[0]), value(candidates, "shard_group")
    if candidates.sharding[0] == 0:
        what = f"shard group {group} has no meaning without state sharding."
        return Fault("D04", what, (f"Use {data} (all data ranks), or a sharding.",))
    what = f"{task.trainer.name} cannot run shard group {group} of {data} data ranks."
    return Fault("T01", what, (f"It shards over all of them: {data}.",))


HSDP = Rule(
    name="hybrid-sharding",
    family="trainer rules",
    sentence="States are sharded over all data ranks, unless the trainer shards them over a part.",
    needs=frozenset({"dp", "cp", "sharding", "shard_group"}),
    keeps=_hsdp,
    fault=_hsdp_fault,
    source="torchtitan dp_replicate, DeepSpeed hpZ, Megatron num-distributed-optimizer-instances",
)


def _group_cp(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = candidates.shard_group % candidates.cp == 0
    return keeps


def _group_cp_fault(task: Task, candidates: Candidates) -> Fault:
    cp, group = value(candidates, "cp"), value(candidates, "shard_group")
    fits = [cp * d for d in divisors(value(candidates, "dp"))]
    what = f"shard group {group} is not a multiple of cp {cp}, as {task.trainer.name} needs."
    return Fault("D04", what, (f"Shard groups of {listed(closest(fits, group))} are.",))


SHARD_GROUP_CP = Rule(
    name="shard-group-ring",
    family="trainer rules",
    sentence="FSDP shards over whole context-parallel groups.",
    needs=frozenset({"cp", "shard_group"}),
    keeps=_group_cp,
    fault=_group_cp_fault,
    source="torchtitan parallel_dims and Accelerate ParallelismConfig: the FSDP mesh is dp_shard × cp",
)


def _cp_sharded(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = (candidates.cp == 1) | (candidates.sharding >= SHARDING.index("ZeRO-2"))
    return keeps


def _cp_sharded_fault(task: Task, candidates: Candidates) -> Fault:
    cp, wanted = value(candidates, "cp"), SHARDING[value(candidates, "sharding")]
    what = f"{task.trainer.name} cannot run cp {cp} with {wanted}."
    return Fault("T01", what, ("It can with ZeRO-2 or ZeRO-3 (FSDP), or with cp 1.",))


CP_SHARDED = Rule(
    name="ring-needs-fsdp",
    family="trainer rules",
    sentence="Accelerate runs context parallelism only together with FSDP.",
    needs=frozenset({"cp", "sharding"}),
    keeps=_cp_sharded,
    fault=_cp_sharded_fault,
    source="Accelerate 1.15 ParallelismConfig refuses cp with pure replication",
)


def _recompute(task: Task, candidates: Candidates) -> BoolArray:
    known = [RECOMPUTE.index(mode) for mode in task.trainer.recompute]
    keeps: BoolArray = np.isin(candidates.recompute, known)
    return keeps


def _recompute_fault(task: Task, candidates: Candidates) -> Fault:
    mode = RECOMPUTE[value(candidates, "recompute")]
    what = f"{task.trainer.name} cannot run recompute {mode}."
    return Fault("T01", what, (f"It can with {listed(list(task.trainer.recompute))}.",))


RECOMPUTE_MODE = Rule(
    name="recompute",
    family="trainer rules",
    sentence="What is recomputed is a mode that the trainer has.",
    needs=frozenset({"recompute"}),
    keeps=_recompute,
    fault=_recompute_fault,
    source="the trainer's list of modes",
)

RULES = (
    SEQUENCE_PARALLEL,
    STATE_SHARDING,
    SHARD_GROUP,
    HSDP,
    SHARD_GROUP_CP,
    CP_SHARDED,
    RECOMPUTE_MODE,
)
