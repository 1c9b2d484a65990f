"""What differs between two plans, and what the differences cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from planner.plan.part import Part
from planner.plan.schema import Plan, Stage, Term
from planner.plan.tree import Node, plan_tree


class Change(Part):
    """Something that is said differently."""

    key: str
    before: str
    after: str


class Pair(Part):
    """One number in both plans; 0 where a plan has no such part."""

    id: str
    label: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before


class Difference(Part):
    """Two plans beside one another."""

    before: str
    """Name of the first."""
    after: str
    inputs: tuple[Change, ...]
    """Model, cluster, recipe, trainer, pins."""
    layout: tuple[Change, ...]
    step: Pair
    """Seconds."""
    rate: Pair
    """Tokens a second."""
    price: Pair | None
    """Dollars for a million tokens; None where a plan has no price."""
    memory: Pair
    """Bytes on the fullest chip, the median."""
    time: tuple[Pair, ...]
    """Parts of the step, seconds."""
    kinds: tuple[Pair, ...]
    """Memory of the fullest chip by kind, bytes."""
    operators: tuple[Pair, ...]
    """Layers and operators of the busiest stage, seconds of the step."""

    @property
    def same(self) -> bool:
        """Nothing that is compared differs."""
        totals = [self.step, self.rate, self.memory, *([self.price] if self.price else [])]
        parts = [*totals, *self.time, *self.kinds, *self.operators]
        return not (self.inputs or self.layout or any(pair.change for pair in parts))


def diff(before: Plan, after: Plan, names: tuple[str, str] = ("before", "after")) -> Difference:
    """What differs; equal parts of inputs and layout are left out, equal numbers are not."""
    priced = before.price_per_million_tokens is not None
    priced = priced and after.price_per_million_tokens is not None
    price = _pair("price", "$ per million tokens", before.price_per_million_tokens or 0.0,
                  after.price_per_million_tokens or 0.0)  # fmt: skip
    return Difference(
        before=names[0],
        after=names[1],
        inputs=tuple(_changes(_inputs(before), _inputs(after))),
        layout=tuple(_changes(_layout(before), _layout(after))),
        step=_pair("step", "step", before.step, after.step),
        rate=_pair("tokens", "tokens/s", before.tokens_per_second, after.tokens_per_second),
        price=price if priced else None,
        memory=_pair("memory", "fullest chip", before.memory, after.memory),
        time=_terms(before.time, after.time),
        kinds=_terms(_fullest(before).memory, _fullest(after).memory),
        operators=tuple(_nodes(plan_tree(before), plan_tree(after))),
    )


def _inputs(plan: Plan) -> dict[str, str]:
    recipe, cluster = plan.recipe, plan.cluster
    levels = {
        f"{level.name} bandwidth": f"{level.bandwidth / 1e9:g} GB/s" for level in cluster.levels
    }
    return {
        "model": plan.model.name,
        "parameters": f"{plan.model.num_params:,}",
        "chips": f"{cluster.num_chips:,} × {cluster.chip}",
        **levels,
        "price": "not known" if cluster.price is None else f"${cluster.price:g} a chip-hour",
        "memory limit": f"{plan.memory_limit / 2**30:.1f} GiB",
        "trainer": f"{plan.trainer} {plan.trainer_release}",
        "global batch": f"{recipe.global_batch:,}",
        "seq": f"{recipe.seq:,}",
        "precision": recipe.precision,
        "optimizer": recipe.optimizer,
        "pins": ", ".join(plan.asked.pins) or "none",
        "made by": plan.made_by,
    }


def _layout(plan: Plan) -> dict[str, str]:
    degrees = plan.degrees.model_dump()
    words = {name: name.replace("_", " ") for name in degrees}
    return {words[name]: _said(value) for name, value in degrees.items()}


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return folded(value) if isinstance(value, tuple) else str(value)


def folded(values: tuple[object, ...]) -> str:
    """Values in their order, equal neighbours counted.

    >>> folded((3, 2, 2, 2, 1)), folded(("tp", "dp", "pp")), folded(())
    ('3, 3 × 2, 1', 'tp, dp, pp', 'even')
    """
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return ", ".join(f"{n} × {value}" if n > 1 else str(value) for value, n in runs) or "even"


def _changes(before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key, "–"), after.get(key, "–")
        if old != new:
            yield Change(key=key, before=old, after=new)


def _fullest(plan: Plan) -> Stage:
    return next(stage for stage in plan.stages if stage.index == plan.memory_stage)


def _terms(before: Iterable[Term], after: Iterable[Term]) -> tuple[Pair, ...]:
    old, new = ({term.name: term for term in terms} for terms in (before, after))
    return tuple(
        _pair(
            name,
            (new.get(name) or old[name]).label,
            old[name].value if name in old else 0.0,
            new[name].value if name in new else 0.0,
        )
        for name in dict.fromkeys([*old, *new])
    )


def _nodes(before: Node, after: Node) -> Iterator[Pair]:
    """Layers and their operators, in the order of the second plan."""
    old, new = _layers(before), _layers(after)
    for name in dict.fromkeys([*new, *old]):
        a, b = old.get(name), new.get(name)
        label = (b or old[name]).label
        yield _pair(name, label, a.seconds if a else 0.0, b.seconds if b else 0.0)


def _layers(tree: Node) -> dict[str, Node]:
    kinds = [child for child in tree.children if child.children]
    return {node.id: node for kind in kinds for node in (kind, *kind.children)}


def _pair(name: str, label: str, before: float, after: float) -> Pair:
    return Pair(id=name, label=label, before=before, after=after)
