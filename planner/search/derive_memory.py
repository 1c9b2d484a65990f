"""The memory of the fullest chip taken apart, kind by kind."""

from __future__ import annotations

from planner.cost.memory import TERMS, at_head, of_tables
from planner.cost.prices import leaving
from planner.plan.derivation import Derivation, Quantity, named
from planner.search.breakdown import Breakdown, memory_terms
from planner.search.trust import memory_upper

STATES = {
    "weights": "Weights of the stage's layers, as they are stored and as they stay gathered.",
    "gradients": "Gradients of the stage's layers.",
    "optimizer": "Master copy and moments of the stage's layers.",
}
SHARDED = "sharded as the plan says"


def memory_derivations(b: Breakdown) -> dict[str, Derivation]:
    """Derivations of ``memory`` and of each of its kinds, for the fullest stage."""
    terms = {t.name: t for t in memory_terms(b, b.fullest)}
    made = {f"memory.{kind}": found for kind, found in (_states(b) | _moving(b)).items()}
    kept = {name: made[name] for name in terms if name in made}
    parts = {
        name.removeprefix("memory."): _bytes(term.value, term.label) for name, term in terms.items()
    }
    total = float(b.memory.total[0, b.fullest])
    kept["memory"] = Derivation(
        meaning=f"The fullest chip, on stage {b.fullest}, {_moment(b)}: the median of what runs need.",
        formula=" + ".join(parts),
        inputs=named(parts),
        value=total,
        unit="B",
    )
    most = memory_upper(b.prices.task, total)
    kept["memory-upper"] = Derivation(
        meaning="What nine of ten runs stay under; a plan fits when this does.",
        formula="memory * spread",
        inputs=named(
            {
                "memory": _bytes(total, "the median"),
                "spread": _count(most / total, "upper quantile of measured over predicted memory"),
            }
        ),
        value=most,
        unit="B",
    )
    return kept | _host(b)


def _moment(b: Breakdown) -> str:
    """Where memory binds: what is there at no other moment says it."""
    there = dict(zip(TERMS, b.memory.parts[0, b.fullest], strict=True))
    if there["logits"] > 0:
        return "at the loss"
    return "while a layer runs backwards" if there["working"] > 0 else "while the optimizer steps"


def _host(b: Breakdown) -> dict[str, Derivation]:
    """Host memory of the chip that needs most of it, where a plan keeps something there."""
    needed = b.memory.host[0]
    if not needed.any():
        return {}
    stage = int(needed.argmax())
    p = b.prices.at(stage)
    table = p.table
    held = b.times.blocks[stage].sum(axis=0)
    dense, expert = (float(part[0] @ held) for part in (p.dense, table.expert[p.key]))
    host = p.each(p.states.host)[:, 0]
    inputs = {
        "parameters": _count(dense, f"of stage {stage} on this chip"),
        "bytes_each": _bytes(float(host[0]), "states in host memory, sharded"),
        "expert_parameters": _count(expert, "of experts"),
        "expert_bytes_each": _bytes(float(host[1]), "the same of experts"),
        "in_flight": _count(float(b.memory.in_flight[0, stage]), "micro-batches in flight"),
        "micro_batch": _bytes(float(leaving(p)[0] @ held), "activations that leave the chip"),
    }
    formula = (
        "parameters * bytes_each + expert_parameters * expert_bytes_each + in_flight * micro_batch"
    )
    frozen = sum(
        float(p.each(p.states.frozen_host)[kind, 0] * (p.frozen[kind, 0] @ held)) for kind in (0, 1)
    )
    if frozen:
        formula += " + frozen"
        inputs["frozen"] = _bytes(frozen, "weights that do not train, sharded")
    found = Derivation(
        meaning=f"Host memory for a chip of stage {stage}.",
        formula=formula,
        inputs=named(inputs),
        value=float(needed[stage]),
        unit="B",
        source=p.task.trainer.offload.source,
    )
    return {"host": found}


