"""The exact price of candidates: stages as they are cut, the schedule's makespan, memory of every stage.

Exact means: exact in this cost model. Candidates are priced in groups of equal shape (stages, chunks, schedule,
micro-batches), since those share one schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.candidates import distinct
from planner.cost.activations import kept_share
from planner.cost.bounds import stage_bound
from planner.cost.makespan import adaptive_timings, makespan
from planner.cost.memory import StageMemory, stage_memory
from planner.cost.offload import host_room
from planner.cost.orders import Schedule
from planner.cost.prices import Mix, Prices, block_seconds, cut_of, weight_seconds
from planner.units import Array, Counts, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class StageTimes:
    """Candidates of one shape cut into stages."""

    blocks: Counts
    """How many of each block stand in every chunk; ``(stages, chunks, blocks)``."""
    forward: Array
    """Seconds of one micro-batch; ``(n, stages, chunks)``."""
    backward: Array
    weight: Array
    """The part of ``backward`` in which gradients of weights are made."""
    exposed_states: Array
    """Exposed seconds of gradient reduction and weight gathering once a step; ``(n, stages)``."""
    hidden_states: Array
    update: Array
    """Seconds of the optimizer; ``(n, stages)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """Exact prices; arrays ``(n,)``."""

    step: Array
    """Seconds."""
    memory: Array
    """Bytes on the fullest chip."""
    host: Array
    """Bytes of host memory for the chip that needs most."""


def shapes(p: Prices) -> Iterator[IntArray]:
    """Indices of candidates that share stages, chunks, schedule and number of micro-batches."""
    rows = p.rows
    first, index = distinct([rows.pp, rows.vpp, rows.schedule, p.micro_batches])
    for group in range(len(first)):
        yield np.flatnonzero(index == group)


def stage_times(p: Prices) -> StageTimes:
    """Cut candidates of one shape into stages and add up their blocks."""
    if p.mix is not None:
        return _slowest(p.mix)
    blocks = cut_of(p)
    forward, backward = block_seconds(p)
    chunk_forward = np.einsum("scb,nb->nsc", blocks, forward)
    chunk_backward = np.einsum("scb,nb->nsc", blocks, backward)
    held = blocks.sum(axis=1)
    dense = p.dense @ held.T
    expert = p.table.expert[p.key] @ held.T
    once, update = (
        each[0] * dense + each[1] * expert
        for each in (p.each(p.states.once)[..., None], p.each(p.states.update)[..., None])
    )
    share = p.task.trainer.overlap.gradients
    room = (chunk_forward + chunk_backward).sum(axis=-1)
    exposed = np.maximum(share * once, once - room)
    return StageTimes(
        blocks=blocks,
        forward=chunk_forward,
        backward=chunk_backward,
        weight=np.einsum("scb,nb->nsc", blocks, weight_seconds(p)),
        exposed_states=exposed,
        hidden_states=once - exposed,
        update=update,
    )


def _slowest(mix: Mix) -> StageTimes:
    """Times of stages on pools of different chips: of each the slowest of its own."""
    parts = [stage_times(part) for part in mix.parts]
    names = ("forward", "backward", "weight", "exposed_states", "hidden_states", "update")
    slow = {name: mix.slowest([getattr(part, name) for part in parts]) for name in names}
    return StageTimes(blocks=parts[0].blocks, **slow)


def makespans(p: Prices, times: StageTimes) -> Array:
    """Makespan of candidates of one shape, exactly; the distance of two steps where no stage waits for the others."""
    schedule, m = Schedule(int(p.rows.schedule[0])), int(p.micro_batches[0])
    costs = schedule_costs(p, times)
    if schedule.adaptive and times.blocks.shape[0] > 1:
        shares = kept_share(p, times.blocks.sum(axis=1)).max(axis=1)
        timings = adaptive_timings(schedule, m, *costs, shares)
        rolling = not p.task.trainer.step_barrier
        return np.stack([t.span if rolling else t.makespan for t, _ in timings])
    found = makespan(schedule, m, *costs)
    if p.task.cut.shared_ends:
        found = found + (times.forward + times.backward).sum(axis=-1).max(axis=-1)
    return found


def makespan_bounds(p: Prices, times: StageTimes) -> Array:
    """A lower bound on the makespan of candidates of one shape that knows their stages."""
    if times.blocks.shape[0] == 1:
        return makespans(p, times)
    schedule = Schedule(int(p.rows.schedule[0]))
    return stage_bound(schedule, p.micro_batches, *schedule_costs(p, times))


def schedule_costs(p: Prices, times: StageTimes) -> tuple[Array, Array, Array, Array]:
    """Seconds of chunks forwards and backwards with what stages wait for, delays of sends, gradients of weights."""
    stages = times.blocks.shape[0]
    send = p.delays(stages)
    waits = p.sends.waits(send)[..., None]
    return times.forward + waits, times.backward + waits, send, times.weight


def step_seconds(p: Prices, times: StageTimes, makespan: Array) -> Array:
    """The step from its makespan: pipeline jitter, the slowest stage's states and update, shared tables, overhead."""
    overhead = p.task.trainer.overhead
    jitter = 1.0 + overhead.jitter if times.blocks.shape[0] > 1 else 1.0
    after = (times.exposed_states + times.update).max(axis=1)
    return np.asarray(makespan * jitter + after + p.sends.ends + overhead.step)


def memory_of_stages(p: Prices, blocks: Counts) -> StageMemory:
    """Memory of every stage of candidates of one shape; ``blocks`` has shape ``(stages, chunks, blocks)``."""
    if p.mix is not None:
        parts = [memory_of_stages(part, blocks) for part in p.mix.parts]
        names = ("parts", "in_flight", "host")
        return StageMemory(*(p.mix.slowest([getattr(part, n) for part in parts]) for n in names))
    pp = blocks.shape[0]
    n = len(p.rows)
    stage = np.broadcast_to(np.arange(pp), (n, pp))
    held = np.broadcast_to(blocks.sum(axis=1), (n, pp, blocks.shape[2]))
    return stage_memory(p, held, stage)


def exact(p: Prices) -> Exact:
    """Exact step and memory of all candidates, whatever their shapes."""
    step, memory, host = (np.empty(len(p.rows)) for _ in range(3))
    for index in shapes(p):
        part = p.take(index)
        times = stage_times(part)
        step[index] = step_seconds(part, times, makespans(part, times))
        found = memory_of_stages(part, times.blocks)
        memory[index], host[index] = found.total.max(axis=1), found.host.max(axis=1)
    return Exact(step=step, memory=memory, host=host)


def exact_memory(p: Prices) -> Array:
    """Bytes on the fullest chip of all candidates, without their steps; ``(n,)``.

    Infinite where host memory does not hold what is moved there.
    """
    memory, room = np.empty(len(p.rows)), host_room(p.task)
    for index in shapes(p):
        part = p.take(index)
        found = memory_of_stages(part, cut_of(part))
        held = found.host.max(axis=1) <= room
        memory[index] = np.where(held, found.total.max(axis=1), np.inf)
    return memory


def tight_bound(p: Prices) -> Array:
    """A lower bound on the step that knows the stages, cheaper than the exact price; ``(n,)``."""
    bound = np.empty(len(p.rows))
    for index in shapes(p):
        part = p.take(index)
        times = stage_times(part)
        bound[index] = step_seconds(part, times, makespan_bounds(part, times))
    return bound
