"""Rules of the degrees: the mesh against the chips, axes that a trainer has, the order of axes."""

from __future__ import annotations

from functools import partial

import numpy as np

from planner.candidates import Candidates
from planner.errors import Fault, listed
from planner.graph.placement import AxisName
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import divisors, every, product, value
from planner.units import BoolArray


def _uses_chips(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    used = c.dp * c.cp * c.tp * c.pp
    keeps: BoolArray = np.isin(used, task.chips or (task.cluster.num_chips,))
    return keeps


def _chips_fault(task: Task, candidates: Candidates) -> Fault:
    chips = task.cluster.num_chips
    tp, cp, pp = (value(candidates, axis) for axis in ("tp", "cp", "pp"))
    shown = product(candidates)
    used = value(candidates, "dp") * tp * cp * pp
    what = f"{shown} = {used}, but the cluster has {chips} chips."
    inner = product(candidates, ("cp", "tp")) if tp * cp > 1 else ""
    with_inner = f"With {inner} and pp" if inner else "With pp"
    if chips % (tp * cp * pp) == 0:
        return Fault("D01", what, (f"{with_inner} {pp}, dp becomes {chips // (tp * cp * pp)}.",))
    none = f"no dp makes {chips} with {product(candidates, ('cp', 'tp', 'pp'))}"
    if chips % (tp * cp):
        near = [t for t in divisors(chips) if t <= max(tp * cp, 1)][-1]
        return Fault("D01", what, (f"{none[0].upper()}{none[1:]}; cp × tp can be {near}.",))
    stages = min(divisors(chips // (tp * cp)), key=lambda p: (abs(p - pp), -p))
    return Fault(
        "D01",
        what,
        (f"{with_inner} {stages}, dp becomes {chips // (tp * cp * stages)}; {none}.",),
    )


CHIPS = Rule(
    name="chips",
    family="chips",
    sentence="dp × cp × tp × pp is the number of chips.",
    needs=frozenset({"dp", "cp", "tp", "pp"}),
    keeps=_uses_chips,
    fault=_chips_fault,
    source="Megatron-LM 0.19.2, torchtitan 0.3.0, MindFormers 1.9.0: world size not divisible is refused",
)


def _axis_is_one(axis: AxisName, task: Task, candidates: Candidates) -> BoolArray:
    column = candidates.degree(axis)
    return every(column) if axis in task.trainer.axes else column == 1


def _axis_fault(axis: AxisName, task: Task, candidates: Candidates) -> Fault:
    name = task.trainer.name
    has = listed(sorted(task.trainer.axes), "and")
    return Fault(
        "T01",
        f"{name} cannot run {axis} {value(candidates, axis)}: it has no {axis}.",
        (f"It has {has}; with {axis} 1 it can.",),
    )


def _axis_rule(axis: AxisName) -> Rule:
    return Rule(
        name=f"has-{axis}",
        family="trainer rules",
        sentence=f"A trainer without {axis} runs {axis} 1.",
        needs=frozenset({axis}),
        keeps=partial(_axis_is_one, axis),
        fault=partial(_axis_fault, axis),
        source="the trainer's list of axes; DeepSpeed MoE has no pipeline (Megatron-DeepSpeed #151)",
    )


HAS_TP, HAS_PP, HAS_EP = (_axis_rule(axis) for axis in ("tp", "pp", "ep"))


def _known_order(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = candidates.order < len(task.trainer.orders)
    return keeps


def _order_fault(task: Task, candidates: Candidates) -> Fault:
    orders = ["-".join(order) for order in task.trainer.orders]
    return Fault(
        "T01",
        f"{task.trainer.name} has no axis order number {value(candidates, 'order')}.",
        (f"It can place axes in the order {listed(orders)} (innermost first).",),
    )


ORDER = Rule(
    name="order",
    family="trainer rules",
    sentence="The axes lie on the chips in an order that the trainer knows.",
    needs=frozenset({"order"}),
    keeps=_known_order,
    fault=_order_fault,
    source="the trainer's list of orders",
)


def _stages_inside(task: Task, candidates: Candidates) -> BoolArray:
    """Megatron's second view of the ranks must have the same data-parallel size where dp is outside pp.

    For a dense model Megatron takes etp = tp and ep = 1, so that cp must be 1.
    """
    c = candidates
    last = np.array([order[-1] == "pp" for order in task.trainer.orders])
    outside = last[np.minimum(c.order, len(last) - 1)]
    same = c.ep * c.etp == c.tp * c.cp if task.model.sizes("experts") else c.cp == 1
    keeps: BoolArray = outside | (c.pp == 1) | same
    return keeps


def _stages_inside_fault(task: Task, candidates: Candidates) -> Fault:
    order = "-".join(task.trainer.orders[value(candidates, "order")])
    if not task.model.sizes("experts"):
        return Fault(
            "T01",
            f"{task.trainer.name} cannot run order {order} with cp {value(candidates, 'cp')}.",
            ("With pp inside dp, cp must be 1. Drop the order, or cp.",),
        )
    tp, cp = value(candidates, "tp"), value(candidates, "cp")
    ep, etp = value(candidates, "ep"), value(candidates, "etp")
    return Fault(
        "T01",
        f"{task.trainer.name} cannot run order {order} with ep {ep} × etp {etp} and tp {tp} × cp {cp}.",
        (
            f"With pp inside dp, ep × etp must be tp × cp = {tp * cp}. Drop the order, or use ep {tp * cp}, etp 1.",
        ),
    )


STAGES_INSIDE = Rule(
    name="stages-inside-data",
    family="trainer rules",
    sentence="Where pipeline stages lie inside data parallelism, experts have as many replicas as the rest.",
    needs=frozenset({"tp", "cp", "pp", "ep", "etp", "order"}),
    keeps=_stages_inside,
    fault=_stages_inside_fault,
    source="Megatron-LM megatron/core/parallel_state.py, 'When not using pp-last rank ordering'",
)


def _whole_servers(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    used = c.dp * c.cp * c.tp * c.pp
    keeps: BoolArray = np.isin(used, (1, 2, 4)) | (used % 8 == 0)
    return keeps


def _servers_fault(task: Task, candidates: Candidates) -> Fault:
    used = int(candidates.ranks[0])
    near = [1, 2, 4] if used < 8 else [used // 8 * 8, used // 8 * 8 + 8]
    return Fault(
        "D01",
        f"{task.trainer.name} cannot run on {used} chips ({product(candidates)}).",
        (f"It takes 1, 2, 4 or a multiple of 8; nearest {listed(near)}.",),
    )


WHOLE_SERVERS = Rule(
    name="whole-servers",
    family="chips",
    sentence="MindSpore takes 1, 2, 4 or a multiple of 8 chips.",
    needs=frozenset({"dp", "cp", "tp", "pp"}),
    keeps=_whole_servers,
    fault=_servers_fault,
    source="observed with MindSpore 2.10: device_num 6, 7 and 12 are refused, 24 and 4096 accepted",
)


def _power_of_two(axis: AxisName, task: Task, candidates: Candidates) -> BoolArray:
    column = candidates.degree(axis)
    keeps: BoolArray = (column & (column - 1)) == 0
    return keeps


def _power_fault(axis: AxisName, task: Task, candidates: Candidates) -> Fault:
    degree = value(candidates, axis)
    low = 1 << (degree.bit_length() - 1)
    return Fault(
        "T01",
        f"{task.trainer.name} cannot run {axis} {degree}: it must be a power of two.",
        (f"Nearest: {axis} {low} or {2 * low}.",),
    )


def _power_rule(axis: AxisName) -> Rule:
    return Rule(
        name=f"power-of-two-{axis}",
        family="trainer rules",
        sentence=f"MindSpore splits by powers of two, so {axis} is one.",
        needs=frozenset({axis}),
        keeps=partial(_power_of_two, axis),
        fault=partial(_power_fault, axis),
        source="observed with MindSpore 2.10: a split of 3 or 5 on 8 devices 'must be the power of 2', "
        "and groups that are not uniform over servers of 8 are refused on 24",
    )


POWER_TP, POWER_CP = _power_rule("tp"), _power_rule("cp")

RULES = (
    CHIPS,
    HAS_TP,
    HAS_PP,
    HAS_EP,
    ORDER,
    STAGES_INSIDE,
    WHOLE_SERVERS,
    POWER_TP,
    POWER_CP,
)
