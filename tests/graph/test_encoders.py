"""An encoder before the decoder: what is computed, sent, kept and counted, and how its layers are divided."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.api import Question, plan, price
from planner.candidates import SCHEDULES, single
from planner.cost.cut import uniform
from planner.cost.prices import prices, with_cut
from planner.cost.step import exact
from planner.errors import PlannerError
from planner.export.targets import TARGETS, export
from planner.frontends.hf_config import read_config
from planner.frontends.model_file import read_model
from planner.graph.architecture import Architecture, Attention, Layer, Mlp, misplaced
from planner.graph.blocks import build_model
from planner.question import understand
from planner.search.stages.refine import refine
from tests.cost.blocks import priced
from tests.search.problems import examples

T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True,
    "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "num_layers": 6, "vocab_size": 32128,
    "relative_attention_num_buckets": 32, "feed_forward_proj": "relu",
}  # fmt: skip


def pair(h=64, a=4, f=128, encoders=2, decoders=2, **facts) -> Architecture:
    attention = Attention(heads=a, kv_heads=a, head_dim=8, rotary=False)
    encoder = Layer(
        name="encoder", attention=replace(attention, causal=False), mlp=Mlp(width=f), encodes=True
    )
    decoder = Layer(name="decoder", attention=attention, mlp=Mlp(width=f), cross=True)
    layers = (0,) * encoders + (1,) * decoders
    plain = {
        "name": "x",
        "hidden": h,
        "vocab": 97,
        "max_seq": 512,
        "kinds": (encoder, decoder),
        "layers": layers,
    }
    return Architecture(**(plain | facts))


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 200), st.integers(1, 200))
@examples(60)
def test_flops_by_hand(a, f, source, target):
    """An encoder scores every pair, a decoder those before a token and every pair with the source."""
    h, wide = 64, 8 * a
    model = build_model(pair(h=h, a=a, f=f, source_seq=source), target)
    encoder = 2 * source * (4 * h * wide + 3 * h * f) + 4 * source**2 * wide
    own = 2 * target * 4 * h * wide + 4 * (target * (target + 1) / 2) * wide
    cross = 2 * (2 * target + 2 * source) * h * wide + 4 * source * target * wide
    decoder = own + cross + 2 * target * 3 * h * f
    assert model.flops() == pytest.approx(2 * encoder + 2 * decoder + 2 * target * h * 97)


def test_layers_are_in_order_and_the_first_of_a_decoder_reads_its_tokens():
    model = build_model(pair(encoders=3, decoders=2, buckets=32, tied=True), 128)
    names = [model.blocks[index].name for index in model.layers]
    assert names == ["encoder_first", "encoder", "encoder", "decoder_first", "decoder"]
    first = model.blocks[model.layers[3]]
    assert [op.name for op in first.operators][:2] == ["source_norm", "lookup"]
    assert first.tied == {"embedding.table"}
    assert model.has_encoder
    tables = [
        w.name for block in model.blocks for w in block.weights() if w.name.endswith("positions")
    ]
    assert tables == ["encoder_first.attn.positions", "decoder_first.attn.positions"]


@pytest.mark.parametrize("sp", [0, 1])
def test_a_decoder_under_tensor_parallelism_sends_the_stream_thrice_and_the_encoders_result_once(
    sp,
):
    """Megatron's scheme for each of three parts; keys and values of the source need all of its tokens."""
    arch = pair(source_seq=256)
    model = build_model(arch, 64)
    decoder = model.blocks[model.layers[-1]]
    stream, source = 2.0 * 64 * 64, 2.0 * 256 * 64
    found: dict[tuple[str, str], list[float]] = {}
    for (phase, kind, _, _), size in priced(model, decoder, tp=2, sp=sp).moves().items():
        found.setdefault((phase, kind), []).append(size)
    if sp:
        assert found == {
            ("forward", "all-gather"): [source, stream, stream, stream],
            ("forward", "reduce-scatter"): [stream] * 3,
            ("backward", "all-gather"): [stream] * 3,
            ("backward", "reduce-scatter"): [source, stream, stream, stream],
        }
    else:
        assert found == {
            ("forward", "all-reduce"): [stream] * 3,
            ("backward", "all-reduce"): [source, stream, stream, stream],
        }


def test_the_encoders_result_is_kept_once_and_sent_beside_the_decoders_stream():
    arch = pair(source_seq=256)
    model = build_model(arch, 64)
    first, later = (priced(model, model.blocks[model.layers[i]]) for i in (2, 3))
    source, stream = 2 * 256 * 64, 2 * 64 * 64
    assert later.saved("*") == stream
    lengths = [build_model(pair(source_seq=n), 64) for n in (256, 512)]
    kept = [priced(m, m.blocks[m.layers[3]]).saved() for m in lengths]
    keys = 2 * 2 * 256 * 4 * 8
    assert kept[1] - kept[0] == keys
    assert first.saved() - later.saved() >= source
    asked = Question(model="t5-3b", cluster="ascend-910b:16", trainer="mindspore", global_batch=64)
    sizes = []
    for length in (512, 1024):
        task = understand(replace(asked, overrides={"source_seq": str(length)})).task
        p = prices(task, single(pp=2, dp=8, micro_batch=1))
        sizes.append(float(p.table.stream[p.key][0]))
    assert sizes[0] == 2 * (512 + 512) * 1024
    assert sizes[1] == 2 * (512 + 1024) * 1024


