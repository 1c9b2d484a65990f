"""MindSpore compiles for many devices that are not there: a program for a process of its own, and its two shims.

MindSpore's CPU wheel has the whole compiler front end, but refuses to compile for accelerators whose plug-in is
missing, and its placeholder for communication always answers 2048 devices. Both are changed in this process only: the
hook that refuses is cleared, and the placeholder's answer is replaced. Works with releases 2.9 and 2.10 on x86-64.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from pathlib import Path

os.environ["MS_DEV_PRECOMPILE_ONLY"] = "1"
os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, context, nn, ops
from mindspore.communication import management
from mindspore.graph.api import _cell_graph_executor
from mindspore.parallel import set_op_strategy_config

LIBRARIES = Path(ms.__file__).parent / "lib"
STORES_2048 = bytes.fromhex("c70200080000")
"""The instruction by which the placeholder answers how many devices a group has."""
ANSWERS: list[object] = []
GROUPS: dict[str, list[int]] = {}


def simulate(devices: int, rank: int) -> None:
    """Lets this process compile for so many devices, as one of them."""
    core = ctypes.CDLL(str(LIBRARIES / "libmindspore_core.so"))
    hook = (ctypes.c_uint64 * 4).in_dll(core, "_ZN9mindspore9MsContext6seter_E")
    hook[:] = [0] * 4
    table = _virtual_table()
    slots = ctypes.cast(table, ctypes.POINTER(ctypes.c_uint64))
    size = next(
        n for n in range(7) if STORES_2048 in bytes((ctypes.c_ubyte * 40).from_address(slots[n]))
    )
    _writable(table)
    asks = ctypes.CFUNCTYPE(
        ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)
    )
    makes = ctypes.CFUNCTYPE(
        ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p
    )  # fmt: skip

    def answer(_: int, name: int, out: ctypes.Array[ctypes.c_uint32]) -> bool:
        out[0] = len(GROUPS.get(_text(name), range(devices)))
        return True

    def create(_: int, name: int, ends: ctypes.Array[ctypes.c_uint64], __: int) -> bool:
        numbers = ctypes.cast(ends[0], ctypes.POINTER(ctypes.c_uint32))
        GROUPS[_text(name)] = numbers[: (ends[1] - ends[0]) // 4]
        return True

    ANSWERS.extend([asks(answer), makes(create)])
    slots[size] = ctypes.cast(ANSWERS[0], ctypes.c_void_p).value
    slots[2] = ctypes.cast(ANSWERS[1], ctypes.c_void_p).value  # the first after the two destructors
    management._get_size_helper = lambda group: len(GROUPS.get(group, range(devices)))
    management._get_rank_helper = lambda group: GROUPS.get(group, range(devices)).index(rank)


def _virtual_table() -> int:
    common = ctypes.CDLL(str(LIBRARIES / "libmindspore_common.so"))
    instance = common._ZN9mindspore11CommManager11GetInstanceEv
    instance.restype = ctypes.c_void_p
    return ctypes.cast(instance(), ctypes.POINTER(ctypes.c_uint64))[0]


def _writable(address: int) -> None:
    start = address & ~(mmap.PAGESIZE - 1)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    if protect(ctypes.c_void_p(start), ctypes.c_size_t(2 * mmap.PAGESIZE), 3):
        raise OSError(ctypes.get_errno(), "mprotect")


def _text(address: int) -> str:
    """A string with its length 24 bytes before its text."""
    data = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[0]
    length = ctypes.cast(data - 24, ctypes.POINTER(ctypes.c_uint64))[0]
    return ctypes.string_at(data, length).decode("latin1")


class Weighed(nn.Cell):
    """One primitive with a weight, in a cell of its own, so that its name does not depend on how many there are."""

    def __init__(self, primitive: ops.Primitive, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.run = primitive
        self.weight = Parameter(Tensor(np.ones(shape), ms.float32), name="weight")

    def construct(self, x):
        return self.run(x, self.weight)


class Norm(nn.Cell):
    """RMS norm of raw operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.square, self.mean, self.root = ops.Square(), ops.ReduceMean(True), ops.Rsqrt()
        self.scale, self.weigh = ops.Mul(), ops.Mul()
        self.weight = Parameter(Tensor(np.ones(width), ms.float32), name="weight")

    def construct(self, x):
        return self.weigh(self.scale(x, self.root(self.mean(self.square(x), -1))), self.weight)


