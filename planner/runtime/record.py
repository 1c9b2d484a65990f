"""The collectives that a rank issues, seen where torch dispatches them: phase, kind, axis, how many, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._ops import OpOverload
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from planner.runtime.predicted import Issued, Key

KINDS = {
    "allreduce_": "all-reduce", "_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter",
    "alltoall_base_": "all-to-all",
}  # fmt: skip
STATES = ("data", "replicas", "edp")
"""Axes over which states are sharded: a schedule of stages may reduce gradients after the backward pass."""


class Record(TorchDispatchMode):
    """Counts while it is entered. Bytes are those of the full buffer as nccl-tests counts them."""

    def __init__(self, axes: Mapping[str, str]) -> None:
        super().__init__()
        self.axes = axes
        """Axes by the names of their groups."""
        self.issued: Issued = {}
        self.late = False
        """All that comes belongs to the backward pass."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func.namespace == "c10d":
            self._note(func.__name__.partition(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        group = next(
            a for a in args if isinstance(a, torch.ScriptObject) and "ProcessGroup" in str(a)
        )
        if name in ("send", "recv_"):
            return
        axis = self.axes.get(ProcessGroup.unbox(group).group_name, "other")
        sent = args[0 if name in ("allreduce_", "_allgather_base_") else 1]
        sent = sent if isinstance(sent, torch.Tensor) else sent[0]
        gradient = axis in STATES and KINDS.get(name) != "all-gather"
        inside = self.late or gradient or torch._C._current_graph_task_id() != -1
        phase = "backward" if inside else "forward"
        self._add((phase, KINDS.get(name, name), axis), sent)

    def passed(self, phase: str, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Notes what goes from stage to stage, which is issued outside a backward pass."""
        for op in ops:
            self._add((phase, "send" if op.op is dist.isend else "receive", "pp"), op.tensor)
        return ops

    def _add(self, key: Key, sent: torch.Tensor) -> None:
        count, total = self.issued.get(key, (0, 0.0))
        self.issued[key] = (count + 1, total + float(sent.numel() * sent.element_size()))