@pytest.mark.parametrize("source", ["128", "2048"])
def test_stages_of_encoder_and_decoder_agree_with_brute_force(source):
    """Every cut of the layers into four stages, encoder before decoder."""
    asked = Question(
        model="t5-large", cluster="ascend-910b:8", trainer="mindspore", global_batch=32, seq_len=512,
        overrides={"source_seq": source},
    )  # fmt: skip
    known = understand(asked)
    few = replace(known.task.model, layers=known.task.model.layers[18:29])
    task = replace(known.task, model=few)
    p = prices(task, single(pp=4, dp=2, micro_batch=1, schedule=SCHEDULES.index("1f1b")))
    layers = len(few.layers)
    cuts = [np.diff([0, *places, layers]) for places in combinations(range(1, layers), 3)]
    steps = [float(exact(with_cut(p, uniform(cut, 0))).step[0]) for cut in cuts]
    found = refine(p, "alike", task.memory_limit)
    even = float(exact(p).step[0])
    best = min(steps)
    assert (even if found is None else found.step) == pytest.approx(best, rel=1e-9)
    assert best < even


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ((1, 0), "must come before"),
        ((0, 0), "have cross-attention"),
        ((1, 1), "have cross-attention"),
    ],
)
def test_misplaced_layers_are_told(order, words):
    assert words in misplaced(pair(layers=order))


def test_a_description_with_misplaced_layers_is_refused(tmp_path):
    file = tmp_path / "x.yaml"
    text = (
        "name: x\nhidden: 64\nvocab: 97\nmax_seq: 64\nmlp: {width: 64}\n"
        "attention: {heads: 4, kv_heads: 4, head_dim: 16}\n"
        "kinds: {encoder: {encodes: true}, decoder: {cross: true}}\n"
        "layers: [{of: decoder, times: 2}, {of: encoder, times: 2}]\n"
    )
    file.write_text(text)
    with pytest.raises(PlannerError, match="must come before all others") as caught:
        read_model(file)
    assert caught.value.faults[0].where.startswith(f"{file}:8")
    file.write_text(
        text.replace("decoder, times: 2}, {of: encoder", "encoder, times: 2}, {of: decoder")
    )
    assert read_model(file).num_encoder_layers == 2


def test_t5_as_hugging_face_writes_it():
    assert build_model(read_config(T5), 512).num_params == 60_506_624
    newer = {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "num_heads": 6,
        "d_ff": 1024,
    }
    gated = read_config(T5 | newer | {"num_layers": 8})
    assert build_model(gated, 512).num_params == 76_961_152
    assert read_config(T5 | {"num_decoder_layers": 3}).layers == (0,) * 6 + (1,) * 3
    with pytest.raises(PlannerError, match=r"\[M03\]"):
        read_config(T5 | {"model_type": "marian", "architectures": ["MarianMTModel"]})


def test_trainers_that_train_decoders_only_refuse_it_and_name_those_that_can():
    asked = Question(model="t5-3b", cluster="a100-sxm-80gb:16", global_batch=64)
    with pytest.raises(PlannerError, match="megatron, fsdp, deepspeed and mindspore") as refused:
        plan(replace(asked, trainer="torchtitan"))
    assert refused.value.faults[0].code == "T03"
    with pytest.raises(PlannerError, match="encoder and decoder stand on one stage"):
        price(asked, {"pp": 2})
    with pytest.raises(PlannerError, match="an encoder sees its source as a whole"):
        price(asked, {"cp": 2})


def test_only_a_format_that_describes_no_model_takes_such_a_plan():
    asked = Question(model="t5-3b", cluster="a100-sxm-80gb:16", global_batch=64)
    plans = {t: plan(replace(asked, trainer=t)) for t in ("megatron", "fsdp")}
    for target in TARGETS:
        found = plans["fsdp" if "fsdp" in target.trainers else "megatron"]
        if target.name == "dtensor":
            assert export(found, target.name)
            continue
        with pytest.raises(PlannerError) as refused:
            export(found, target.name)
        assert refused.value.faults[0].code == "W01"


def test_how_long_the_source_is_is_told():
    asked = Question(model="t5-small", cluster="h100-sxm:8", seq_len=128)
    words = "source of {} tokens; tokens counted are the decoder's"
    for overrides, length in (({}, "128"), ({"source_seq": "2048"}, "2,048")):
        known = understand(replace(asked, overrides=overrides))
        assert words.format(length) in [a.text for a in known.assumptions]


def test_the_table_of_tokens_is_summed_once_over_the_stages_that_have_it():
    asked = Question(model="t5-3b", cluster="ascend-910b:16", trainer="mindspore", global_batch=192)
    found = price(asked, {"pp": 4, "vpp": 1, "tp": 2, "mbs": 1})
    sums = [
        (block.name, move.tensor, move.bytes)
        for block in found.blocks
        for move in block.gradient_collectives
        if move.axis == "pp"
    ]
    assert sums == [("head", "embedding.table", 4 * 32128 * 1024 / 2)]
    on_pools = replace(asked, cluster="ascend-910b:16 + ascend-910a:8")
    assert plan(on_pools).fits