class Attention(nn.Cell):
    """Attention of raw operators, without rotary embedding, which has no weight."""

    def __init__(self, batch: int, seq: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.shape = (batch, seq, heads, hidden // heads)
        self.wq, self.wk, self.wv, self.wo = (product(hidden, hidden) for _ in range(4))
        self.reshape, self.turn = ops.Reshape(), ops.Transpose()
        self.scores, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.softmax = ops.Softmax()

    def heads(self, x):
        return self.turn(self.reshape(x, self.shape), (0, 2, 1, 3))

    def construct(self, x):
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        o = self.turn(self.mix(self.softmax(self.scores(q, k)), v), (0, 2, 1, 3))
        return self.wo(self.reshape(o, x.shape))


class FeedForward(nn.Cell):
    """Gated feed-forward part of raw operators."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.w1, self.w3, self.w2 = product(ffn, hidden), product(ffn, hidden), product(hidden, ffn)
        self.act, self.gate = ops.ReLU(), ops.Mul()

    def construct(self, x):
        return self.w2(self.gate(self.act(self.w1(x)), self.w3(x)))


class Experts(nn.Cell):
    """The same of many experts at once, over (groups of ranks, experts, rows, size)."""

    def __init__(self, experts: int, hidden: int, ffn: int) -> None:
        super().__init__()
        self.w1, self.w3 = (self.products(experts, ffn, hidden) for _ in range(2))
        self.w2 = self.products(experts, hidden, ffn)
        self.act, self.gate = ops.ReLU(), ops.Mul()

    def products(self, *shape: int) -> Weighed:
        return Weighed(ops.BatchMatMul(transpose_b=True), shape)

    def construct(self, x):
        return self.w2(self.gate(self.act(self.w1(x)), self.w3(x)))


class Router(nn.Cell):
    """A number for every token and expert."""

    def __init__(self, experts: int, hidden: int) -> None:
        super().__init__()
        self.dense = product(experts, hidden)

    def construct(self, x):
        return self.dense(x)


class Sparse(nn.Cell):
    """Experts that have as many tokens each, in order, and a router whose numbers weigh what they give."""

    def __init__(self, tokens: int, hidden: int, ffn: int, experts: int) -> None:
        super().__init__()
        self.shape = (8, experts, tokens // experts // 8, hidden)
        self.router, self.ffn = Router(experts, hidden), Experts(experts, hidden, ffn)
        self.mean, self.weigh, self.reshape = ops.ReduceMean(True), ops.Mul(), ops.Reshape()

    def construct(self, x):
        share = self.mean(self.router(x), -1)
        return self.weigh(self.reshape(self.ffn(self.reshape(x, self.shape)), x.shape), share)


def product(rows: int, columns: int) -> Weighed:
    return Weighed(ops.MatMul(transpose_b=True), (rows, columns))


class Layer(nn.Cell):
    """A layer of Llama's kind over tokens in a row."""

    def __init__(
        self, batch: int, seq: int, hidden: int, heads: int, ffn: int, experts: int
    ) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = Norm(hidden), Norm(hidden)
        self.attention = Attention(batch, seq, hidden, heads)
        self.feed_forward = (
            Sparse(batch * seq, hidden, ffn, experts) if experts else FeedForward(hidden, ffn)
        )
        self.add1, self.add2 = ops.Add(), ops.Add()

    def construct(self, x):
        x = self.add1(x, self.attention(self.attention_norm(x)))
        return self.add2(x, self.feed_forward(self.ffn_norm(x)))


def main(spec: dict) -> dict:
    """Compiles one layer with a strategy file, or with none to see its operators."""
    simulate(spec["devices"], spec["rank"])
    context.set_context(mode=context.GRAPH_MODE, device_target="Ascend")
    own = {"device_num": spec["devices"], "global_rank": spec["rank"], "full_batch": True}
    if "file" in spec:
        context.set_auto_parallel_context(
            parallel_mode="auto_parallel", search_mode="sharding_propagation", **own
        )
        set_op_strategy_config("LOAD", spec["file"])
    else:
        context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", **own)
    net = Layer(*(spec[name] for name in ("batch", "seq", "hidden", "heads", "ffn", "experts")))
    net.set_train()
    tokens = Tensor(np.ones((spec["batch"] * spec["seq"], spec["hidden"])), ms.float32)
    _cell_graph_executor.compile(net, tokens, phase="train")
    layouts = {
        name: {"dev_matrix": list(found[0]), "tensor_map": list(found[1]), "slice": list(found[2])}
        for name, found in net.parameter_layout_dict.items()
    }
    return {
        "strategies": _cell_graph_executor._get_shard_strategy(net),
        "layouts": layouts,
        "groups": GROUPS,
    }


if __name__ == "__main__":
    sys.stdout.write("FOUND " + json.dumps(main(json.loads(sys.argv[1]))))
