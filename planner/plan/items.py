"""Everything in a plan that can be asked for, by its id.

Ids are what pages print: ``#2``, ``rule:kv-heads``, ``step.gradients``, ``memory.weights``, ``mfu``, ``stage.3``,
``dense`` for the layers of a kind, ``dense.mlp.up`` for one of their operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from planner.errors import PlannerError, listed, nearest
from planner.plan.derivation import Derivation, Unit
from planner.plan.facts import Fact, Facts, facts
from planner.plan.removed import everything_removed
from planner.plan.schema import OWN, Alternative, BlockPlan, OperatorPlan, Plan, Removed, Stage
from planner.plan.tree import Node, plan_tree

ABSENT = {
    "step.recompute": "Nothing is computed a second time.",
    "step.tp": "No axis splits products: there are no tensor-parallel collectives.",
    "step.cp": "No axis splits sequences: keys and values are not exchanged.",
    "step.ep": "No axis divides experts: no tokens travel to them.",
    "step.weights": "Weights are not sharded over data ranks: none are gathered layer by layer.",
    "step.gradients": "One rank has all sequences: gradients are not reduced.",
    "step.offload": "Nothing is kept in host memory.",
    "step.bubble": "There is no pipeline: no stage waits for another.",
    "step.sends": "There is no pipeline: nothing is sent between stages.",
    "step.jitter": "There is no pipeline: no stages wait for one another in turn.",
    "host": "Nothing is kept in host memory.",
} | {
    f"memory.{kind}": "The fullest chip needs none."
    for kind in ("gradients", "optimizer", "activations", "working", "logits", "buffers", "runtime")
}
"""Numbers that a plan may lack, and why they are 0 then."""
ALSO = {
    "step.dp": "step.gradients",
    "step.pp": "step.sends",
    "step.optimizer": "step.other",
    "step.memory": "memory",
    "tokens/s": "tokens",
    "tokens_per_second": "tokens",
    "tokens/s/chip": "tokens-per-chip",
    "tokens_per_second_per_chip": "tokens-per-chip",
    "MFU": "mfu",
    "cost": "price",
    "price_per_million_tokens": "price",
    "memory_upper": "memory-upper",
    "host_memory": "host",
    "gap": "proof.gap",
    "hint": "hints",
    "assumed": "assumptions",
    "pinned": "pins",
}
"""Other words for ids."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its derivation."""

    id: str
    how: Derivation


@dataclass(frozen=True, slots=True)
class Row:
    """One of the alternatives."""

    id: str
    row: Alternative


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, or the memory limit, with what it removed."""

    id: str
    removed: Removed


@dataclass(frozen=True, slots=True)
class OneStage:
    """A pipeline stage."""

    id: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one kind."""

    id: str
    block: BlockPlan


@dataclass(frozen=True, slots=True)
class OneOperator:
    """An operator of a layer."""

    id: str
    block: BlockPlan
    operator: OperatorPlan


Item: TypeAlias = Number | Row | Rule | OneStage | Layers | OneOperator | Facts


def items(plan: Plan) -> dict[str, Item]:
    """Everything that can be asked for, by id."""
    rules = everything_removed(plan)
    found: list[Item] = [Number(name, how) for name, how in plan.derivations.items()]
    found += [Row(f"#{row.rank}" if row.rank else OWN, row) for row in plan.alternatives]
    found += [Rule(f"rule:{rule.rule}", rule) for rule in rules]
    found += [OneStage(f"stage.{stage.index}", stage) for stage in plan.stages]
    found += [Layers(block.name, block) for block in plan.blocks]
    found += [
        OneOperator(f"{block.name}.{op.name}", block, op)
        for block in plan.blocks
        for op in block.operators
    ]
    found += [Number(node.id, _rest(node)) for node in plan_tree(plan).walk()]
    known: dict[str, Item] = {}
    for item in found:
        known.setdefault(item.id, item)
    return known


def _rest(node: Node) -> Derivation:
    """A node of the tree that has no formula of its own."""
    what = f"{node.label}, of all micro-batches: what no operator shown beside it takes."
    return Derivation(meaning=what, formula="0", inputs=(), value=node.seconds, unit="s")


def _pin(plan: Plan, asked: str) -> Facts | None:
    """The prices of the pins with this text or key, or the pins where none was searched for."""
    priced = [price.pin for price in plan.pin_prices]
    where, texts = ("pin_prices", priced) if priced else ("pins", list(plan.pins))
    places = [
        f"{where}.{index}"
        for index, text in enumerate(texts)
        if asked in (text, re.split("[<>=]", text)[0].strip())
    ]
    found = [part for place in places if (part := facts(plan, place)) is not None]
    return (
        Facts(", ".join(places), tuple(row for part in found for row in part.rows))
        if found
        else None
    )


def find_item(plan: Plan, asked: str) -> Item:
    """The item of an id, or of other words for it.

    The label of a part (``dp gradients``), a rule without its prefix, the place of a value in the plan's file
    (``proof.gap``, ``stages.0.forward``) and a pin, with its value or without, do as well.

    Raises:
        PlannerError: nothing in the plan has the id (I01); the nearest ids are given.
    """
    known = items(plan)
    word = " ".join(asked.strip().split())
    labels = {term.label: term.name for term in plan.time}
    operators = [name for name, item in known.items() if isinstance(item, OneOperator)]
    short = {name.partition(".")[2]: name for name in reversed(operators)}
    number = f"#{word}" if word.isdigit() else ""
    for name in (
        word,
        ALSO.get(word, ""),
        labels.get(word, ""),
        f"rule:{word.removeprefix('rule').strip(' :')}",
        short.get(word, ""),
        number,
    ):
        if name in known:
            return known[name]
        if name in ABSENT:
            unit: Unit = "s" if name.startswith("step.") else "B"
            how = Derivation(meaning=ABSENT[name], formula="0", inputs=(), value=0.0, unit=unit)
            return Number(name, how)
    if of_family := [rule for rule in everything_removed(plan) if rule.family == word]:
        counts = (Fact(f"rule:{r.rule}", r.count, "", r.sentence) for r in of_family)
        whole = sum(rule.count for rule in of_family)
        return Facts(word, (*counts, Fact(word, whole, "", "Layouts that these rules removed.")))
    if (found := facts(plan, ALSO.get(word, word))) is not None:
        return found
    if (found := _pin(plan, word)) is not None:
        return found
    if word.startswith(("rule:", "rule ")):
        name = word[5:].strip()
        raise PlannerError.of(
            "I01",
            f"rule '{name}' removed nothing, or there is no such rule.",
            f"Rules that removed layouts: {listed([n[5:] for n in known if n.startswith('rule:')], 'and') or 'none'}.",
        )
    if word.startswith("#"):
        rows = [name for name in known if name.startswith("#")]
        kept = f"It keeps {rows[0]} to {rows[-1]}." if rows else "It was priced, not searched for."
        raise PlannerError.of("I01", f"the plan has no row {word}.", f"{kept} More: plan --top N")
    close = listed(nearest(word, [*known, *ALSO]))
    raise PlannerError.of(
        "I01",
        f"nothing in the plan is called '{asked}'. Nearest: {close}.",
        "Ids: #2, rule:NAME, step, memory, mfu, stage.0, the names in the tree, numbers of the hardware as "
        "node.bandwidth, and places in the file as proof.gap.",
    )