def _states(b: Breakdown) -> dict[str, Derivation]:
    """Weights, gradients, optimizer: parameters on the chip times bytes for each."""
    p = b.prices.at(b.fullest)
    table = p.table
    held = b.times.blocks[b.fullest].sum(axis=0)
    dense, expert = (float(part[0] @ held) for part in (p.dense, table.expert[p.key]))
    found = {}
    for kind, meaning in STATES.items():
        each = p.each(getattr(p.states, kind))
        each = each + (p.each(p.states.gathered) if kind == "weights" else 0.0)
        inputs = {
            "parameters": _count(dense, "of the stage on this chip, split over tp"),
            "bytes_each": _bytes(float(each[0, 0]), SHARDED),
        }
        formula = "parameters * bytes_each"
        if expert:
            formula += " + expert_parameters * expert_bytes_each"
            inputs["expert_parameters"] = _count(expert, "of experts, split over ep and etp")
            inputs["expert_bytes_each"] = _bytes(float(each[1, 0]), SHARDED)
        if kind == "optimizer" and (more := float(of_tables(p, held[None, None])[0, 0])):
            formula += " + tables"
            inputs["tables"] = _bytes(
                more, "more for embedding and head, which have AdamW's moments"
            )
        if (
            kind == "weights"
            and (still := float(b.memory.parts[0, b.fullest, 0]) - _made(inputs)) > 1
        ):
            formula += " + frozen"
            inputs["frozen"] = _bytes(still, "weights that do not train, as they are stored")
        found[kind] = _derivation(b, kind, meaning, formula, inputs)
    return found


def _made(inputs: dict[str, Quantity]) -> float:
    """Bytes of the weights that train."""
    value = {name: quantity.value for name, quantity in inputs.items()}
    experts = value.get("expert_parameters", 0.0) * value.get("expert_bytes_each", 0.0)
    return value["parameters"] * value["bytes_each"] + experts


def _moving(b: Breakdown) -> dict[str, Derivation]:
    """What comes and goes within a step."""
    flying = float(b.memory.in_flight[0, b.fullest])
    memory, count = b.prices.task.trainer.memory, float(b.prices.table.logits[b.prices.key[0]])
    each = memory.logit_bytes + memory.logit_whole_bytes * float(b.prices.rows.tp[0])
    part = {kind: float(b.memory.parts[0, b.fullest, i]) for i, kind in enumerate(TERMS)}
    whole = _bytes(
        part["buffers"], "gathered weights, what stands for gradients, workspaces, slack"
    )
    made = {
        "activations": (
            "What the forward pass keeps for the backward pass.",
            "in_flight * micro_batch",
            {
                "in_flight": _count(flying, "micro-batches whose activations the stage holds"),
                "micro_batch": _bytes(
                    part["activations"] / flying if flying else 0.0,
                    "kept of one micro-batch, the head's shared among all",
                ),
            },
        ),
        "working": (
            "What is alive beside them while one layer runs.",
            "layer",
            {"layer": _bytes(part["working"], "gradients, copies of routed tokens, what recompute brings back")},
        ),
        "logits": (
            "Logits at the loss, in every copy that the trainer keeps.",
            "logits * bytes_each + input",
            {
                "logits": _count(count, "of one micro-batch on this chip"),
                "bytes_each": _bytes(each, "all copies; those of the whole vocabulary count tp times"),
                "input": _bytes(float(at_head(b.prices)[0, 0]), "the head's gathered input and its gradient"),
            },
        ),
        "buffers": ("Buffers and the allocator's slack.", "slack", {"slack": whole}),
        "runtime": (
            "Context of the device, communication buffers.",
            "runtime",
            {"runtime": _bytes(memory.runtime_bytes, f"on every chip under {b.prices.task.trainer.name}")},
        ),
    }  # fmt: skip
    return {kind: _derivation(b, kind, *words) for kind, words in made.items()}


def _derivation(
    b: Breakdown, kind: str, meaning: str, formula: str, inputs: dict[str, Quantity]
) -> Derivation:
    value = float(b.memory.parts[0, b.fullest, TERMS.index(kind)])
    source = b.prices.task.trainer.memory.source
    return Derivation(
        meaning=meaning, formula=formula, inputs=named(inputs), value=value, unit="B", source=source
    )


def _bytes(value: float, meaning: str) -> Quantity:
    return Quantity(value=value, unit="B", meaning=meaning)


def _count(value: float, meaning: str) -> Quantity:
    return Quantity(value=value, meaning=meaning)
