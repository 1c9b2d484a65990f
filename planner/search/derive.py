"""Every number of a plan taken apart: the formula of the cost model with what was put in.

Formulas stand here a second time, in the words that people read; a test evaluates each of them with its inputs and
compares the result with what the cost model said.
"""

from __future__ import annotations

from typing import TypeAlias

from planner.cost.block import FAMILIES
from planner.cost.prices import state_seconds
from planner.hardware.chip import Chip
from planner.plan.derivation import Derivation, Quantity, Unit, named
from planner.search.breakdown import Breakdown, adding_seconds, exposed_copies
from planner.search.derive_memory import memory_derivations

Derivations: TypeAlias = "dict[str, Derivation]"
FAMILY_WORDS = {
    "tp": "Collectives of tensor parallelism on the busiest stage",
    "cp": "Exchange of keys and values on the busiest stage",
    "ep": "All-to-alls of experts on the busiest stage",
}


def derivations(b: Breakdown) -> Derivations:
    """All derivations of one candidate, by the ids of its numbers."""
    parts = {term.name.removeprefix("step."): _seconds(term.value, term.label) for term in b.terms}
    step = Derivation(
        meaning="One step, from the first micro-batch to the updated weights: the sum of its parts.",
        formula=" + ".join(parts),
        inputs=named(parts),
        value=b.step,
        unit="s",
    )
    return (
        {"step": step}
        | _per_micro_batch(b)
        | _once(b)
        | _schedule(b)
        | memory_derivations(b)
        | _whole(b)
    )


def _per_micro_batch(b: Breakdown) -> Derivations:
    """Parts of the step that the busiest stage repeats for every micro-batch."""
    p, table = b.prices, b.prices.table
    m, key, mode = _count(float(p.micro_batches[0]), "micro-batches"), p.key[0], p.rows.recompute[0]
    counts = b.times.blocks[b.busiest].sum(axis=0)
    forward, backward = (float(counts @ part[key]) for part in (table.forward, table.backward))
    backward += adding_seconds(p, counts)
    there = {f: float(table.exposed[i, 0, key] @ counts) for i, f in enumerate(FAMILIES)}
    back = {f: float(table.exposed[i, 1, key] @ counts) for i, f in enumerate(FAMILIES)}
    again = float(counts @ table.recompute[mode, key])
    found = _derived(
        b,
        "compute",
        "Operators of the busiest stage, one micro-batch after another.",
        "micro_batches * (forward + backward)",
        micro_batches=m,
        forward=_seconds(forward, "all its layers forwards"),
        backward=_seconds(backward, "all its layers backwards, recompute not included"),
    )
    found |= _derived(
        b,
        "recompute",
        "What the busiest stage computes a second time for the backward pass.",
        "micro_batches * again",
        micro_batches=m,
        again=_seconds(again, "all its layers again, repeated collectives included"),
    )
    for family in FAMILIES:
        found |= _derived(
            b,
            family,
            FAMILY_WORDS[family] + ": what compute does not hide.",
            "micro_batches * (forward + backward)",
            micro_batches=m,
            forward=_seconds(there[family], "exposed forwards"),
            backward=_seconds(back[family], "exposed backwards"),
        )
    gather, scatter = (float(counts @ seconds[0]) for seconds in state_seconds(p))
    exposed = b.seconds("step.weights") or 0.0
    return found | _derived(
        b,
        "weights",
        "Gathering sharded weights and scattering their gradients, layer by layer: the exposed share, or what "
        f"exceeds a layer's own compute, of {gather + scatter:.3g} s in all.",
        "micro_batches * exposed",
        micro_batches=m,
        exposed=_seconds(exposed / m.value, "of all its layers, not hidden behind them"),
    )


def _once(b: Breakdown) -> Derivations:
    """Parts of the step that occur once."""
    times, trainer, last = b.times, b.prices.task.trainer, b.last
    once = float((times.exposed_states + times.hidden_states)[0, last])
    room = float((times.forward + times.backward)[0, last].sum())
    update = 0.0 if b.host_update else float(times.update[0, last])
    traffic = _derived(
        b,
        "gradients",
        "Reducing gradients and gathering updated weights once a step: the trainer's exposed share, or what one "
        "micro-batch is too short to hide, and then those of a table that the first and the last stage have.",
        "max(exposed_share * traffic, traffic - room) + tables",
        source=trainer.overlap.source,
        exposed_share=_count(trainer.overlap.gradients, f"of {trainer.name}"),
        traffic=_seconds(once, f"all of it, on stage {last}"),
        room=_seconds(room, "one micro-batch of that stage"),
        tables=_seconds(
            float(b.prices.sends.ends[0]),
            "an all-reduce between both ends; 0 where they share no table",
        ),
    )
    other = _derived(
        b,
        "other",
        "The optimizer's pass over its states, and what every step takes besides.",
        "update + overhead",
        source=trainer.overhead.source,
        update=_seconds(update, "states read and written once; 0 where the host does it"),
        overhead=_seconds(trainer.overhead.step, "data, logging, gradient norm, launches"),
    )
    counts = times.blocks[b.busiest].sum(axis=0)
    offload = _derived(
        b,
        "offload",
        "What host memory costs: activations on their way there and back, as far as a layer does not hide it, and the "
        "optimizer on the host, which copies of gradients and weights run beside.",
        "micro_batches * copies + update",
        source=trainer.offload.source,
        micro_batches=_count(float(b.prices.micro_batches[0]), "micro-batches"),
        copies=_seconds(
            exposed_copies(b.prices, counts), "of one micro-batch on the busiest stage"
        ),
        update=_seconds(
            b.host_update,
            "states read and written at the rate of the host's memory, or of a process's thread",
        ),
    )
    return traffic | other | offload


