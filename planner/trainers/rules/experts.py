"""Rules of mixtures of experts: how ep and etp share the ranks of dp, cp and tp."""

from __future__ import annotations

import math

import numpy as np

from planner.candidates import Candidates
from planner.errors import Fault, listed
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import closest, divisors, every, product, value
from planner.units import BoolArray, IntArray

SHARES = "ep shares chips with dp and tp; it does not multiply the chip count."


def is_moe(task: Task) -> bool:
    """Whether the model has experts."""
    return bool(task.model.sizes("experts"))


def _only(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    return every(c.ep) if is_moe(task) else (c.ep == 1) & (c.etp == 1)


def _only_fault(task: Task, candidates: Candidates) -> Fault:
    shown = product(candidates, ("ep", "etp"))
    what = f"{shown} needs experts, and {task.model.name} has none."
    return Fault("E01", what, ("Use ep 1 and etp 1.",))


EXPERTS_ONLY = Rule(
    name="experts-only",
    family="experts",
    sentence="Only a model with experts is split over ep and etp.",
    needs=frozenset({"ep", "etp"}),
    keeps=_only,
    fault=_only_fault,
    source="Megatron-LM 0.19.2 refuses EP on a dense model",
)


def _counts(task: Task) -> list[int]:
    return [int(size) for size in task.model.sizes("experts")]


def _experts(task: Task, candidates: Candidates) -> BoolArray:
    if not is_moe(task):
        return every(candidates.ep)
    keeps: BoolArray = math.gcd(*_counts(task)) % candidates.ep == 0
    return keeps


def _experts_fault(task: Task, candidates: Candidates) -> Fault:
    ep = value(candidates, "ep")
    wrong = next(count for count in _counts(task) if count % ep)
    fits = listed(closest(divisors(math.gcd(*_counts(task))), ep))
    what = f"ep {ep} does not divide {wrong} experts. ep {fits} does."
    return Fault("E01", what, (SHARES,))


EXPERTS = Rule(
    name="experts",
    family="experts",
    sentence="ep divides the experts.",
    needs=frozenset({"ep"}),
    keeps=_experts,
    fault=_experts_fault,
    source="Megatron-LM; torchtitan #4258",
)


def _whole(task: Task, candidates: Candidates) -> BoolArray:
    return every(candidates.etp) if task.trainer.expert_tp else candidates.etp == 1


def _whole_fault(task: Task, candidates: Candidates) -> Fault:
    what = f"{task.trainer.name} cannot run etp {value(candidates, 'etp')}: it keeps experts whole."
    return Fault("T01", what, ("It can with etp 1.",))


EXPERTS_WHOLE = Rule(
    name="whole-experts",
    family="trainer rules",
    sentence="A trainer that cannot split an expert runs etp 1.",
    needs=frozenset({"etp"}),
    keeps=_whole,
    fault=_whole_fault,
    source="torchtitan 0.3.0 has no expert_tensor_parallel_degree",
)


def _ranks(c: Candidates) -> IntArray:
    return c.dp * c.cp * c.tp


def _mesh(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = _ranks(candidates) % (candidates.ep * candidates.etp) == 0
    return keeps


def _mesh_fault(task: Task, candidates: Candidates) -> Fault:
    ranks, etp = int(_ranks(candidates)[0]), value(candidates, "etp")
    ep, pp = value(candidates, "ep"), value(candidates, "pp")
    fits = divisors(math.gcd(ranks // etp, *_counts(task)) if ranks % etp == 0 else 1)
    least = pp * math.lcm(value(candidates, "tp") * value(candidates, "cp"), ep * etp)
    shown, stage = product(candidates, ("ep", "etp")), product(candidates, ("dp", "cp", "tp"))
    what = f"{shown} does not divide the {ranks} chips of a stage ({stage})."
    near = f"ep can be {listed(closest(fits, ep))} here; ep {ep} needs {least} chips or a multiple."
    return Fault("E02", what, (near, SHARES))


EXPERT_MESH = Rule(
    name="expert-mesh",
    family="experts",
    sentence="ep · etp divides dp · cp · tp: both views factor the same ranks.",
    needs=frozenset({"dp", "cp", "tp", "ep", "etp"}),
    keeps=_mesh,
    fault=_mesh_fault,
    source="Megatron-LM megatron/core/parallel_state.py; Megatron-Bridge #546; torchtitan #4258; FAMBench #103",
)


def _over_tp(task: Task, candidates: Candidates) -> BoolArray:
    if not is_moe(task):
        return every(candidates.tp)
    keeps: BoolArray = candidates.ep >= candidates.tp
    return keeps


def _over_tp_fault(task: Task, candidates: Candidates) -> Fault:
    tp, ep = value(candidates, "tp"), value(candidates, "ep")
    fits = [e for e in divisors(math.gcd(*_counts(task))) if e >= tp]
    what = f"{task.trainer.name} cannot run tp {tp} with ep {ep}: routed experts need ep ≥ tp."
    return Fault(
        "T01", what, (f"It can with ep {listed(closest(fits, tp, 4))}, or tp {ep} or less.",)
    )


EP_OVER_TP = Rule(
    name="ep-over-tp",
    family="trainer rules",
    sentence="torchtitan does not split routed experts over tp alone: ep is at least tp.",
    needs=frozenset({"tp", "ep"}),
    keeps=_over_tp,
    fault=_over_tp_fault,
    source="torchtitan #4794 (0.3.0 and later)",
)


def _moe_sp(task: Task, candidates: Candidates) -> BoolArray:
    if not is_moe(task):
        return every(candidates.sp)
    keeps: BoolArray = (candidates.tp == 1) | candidates.sp
    return keeps


def _moe_sp_fault(task: Task, candidates: Candidates) -> Fault:
    tp = value(candidates, "tp")
    what = f"{task.trainer.name} cannot train experts with tp {tp} without sequence parallelism."
    return Fault("T01", what, ("It can with sequence parallelism, or with tp 1.",))


MOE_SP = Rule(
    name="expert-sequence",
    family="trainer rules",
    sentence="Experts with tp > 1 need sequence parallelism.",
    needs=frozenset({"tp", "sp"}),
    keeps=_moe_sp,
    fault=_moe_sp_fault,
    source="Megatron-LM: MoE with TP needs sequence parallelism (its parser accepts it, training stops)",
)


def _instances(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    if not is_moe(task):
        return every(c.ep)
    instances = np.maximum(1, c.dp * c.cp // c.shard_group)
    replicas = _ranks(c) // (c.ep * c.etp)
    keeps: BoolArray = replicas % instances == 0
    return keeps


def _instances_fault(task: Task, candidates: Candidates) -> Fault:
    c = candidates
    data, edp = value(c, "dp") * value(c, "cp"), int(c.edp[0])
    fits = [data // n for n in divisors(math.gcd(data, max(edp, 1)))]
    what = (
        f"shard group {value(c, 'shard_group')} makes {data // value(c, 'shard_group')} copies of the "
        f"optimizer, which do not divide the {edp} replicas of an expert."
    )
    return Fault("E02", what, (f"Shard groups of {listed(sorted(fits))} do.",))


INSTANCES = Rule(
    name="expert-instances",
    family="experts",
    sentence="The copies of the sharded optimizer divide the replicas of an expert.",
    needs=frozenset({"dp", "cp", "tp", "ep", "etp", "shard_group"}),
    keeps=_instances,
    fault=_instances_fault,
    source="Megatron-LM parallel_state: expert_data_parallel_size % num_distributed_optimizer_instances == 0",
)

RULES = (EXPERTS_ONLY, EXPERTS, EXPERTS_WHOLE, EXPERT_MESH, EP_OVER_TP, MOE_SP, INSTANCES)
