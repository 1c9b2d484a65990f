"""Published schemes are found as the optimum of the problem that they are for, with the published volume."""

from __future__ import annotations

import pytest

from planner.errors import PlannerError
from planner.graph.architecture import Attention, Experts, Mlp
from planner.graph.placement import Shard
from tests.cost.blocks import model_of
from tests.operators.schemes import (
    chain,
    convolutions,
    dims_of,
    fan_of,
    moved,
    peak,
    solved,
    weights_moved,
)

PAIRS = ("attn.q", "attn.kv", "attn.core", "mlp.up", "mlp.act")
NORMS = ("norm1", "norm2", "add1", "add2")


def dense(seq, *, hidden=64, heads=4, kv_heads=None, width=256, **facts):
    attention = Attention(heads=heads, kv_heads=kv_heads or heads, head_dim=hidden // heads)
    return model_of(attention, Mlp(width=width), seq, hidden=hidden, **facts)


def wide(seq):
    """Weights large beside the activations of one sequence."""
    return dense(seq, hidden=2048, heads=16, width=8192)


@pytest.mark.parametrize("axes", [{"a": 4}, {"a": 2, "b": 4}])
def test_data_parallelism(axes):
    model = dense(512)
    found = solved(model, model.blocks[0], axes, sequences=64)
    assert dims_of(found) == {(axis, "batch") for axis in axes}
    assert moved(found) == {}
    # gradients in fp32, all of them, once
    assert weights_moved(found) == {("backward", "all-reduce"): 4.0 * model.blocks[0].num_params}
    assert not any(found.states.values())


def test_gradients_are_reduced_once_for_all_micro_batches():
    model = dense(512)
    one = solved(model, model.blocks[0], {"a": 4}, sequences=64)
    four = solved(model, model.blocks[0], {"a": 4}, sequences=64, micro_batches=4)
    assert four.compute == one.compute
    assert four.seconds - four.compute == pytest.approx((one.seconds - one.compute) / 4)


def with_states(block, plan, share):
    """Bytes at every moment with this share of the states: an operator's weights are whole, and their gradients."""
    states = 18.0 * block.num_params  # weights, gradients in fp32, master copy and two moments
    whole = {
        op.name: sum(block.elements(block.tensors[name].dims) for name in op.weights)
        for op in block.operators
    }
    return {
        at: held
        - (1 - share) * states
        + (2.0 if at.phase == "forward" else 6.0) * whole.get(at.operator, 0.0)
        for at, held in plan.held.items()
    }


@pytest.mark.parametrize("axes", [{"a": 4}, {"a": 2, "b": 2}])
def test_fully_sharded_data_parallelism_where_memory_asks(axes):
    """Two gathers of the weights and one scatter of the gradients (ZeRO, section 7.2)."""
    model = dense(512)
    block = model.blocks[0]
    free = solved(model, block, axes, sequences=64)
    want = with_states(block, free, 0.25)
    limit = max(want.values()) + 1
    found = solved(model, block, axes, sequences=64, memory_limit=limit)
    assert dims_of(found) == {(axis, "batch") for axis in axes}
    assert set(found.states.values()) == {tuple(axes)}
    assert found.held == pytest.approx(want)
    assert found.memory <= limit < free.memory
    assert weights_moved(found) == {
        ("forward", "all-gather"): 2.0 * block.num_params,
        ("backward", "all-gather"): 2.0 * block.num_params,
        ("backward", "reduce-scatter"): 4.0 * block.num_params,
    }


def test_sharded_inside_nodes_and_replicated_across():
    """Where half the room is enough and weights are gathered for every micro-batch: hybrid sharding."""
    model = dense(512)
    block, axes = model.blocks[0], {"across": 2, "inside": 2}
    many = {"sequences": 64, "micro_batches": 16, "facts": {"node": 2}}
    free = solved(model, block, axes, **many)
    want = with_states(block, free, 0.5)
    limit = max(want.values()) + 1
    found = solved(model, block, axes, memory_limit=limit, **many)
    assert found.held == pytest.approx(want)
    assert free.memory > limit >= found.memory
    assert set(found.states.values()) == {("inside",)}
    sharded = weights_moved(found)
    assert sharded["backward", "reduce-scatter"] == 4.0 * block.num_params
    assert sharded["backward", "all-reduce"] == 2.0 * block.num_params


def test_megatron_column_and_row_pairs():
    """Two all-reduces of the stream each way (Megatron-LM, arXiv 1909.08053, section 3)."""
    model = wide(63)  # tokens that no axis divides
    found = solved(model, model.blocks[0], {"tp": 4}, sequences=1, facts=peak(1e14))
    assert dims_of(found, *PAIRS, "mlp.down", "attn.out") == {
        ("tp", "heads"),
        ("tp", "kv_heads"),
        ("tp", "ffn"),
    }
    assert dims_of(found, *NORMS) == set()
    stream = 2.0 * 63 * 2048
    assert moved(found) == {
        ("forward", "all-reduce", "attn_out"): stream,
        ("forward", "all-reduce", "mlp_out"): stream,
        ("backward", "all-reduce", "normed1"): stream,
        ("backward", "all-reduce", "normed2"): stream,
    }
    assert weights_moved(found) == {}


def test_sequence_parallel_form():
    """All-reduces become gathers and scatters around norms split by tokens (arXiv 2205.05198, section 4.2)."""
    model = wide(64)
    facts = peak(1e14) | {"memory_bandwidth": 2e12}
    found = solved(model, model.blocks[0], {"tp": 4}, sequences=1, facts=facts)
    assert dims_of(found, *NORMS) == {("tp", "seq")}
    assert dims_of(found, "attn.out", "mlp.up", "mlp.down") == {("tp", "heads"), ("tp", "ffn")}
    stream = 2.0 * 64 * 2048
    assert moved(found) == {
        (phase, kind, tensor): stream
        for tensors, phases in (
            (("normed1", "normed2"), (("forward", "all-gather"), ("backward", "reduce-scatter"))),
            (("attn_out", "mlp_out"), (("forward", "reduce-scatter"), ("backward", "all-gather"))),
        )
        for tensor in tensors
        for phase, kind in phases
    }
    assert found.layouts["x"] == found.layouts["y"] == {"tp": Shard("seq")}


def test_ulysses_all_to_alls():
    """Queries, keys and values to heads, the result back to tokens: 4 s h / P a rank (arXiv 2309.14509, section 3)."""
    s, h = 65536, 64
    model = dense(s, heads=8)
    found = solved(model, model.blocks[0], {"sp": 8}, sequences=1)
    assert dims_of(found, "attn.core") == {("sp", "heads")}
    assert dims_of(found, "attn.q", "attn.out", *NORMS, "mlp.up") == {("sp", "seq")}
    sent = moved(found)
    assert {kind for _, kind, _ in sent} == {"all-to-all"}
    for phase in ("forward", "backward"):
        total = sum(size for key, size in sent.items() if key[0] == phase)
        assert total == pytest.approx(2.0 * 4 * s * h / 8)


ULYSSES = {op: {"sp": "seq"} for op in ("attn.q", "attn.kv", "attn.out", "mlp.up", "mlp.down")}


@pytest.mark.parametrize("sp", [8, 16, 40])
def test_ulysses_divides_query_heads_and_key_heads_divide_it_or_are_copied(sp):
    """Case B10, verl#1226: Qwen2.5-14B has 40 query heads and 8 of keys: 8 and 40 ranks run, 16 are refused."""
    tokens = 40 * 1024
    model = dense(tokens, hidden=5120, heads=40, kv_heads=8, width=13824)
    pins = ULYSSES | {"attn.core": {"sp": "heads"}}
    asked = {"sequences": 1, "pins": pins}
    if sp == 16:
        with pytest.raises(PlannerError, match=r"(?s)attn.core cannot be split by sp = heads.*N02"):
            solved(model, model.blocks[0], {"sp": sp}, **asked)
        return
    found = solved(model, model.blocks[0], {"sp": sp}, **asked)
    assert dims_of(found, "attn.core") == {("sp", "heads")}
    there = {kind: 0.0 for _, kind, _ in moved(found)}
    for (phase, kind, _), size in moved(found).items():
        there[kind] += size * (phase == "forward")
    heads = 2.0 * tokens * 128
    keys, queries = 2 * 8 * heads, 2 * 40 * heads / sp
    if sp == 8:
        assert there == {"all-to-all": pytest.approx(queries + keys / sp)}
    else:  # more ranks than heads of keys: every rank has all of them
        expected = {"all-to-all": queries, "all-gather": keys, "reduce-scatter": 0.0}
        assert there == pytest.approx(expected)


def test_context_parallelism_gathers_keys_and_values():
    """Few key/value heads: gathering them is less than exchanging queries (Llama 3, section 3.3.2)."""
    s = 65536
    model = dense(s, heads=8, kv_heads=1)
    found = solved(model, model.blocks[0], {"cp": 8}, sequences=1)
    assert dims_of(found) == {("cp", "seq")}
    keys = 2.0 * 2 * s * 8
    assert {(phase, kind): size for (phase, kind, _), size in moved(found).items()} == {
        ("forward", "all-gather"): keys,
        ("backward", "reduce-scatter"): keys,
    }


def test_vocabulary_parallel_loss():
    """Three numbers a token instead of logits; the gradient of the stream is summed (arXiv 1909.08053, section 3)."""
    model = dense(63, hidden=512, vocab=65536)
    found = solved(model, model.head, {"tp": 4}, sequences=1, facts=peak(1e13))
    assert dims_of(found, "project", "loss") == {("tp", "vocab")}
    assert moved(found) == {
        ("forward", "all-reduce", "loss"): 3.0 * 4 * 63,
        ("backward", "all-reduce", "x_normed"): 2.0 * 63 * 512,
    }


def test_vocabulary_parallel_embedding():
    """Rows of the table are split; what ranks do not hold is zero, and the sum is the embedding."""
    model = dense(63, hidden=510, heads=2, vocab=65536)  # no axis of 4 divides the stream
    table = 18.0 * 65536 * 510
    found = solved(
        model,
        model.embedding,
        {"tp": 4},
        sequences=1,
        facts=peak(1e13),
        lies={"x": {}},
        memory_limit=table / 4 + 2e5,
    )
    assert dims_of(found) == {("tp", "vocab")}
    assert moved(found) == {("forward", "all-reduce", "x"): 2.0 * 63 * 510}
    assert weights_moved(found) == {}


def test_expert_parallelism():
    """Dispatch and combine each way; a rank sends the rows of its own tokens, top-k times (arXiv 2006.16668)."""
    s, b, h, top_k, ep = 256, 8, 48, 2, 8
    model = model_of(
        Attention(heads=8, kv_heads=8, head_dim=6),
        Experts(count=16, top_k=top_k, width=512),
        s,
        hidden=h,
    )
    found = solved(model, model.blocks[0], {"ep": ep}, sequences=b, facts=peak(1e13))
    assert dims_of(found, "moe.up", "moe.act", "moe.down") == {("ep", "experts")}
    assert dims_of(found, "moe.dispatch", "moe.combine", "attn.core") == {("ep", "batch")}
    rows = 2.0 * s * b * top_k * h / ep
    assert moved(found) == {
        (phase, "all-to-all", tensor): rows
        for phase in ("forward", "backward")
        for tensor in ("routed", "moe_down")
    }
    dense_params = sum(
        model.blocks[0].elements(w.dims) for w in model.blocks[0].weights() if "moe." not in w.name
    )
    router = h * 16
    assert weights_moved(found) == {("backward", "all-reduce"): 4.0 * (dense_params + router)}


def test_two_dimensional_tensor_parallelism_where_the_batch_is_too_small():
    """Both weights on both axes, each product summed over one of them: 1/√n of the stream (arXiv 2211.05102, 3.2)."""
    block = chain(("embed", "ffn"), ("ffn", "embed"), sizes={"embed": 4096, "ffn": 4096})
    model = dense(63)
    axes = {"x": 4, "y": 4}
    found = solved(model, block, axes, sequences=63, facts=peak(1e13))
    assert len({axis for axis, dim in dims_of(found, "op1") if dim == "embed"}) == 1
    assert {dim for _, dim in dims_of(found, "op1")} == {"embed", "ffn"}
    assert found.splits["op1"] == found.splits["op2"]
    part = 2.0 * 63 * 4096 / 4
    assert moved(found) == {
        (phase, "all-reduce", tensor): part
        for phase in ("forward", "backward")
        for tensor in ("t1", "t2")
    }
    line = {"x": "ffn", "y": "ffn"}
    flat = solved(
        model, block, axes, sequences=63, facts=peak(1e13), pins={"op1": line, "op2": line}
    )
    assert sum(moved(flat).values()) >= 2 * sum(moved(found).values())
    assert flat.seconds > found.seconds


def test_convolutions_by_batch_then_full_layers_by_channel():
    """One weird trick (arXiv 1404.5997): the split changes where activations become smaller than weights."""
    net = convolutions(1024, (4, 64, 256), 4096, 3)
    found = solved(dense(64), net, {"a": 4}, sequences=256, repeated=False, facts=peak(1e13))
    assert dims_of(found, "conv1", "conv2", "pool") == {("a", "batch")}
    assert {dim for _, dim in dims_of(found, "full3", "full4", "full5")} <= {"f0", "f1", "f2"}
    assert moved(found, "pooled") == {
        ("forward", "all-gather", "pooled"): 2.0 * 256 * 256,
        ("backward", "reduce-scatter", "pooled"): 2.0 * 256 * 256,
    }
    assert weights_moved(found) == {("backward", "all-reduce"): 4.0 * (4 * 64 + 64 * 256)}


def test_what_readers_want_alike_is_converted_once():
    """Whole for three of five and by channels for two: one gather and one exchange each way, whoever comes first."""
    into = ("c1", "c2", "c1", "c2", "c1")
    fan = fan_of("c0", *into, sizes=dict.fromkeys(("c0", "c1", "c2"), 256))
    pins = {f"op{n}": {"a": "c1" if dim == "c1" else "c0"} for n, dim in enumerate(into)}
    asked = {"sequences": 64, "repeated": False, "lies": {"t0": {"a": Shard("batch")}}}
    found = solved(dense(64), fan, {"a": 4}, pins=pins, **asked)
    whole = 2.0 * 64 * 256
    assert moved(found, "t0") == {
        ("forward", "all-gather", "t0"): whole,
        ("backward", "reduce-scatter", "t0"): whole,
        ("forward", "all-to-all", "t0"): whole / 4,
        ("backward", "all-to-all", "t0"): whole / 4,
    }
    assert found.bound == pytest.approx(found.seconds, rel=1e-9)


def test_a_tied_table_is_kept_and_reduced_once():
    """The head's product and the look-up add their gradients up first (Press and Wolf, arXiv 1608.05859)."""
    model = dense(64, hidden=128, vocab=512, tied=True)
    own = dense(64, hidden=128, vocab=512)
    asked = {"sequences": 512, "pins": {}, "lies": {"x": {"a": Shard("batch")}}}
    tied, apart = (solved(m, m.ends, {"a": 4}, **asked) for m in (model, own))
    assert dims_of(tied) == dims_of(apart) == {("a", "batch")}
    table = 4.0 * 512 * 128
    sent = weights_moved(tied)["backward", "all-reduce"]
    assert sent == 4.0 * model.ends.num_params
    assert weights_moved(apart)["backward", "all-reduce"] == sent + table
    assert apart.memory - tied.memory == 18.0 * 512 * 128


def test_operators_that_share_a_weight_cut_it_alike():
    """Pins that cut the table by vocabulary in the head ask for the same of the look-up, or are refused."""
    model = dense(64, hidden=128, vocab=512, tied=True)
    asked = {"sequences": 4, "lies": {"x": {}}, "facts": peak(1e13)}
    by_vocab = {"head.project": {"a": "vocab"}}
    found = solved(model, model.ends, {"a": 4}, pins=by_vocab, **asked)
    assert found.splits["lookup"] == {"a": "vocab"}
    with pytest.raises(PlannerError, match=r"(?s)embedding.table.*\[N03\]"):
        solved(model, model.ends, {"a": 4}, pins=by_vocab | {"lookup": {"a": "embed"}}, **asked)
    lies = {"x": {}, "embedding.table": {"a": Shard("embed")}}
    found = solved(model, model.ends, {"a": 4}, **(asked | {"lies": lies}))
    assert found.splits["lookup"] == found.splits["head.project"] == {"a": "embed"}
