"""What stages of a pipeline hand to one another: micro-batches, and gradients of a table that both ends have.

Stages that follow one another may share a node: each boundary is charged the level that it crosses. All chips of a
stage send at the same time; where its node has other stages too, they have a shared network card for themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import SCHEDULES, Candidates
from planner.cost.collectives import collective
from planner.cost.setting import axis_strides
from planner.cost.states import state_bytes
from planner.cost.table import BlockTable
from planner.graph.placement import AxisName
from planner.trainers.trainer import Task
from planner.units import Array, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Sends between stages of many candidates, by the level of the network that they cross."""

    exposed: Array
    """Seconds by which a send delays its receiver; ``(levels, n)``."""
    hidden: Array
    """Seconds of a send that run behind compute; ``(levels, n)``."""
    members: IntArray
    """How the stages lie on the levels (:func:`planner.hardware.mesh.members`)."""
    exchange: Array
    """Seconds of the host at every exchange that stages wait for; not a number where they wait for none; ``(n,)``."""
    ends: Array
    """Seconds in which first and last stage sum the gradients of tables that both have, once a step; ``(n,)``."""

    def take(self, index: IntArray) -> Sends:
        """The same for some of the candidates."""
        return Sends(
            self.exposed[:, index],
            self.hidden[:, index],
            self.members[:, index],
            self.exchange[index],
            self.ends[index],
        )

    def free(self) -> Sends:
        """The same where no send delays anybody."""
        none = np.full_like(self.exchange, np.nan)
        return replace(self, exposed=np.zeros_like(self.exposed), exchange=none)

    @property
    def least(self) -> Array:
        """Seconds of the fastest boundary, exposed; 0 without stages; ``(n,)``."""
        crossed = np.where(self.members > 1, self.exposed, np.inf).min(axis=0)
        return np.where(np.isfinite(crossed), crossed, 0.0)

    def boundaries(self, pp: int) -> Array:
        """Exposed seconds of the boundary behind every stage; the last one's leads back to the first.

        Shapes: ``(n, pp)``, for candidates that all have ``pp`` stages.
        """
        return self._by_boundary(self.exposed, pp)

    def hidden_boundaries(self, pp: int) -> Array:
        """The same of what runs behind compute."""
        return self._by_boundary(self.hidden, pp)

    def waits(self, behind: Array) -> Array:
        """Seconds by which every pass of a chunk is longer where stages wait for what they exchange; 0 elsewhere.

        After a forward and a backward pass a stage sends the results of both and receives what it works on next, to and
        from both neighbours at once: the slower boundary and what the host needs, half of it for each of the passes.

        Shapes: exposed seconds of the boundary behind every stage, ``(n, pp)``, and the same of the result.

        Source: Megatron-LM, send_forward_backward_recv_forward_backward without overlap_p2p_comm, which waits for the
        device.
        """
        longest = np.maximum(behind, np.roll(behind, 1, axis=1))
        return np.nan_to_num((longest + self.exchange[:, None]) / 2.0)

    def _by_boundary(self, seconds: Array, pp: int) -> Array:
        stage = np.arange(pp)
        after = (stage + 1) % pp
        found = np.broadcast_to(seconds[-1][:, None], (seconds.shape[1], pp))
        together = np.cumprod(self.members, axis=0)
        for level in reversed(range(len(seconds) - 1)):
            held = together[level][:, None]
            found = np.where(stage // held == after // held, seconds[level][:, None], found)
        return found


def sent_bytes(task: Task, rows: Candidates, stream: Array) -> Array:
    """Bytes that a rank sends of its stream: a tp-th where all ranks have the same and scatter it; ``(n,)``."""
    scattered = task.trainer.scatters_sends & (rows.tp > 1) & ~rows.sp
    return np.where(scattered, stream / rows.tp, stream)


def sends(
    task: Task,
    rows: Candidates,
    table: BlockTable,
    key: IntArray,
    members: Mapping[AxisName, IntArray],
    senders: IntArray | None = None,
) -> Sends:
    """Price the sends of all candidates over every level.

    Args:
        task: the question.
        rows: the candidates.
        table: their blocks.
        key: each candidate's row in the table.
        members: of pp and tp at each level.
        senders: chips from one stage to the next, where they are known; ``(n,)``.

    Source: scattered sends: Narayanan et al. 2021 (arXiv 2104.04473), section 4.1.
    """
    stream = table.stream[key]
    size, gather = sent_bytes(task, rows, stream), np.zeros_like(stream)
    if task.trainer.scatters_sends:
        whole = collective("all-gather", stream, members["tp"], task.cluster)
        gather = np.where(size < stream, whole, 0.0)
    if senders is None:
        senders = axis_strides(task, rows)["pp"]
    seconds = np.stack(
        [level.latency + size / level.sent_by(senders) + gather for level in task.cluster.levels]
    )
    share, exchange = task.trainer.overlap.sends, task.trainer.overhead.exchange
    waits = (rows.schedule == SCHEDULES.index("interleaved")) & (rows.pp > 1)
    return Sends(
        exposed=share * seconds,
        hidden=max(0.0, 1.0 - share) * seconds,
        members=members["pp"],
        exchange=np.where(waits, np.nan if exchange is None else exchange, np.nan),
        ends=_between_ends(task, rows, shared_bytes(task, table, key), members["pp"]),
    )


def shared_bytes(task: Task, table: BlockTable, key: IntArray) -> Array:
    """Bytes of gradients on a rank of the table that the embedding has and blocks of other stages too; ``(n,)``."""
    return np.asarray(table.tied[0].max(axis=-1)[key] * state_bytes(task).gradients)


def _between_ends(task: Task, rows: Candidates, size: Array, members: IntArray) -> Array:
    """Seconds of an all-reduce between a rank of the first stage and its like of the last; none in a V, which has both.

    Source: Megatron-Core 0.19 finalize_model_grads: after the data ranks have reduced, before the optimizer, nothing
    beside it.
    """
    apart = (rows.pp > 1) & ~rows.folded & (size > 0)
    if not apart.any():
        return np.zeros(len(rows))
    reached = np.cumprod(members, axis=0) == rows.pp
    pair = np.where(reached & (np.cumsum(reached, axis=0) == 1), 2, 1)
    return np.where(apart, collective("all-reduce", size, pair, task.cluster), 0.0)