def _schedule(b: Breakdown) -> Derivations:
    """Parts of the step that the pipeline's schedule makes."""
    overhead = b.prices.task.trainer.overhead
    whole = _seconds(b.makespan, "all micro-batches through all stages")
    unsent = _seconds(b.unsent, "the same, sends taking no time")
    jitter = _derived(
        b,
        "jitter",
        "What measured pipelines take beyond their simulated schedule: micro-batches vary, and each stage waits for "
        "the slower of its neighbours.",
        "jitter * makespan",
        source=overhead.source,
        jitter=_count(overhead.jitter, f"of {b.prices.task.trainer.name}"),
        makespan=whole,
    )
    bubble = _derived(
        b,
        "bubble",
        "What the busiest stage waits: the schedule's makespan without sends, less its own work.",
        "makespan - micro_batches * busy",
        makespan=unsent,
        micro_batches=_count(float(b.prices.micro_batches[0]), "micro-batches"),
        busy=_seconds(b.busy, "the busiest stage for one micro-batch, forwards and backwards"),
    )
    sends = _derived(
        b,
        "sends",
        "By how much sends between stages lengthen the schedule.",
        "makespan - unsent",
        makespan=whole,
        unsent=unsent,
    )
    return jitter | bubble | sends


def _derived(
    b: Breakdown, part: str, meaning: str, formula: str, source: str = "", **inputs: Quantity
) -> Derivations:
    """The derivation of a part of the step, if the step has it."""
    value = b.seconds(f"step.{part}")
    if value is None:
        return {}
    how = Derivation(
        meaning=meaning, formula=formula, inputs=named(inputs), value=value, unit="s", source=source
    )
    return {f"step.{part}": how}


def _whole(b: Breakdown) -> Derivations:
    """Throughput, utilisation and price."""
    task, chips = b.prices.task, float(b.paid)
    recipe, chip = task.recipe, b.prices.chip
    peak, flops = chip.peak_for(recipe.precision), float(task.model.flops())
    unmade = 3.0 * flops - task.model.training_flops()
    step = _seconds(b.step, "one step")
    idle = b.paid - int(b.prices.rows.ranks[0])
    paid = _count(chips, f"chips, {idle:,} of them idle" if idle else "chips")
    batch = _count(recipe.global_batch, "sequences in a step")
    seq = _count(recipe.seq, "tokens in a sequence")
    rate = recipe.tokens / b.step
    utilised = (
        "Model FLOPs of a step (three forward passes, causal attention halved, no recompute) over what the chips could "
        "do at their data sheet's peak."
    )
    found = {
        "tokens": Derivation(
            meaning="Tokens a second, all chips together.",
            formula="global_batch * seq / step",
            inputs=named({"global_batch": batch, "seq": seq, "step": step}),
            value=rate,
            unit="tokens/s",
        ),
        "tokens-per-chip": Derivation(
            meaning="Tokens a second and chip that is paid for.",
            formula="global_batch * seq / (step * chips)",
            inputs=named({"global_batch": batch, "seq": seq, "step": step, "chips": paid}),
            value=rate / chips,
            unit="tokens/s",
        ),
    }
    limit = _quantity(peak, "FLOP/s", f"of one {chip.name} in {recipe.precision}")
    work, taken = "3 * forward", {"forward": _quantity(flops, "FLOP", "one sequence forwards")}
    if unmade:
        work = "(3 * forward - frozen)"
        taken["frozen"] = _quantity(unmade, "FLOP", "gradients of weights that do not train")
    found["mfu"] = Derivation(
        meaning=utilised,
        formula=f"{work} * global_batch / (step * chips * peak)",
        inputs=named(taken | {"global_batch": batch, "step": step, "chips": paid, "peak": limit}),
        value=(3.0 * flops - unmade) * recipe.global_batch / (b.step * chips * peak),
        unit="%",
    )
    running = _count(chips - idle, "chips used")
    shared = {"step": step, "global_batch": batch, "seq": seq}
    hours = b.step / 3600.0 / recipe.tokens * 1e6
    return found | _for_a_million_tokens(chip, shared, hours, running, paid)


def _for_a_million_tokens(
    chip: Chip, shared: dict[str, Quantity], hours: float, running: Quantity, paid: Quantity
) -> Derivations:
    """What a million tokens take, where it is known what an hour of a chip does."""
    found: Derivations = {}
    if chip.watts is not None:
        watts = _quantity(chip.watts, "W", f"power limit of one {chip.name}")
        found["energy"] = Derivation(
            meaning="Energy of the chips for a million tokens, at their power limit.",
            formula="watts * chips * step / 3600 / 1000 / (global_batch * seq) * 1e6",
            inputs=named({"watts": watts, "chips": running} | shared),
            value=chip.watts * running.value * hours / 1000.0,
            unit="kWh",
            source=chip.sources.get("watts", ""),
        )
    if chip.price is not None:
        dollars = _quantity(chip.price, "$", "a chip-hour")
        found["price"] = Derivation(
            meaning="Dollars for a million tokens.",
            formula="dollars * chips * step / 3600 / (global_batch * seq) * 1e6",
            inputs=named({"dollars": dollars, "chips": paid} | shared),
            value=chip.price * paid.value * hours,
            unit="$",
            source=chip.price_source,
        )
    return found


def _seconds(value: float, meaning: str) -> Quantity:
    return _quantity(value, "s", meaning)


def _count(value: float, meaning: str) -> Quantity:
    return _quantity(value, "", meaning)


def _quantity(value: float, unit: Unit, meaning: str) -> Quantity:
    return Quantity(value=float(value), unit=unit, meaning=meaning)
