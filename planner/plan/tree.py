"""A plan as a tree: the step of its busiest stage, divided into layers, operators and what the step takes besides.

The children of every node sum to it. Equal layers are one node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.plan.schema import BlockPlan, OperatorPlan, Plan, Stage, Term

BY_LAYERS = tuple(f"step.{part}" for part in ("compute", "recompute", "tp", "cp", "ep", "weights"))
"""Parts of the step that the nodes of layers share out among them."""
MIXED = "mixed"
"""Recompute where layers differ: they are shown without, and what some of them do again beside them."""
PARTLY = "step.offload"
"""The part of which layers have some: copies of activations that compute does not hide, not the optimizer's."""
ENDS = ("embedding", "head", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of the step."""

    id: str
    """What ``explain`` accepts."""
    label: str
    seconds: float
    """On the critical path, all micro-batches and layers together."""
    hidden: float = 0.0
    """Seconds that run behind other work."""
    count: int = 1
    """Equal layers that it stands for."""
    where: str = ""
    """The layers, folded."""
    operator: OperatorPlan | None = None
    children: tuple[Node, ...] = ()

    @property
    def has_time(self) -> bool:
        """Whether a measured time of its id is its own: parts of an operator have the operator's id."""
        return self.operator is not None or self.id == "step"

    def walk(self) -> Iterator[Node]:
        """The node and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def as_data(node: Node, measured: Mapping[str, float] | None = None) -> dict[str, object]:
    """The tree as plain data; operators are told by their ids.

    Args:
        node: its root.
        measured: seconds by ids, which stand at the nodes that they belong to.
    """
    own = (measured or {}).get(node.id) if node.has_time else None
    return {
        "id": node.id,
        "label": node.label,
        "seconds": node.seconds,
        **({} if own is None else {"measured": own}),
        "hidden": node.hidden,
        "count": node.count,
        "layers": node.where,
        "children": [as_data(child, measured) for child in node.children],
    }


SENT = tuple(f"step.{part}" for part in ("tp", "cp", "ep", "weights", "gradients", "sends"))
WAITED = ("step.bubble", "step.jitter")


def by_activity(plan: Plan) -> dict[str, float]:
    """The step as a profiler sees a rank: ``compute``, ``exposed`` and ``hidden`` sends, ``idle``; seconds.

    Of compute the kernels of ``products`` and ``attention``, and all ``others``.
    """
    sent = [term for term in plan.time if term.name in SENT]
    exposed = sum(term.value for term in sent)
    idle = sum(term.value for term in plan.time if term.name in WAITED)
    compute = plan.step - exposed - idle
    products, attention = (_of_kind(plan, kind) for kind in ("matmul", "attention"))
    return {
        "step": plan.step,
        "compute": compute,
        "products": products,
        "attention": attention,
        "others": compute - products - attention,
        "exposed": exposed,
        "hidden": sum(term.hidden for term in sent),
        "idle": idle,
    }


def _of_kind(plan: Plan, kind: str) -> float:
    """Seconds that the busiest stage computes in operators of a kind."""
    stage, m = busiest_stage(plan), plan.degrees.num_micro_batches
    return sum(
        m * layers_held(plan, stage, block) * operator_compute(plan, op)
        for block in plan.blocks
        for op in block.operators
        if op.kind == kind
    )


def busiest_stage(plan: Plan) -> Stage:
    """The stage that works longest for one micro-batch; the first of equals."""
    return max(plan.stages, key=lambda stage: stage.forward + stage.backward)


def plan_tree(plan: Plan, stage: Stage | None = None) -> Node:
    """The step as one stage spends it, the busiest unless another is named.

    Of another stage than the busiest, what it waits for that one is its bubble too.
    """
    busy = busiest_stage(plan)
    stage = stage or busy
    m = plan.degrees.num_micro_batches
    layers = [
        _layers(plan, block, count)
        for block in plan.blocks
        if (count := layers_held(plan, stage, block))
    ]
    layers.sort(key=lambda node: -node.seconds)
    unlike = m * (stage.forward + stage.backward) - sum(node.seconds for node in layers)
    if abs(unlike) > 1e-9 * plan.step:
        label = (
            "recompute of some layers" if plan.degrees.recompute == MIXED else "chips unlike these"
        )
        layers.append(Node(id="step.recompute", label=label, seconds=unlike))
    waits = m * (busy.forward + busy.backward - stage.forward - stage.backward)
    others = [
        Node(id=term.name, label=term.label, seconds=seconds, hidden=term.hidden)
        for term in plan.time
        if term.name not in BY_LAYERS
        and (
            (seconds := term.value - _in_layers(plan, term, busy)) > 1e-9 * plan.step or term.hidden
        )
    ]
    if waits > 1e-9 * plan.step:
        others = _longer(others, "step.bubble", "pipeline bubble", waits)
    return Node(
        id="step",
        label=f"step, stage {stage.index}",
        seconds=plan.step,
        children=(*layers, *others),
    )


def _in_layers(plan: Plan, term: Term, busy: Stage) -> float:
    """Seconds of a part of the step that the nodes of layers have among theirs."""
    if term.name != PARTLY:
        return 0.0
    work = plan.degrees.num_micro_batches * (busy.forward + busy.backward)
    return work - sum(other.value for other in plan.time if other.name in BY_LAYERS)


def _longer(nodes: list[Node], name: str, label: str, seconds: float) -> list[Node]:
    """Nodes of which one takes longer; it is made if it is not there."""
    if all(node.id != name for node in nodes):
        return [*nodes, Node(id=name, label=label, seconds=seconds)]
    return [
        replace(node, seconds=node.seconds + seconds) if node.id == name else node for node in nodes
    ]


def _layers(plan: Plan, block: BlockPlan, count: int) -> Node:
    """All layers of one kind on a stage, with their operators and what exceeds them."""
    times = count * plan.degrees.num_micro_batches
    total = times * (block.forward + block.backward)
    operators = tuple(_operator(block, op, times, plan) for op in block.operators)
    rest = total - sum(node.seconds for node in operators)
    if abs(rest) > 1e-9 * plan.step:
        name, label = f"{block.name}.rest", "launches, gathers, repeated collectives"
        operators = (*operators, Node(id=name, label=label, seconds=rest))
    return Node(
        id=block.name,
        label=block.name,
        seconds=total,
        count=count,
        where=block.layers,
        children=operators,
    )


def _operator(block: BlockPlan, op: OperatorPlan, times: int, plan: Plan) -> Node:
    """An operator with the exposed part of its collectives, which are its children beside its compute."""
    name = f"{block.name}.{op.name}"
    compute = operator_compute(plan, op)
    node = Node(
        id=name,
        label=op.name,
        seconds=times * (compute + sum(c.exposed for c in op.collectives)),
        hidden=times * sum(c.seconds - c.exposed for c in op.collectives),
        operator=op,
    )
    if not op.collectives:
        return node
    parts = [Node(id=name, label="compute", seconds=times * compute)]
    parts += [
        Node(
            id=name,
            label=f"{c.kind} of {c.tensor} over {c.axis}, {c.phase}",
            seconds=times * c.exposed,
            hidden=times * (c.seconds - c.exposed),
        )
        for c in op.collectives
    ]
    return replace(node, children=tuple(parts))


def operator_compute(plan: Plan, op: OperatorPlan) -> float:
    """Seconds that an operator computes for one micro-batch: forwards, backwards, and again if all layers do so."""
    again = op.recomputed and plan.degrees.recompute != MIXED
    return op.forward * (1 + again) + op.backward


def layers_held(plan: Plan, stage: Stage, block: BlockPlan) -> int:
    """How many of a block's layers stand on a stage."""
    if block.layers in ENDS:
        there = stage.embedding if block.layers == "embedding" else stage.head
        return block.count if there else 0
    mine = {n for part in stage.layers for n in numbers(part)}
    return len(mine.intersection(numbers(block.layers)))


def numbers(folded: str) -> list[int]:
    """Layers as numbers.

    >>> numbers("0-2, 5")
    [0, 1, 2, 5]
    """
    ends = [part.split("-") for part in folded.split(", ") if part]
    return [n for first, *rest in ends for n in range(int(first), int((rest or [first])[0]) + 1)]


def alike(plan: Plan) -> dict[tuple[tuple[str, int], ...], list[Stage]]:
    """Stages by what stands on them: how many layers of each block."""
    found: dict[tuple[tuple[str, int], ...], list[Stage]] = {}
    for stage in plan.stages:
        held = ((block.name, layers_held(plan, stage, block)) for block in plan.blocks)
        found.setdefault(tuple(pair for pair in held if pair[1]), []).append(stage)
    return found
