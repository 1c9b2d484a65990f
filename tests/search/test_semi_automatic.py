"""Pins on operators: what they mean, what they leave, what they cost, and how little work they are."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import numpy as np
import pytest

from planner.cost.prices import prices
from planner.cost.step import exact
from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.frontends.model_file import read_model
from planner.graph.blocks import build_model
from planner.known import show
from planner.planning import plan
from planner.pricing import price
from planner.question import Question, understand
from planner.search import role_choices
from planner.search.engine import search
from planner.search.operator_pins import divided
from planner.search.pin_prices import pin_prices
from planner.search.pins import Pins, parse_pins
from planner.search.space import build_space
from planner.search.stages.winners import searched
from planner.trainers.registry import get_trainer
from planner.trainers.trust import room
from tests.cost.blocks import task_of

GPT = {"vocab": "50304"}
"""A vocabulary that eight ranks can divide."""
UP = "layers.*.mlp.up=((1,1),(1,8))"


def question(model="llama-3-8b", cluster="h100-sxm:8", trainer="mindspore", **facts):
    return Question(model=model, cluster=cluster, trainer=trainer, global_batch=64, **facts)


def refusal(*pins, **facts):
    with pytest.raises(PlannerError) as error:
        plan(question(pins=pins, **facts))
    return error.value.faults


def operators(found, block=0):
    return {op.name: op for op in found.blocks[1 + block].operators}


def cut(found, name, block=0):
    """Parts of every dim of an operator under a plan's degrees."""
    parts: dict[str, int] = {}
    for axis, dim in operators(found, block)[name].split.items():
        degree = getattr(found.degrees, axis) if axis != "edp" else 1
        parts[dim] = parts.get(dim, 1) * degree
    return parts


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan", "mindspore"])
def test_a_mindspore_strategy_fixes_the_parts(trainer):
    found = plan(question(trainer=trainer, pins=(UP,)))
    assert cut(found, "mlp.up") == {"batch": 1, "seq": 1, "ffn": 8}
    assert found.pins == (UP,)
    price = found.pin_prices[0]
    free = plan(question(trainer=trainer))
    assert price.without == pytest.approx(free.step, rel=1e-3)
    assert price.without <= free.step * (1 + 1e-12)
    assert price.cost == pytest.approx(found.step - price.without)
    assert price.cost > 0


def test_dim_names_go_to_roles_and_the_rest_follows():
    found = plan(question(pins=("mlp.up.embed=tp", "tp=8", "sp=on")))
    assert operators(found)["mlp.up"].split["tp"] == "embed"
    moves = {
        (m.kind, m.tensor, m.phase) for op in found.blocks[1].operators for m in op.collectives
    }
    assert ("all-to-all", "normed2", "forward") in moves
    assert ("reduce-scatter", "mlp_up", "forward") in moves
    assert operators(found)["mlp.act"].split["tp"] == "ffn"
    text, together = found.pin_prices[-2], found.pin_prices[-1]
    assert text.pin == "mlp.up.embed=tp"
    assert together.pin == "all pins"
    assert together.cost >= text.cost > 0


def test_pinning_what_the_optimum_has_costs_nothing():
    free = plan(question(pins=("attn.out.heads=tp", "tp=4")))
    own = [f"layers.*.{op.name}.{dim}={axis}" for op in free.blocks[1].operators
           for axis, dim in op.split.items() if axis == "tp" and op.kind == "matmul"]  # fmt: skip
    again = plan(question(pins=(*own, "tp=4")))
    assert again.step == free.step
    assert again.blocks == free.blocks
    assert {
        price.pin: price.cost for price in again.pin_prices if price.pin in own
    } == dict.fromkeys(own, 0.0)


@pytest.mark.parametrize("trainer", ["megatron", "mindspore"])
@pytest.mark.parametrize(
    "pins",
    [
        ("mlp.up.ffn=tp", "attn.out.heads=tp"),
        ("mlp.up.ffn=8", "attn.out.heads=8", "pp=1"),
        ("mlp.down.ffn=2", "recompute=full", "tp<=4"),
        ("micro-batch=2", "mlp.up.ffn=4"),
        ("tp=2", "pp=2", "cp=1"),
    ],
)
def test_prices_are_those_of_whole_searches(trainer, pins):
    asked = question(trainer=trainer, pins=pins)
    known, found = understand(asked), plan(asked)

    def whole(fewer):
        return float(searched(known.task, fewer, asked.top, np.inf)[1].step[0])

    assert len(found.pin_prices) == len(pins) + 1
    want = {row.pin: row.without for row in pin_prices(known.pins, found.step, whole)}
    assert {row.pin: row.without for row in found.pin_prices} == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("trainer", ["megatron", "mindspore"])
def test_a_pin_is_a_filter_where_roles_are_fixed(trainer):
    known = understand(question(trainer=trainer))
    pins = parse_pins(["attn.qkv.heads=4", "mlp.down.seq=2"], known.task.trainer, known.task.model)
    task = replace(known.task, trainer=replace(known.task.trainer, per_operator=False))
    whole, left = build_space(task, Pins()).candidates, build_space(task, pins)
    kept = (whole.tp == 4) & (whole.cp == 2)
    assert len(left.candidates) == kept.sum() > 0
    assert set(left.candidates.operators.tolist()) == {0}
    assert left.searched == len(left.candidates) + sum(left.removed.values())


def test_the_pinned_search_finds_the_best_of_what_pins_leave():
    known = understand(question(pins=("mlp.up.embed=tp", "norm1.seq=8")))
    space = build_space(known.task, known.pins)
    rows = space.candidates
    assert ((rows.cp * np.where(rows.sp, rows.tp, 1)) == 8).all()
    every = exact(prices(replace(known.task, operators=space.operators), rows))
    fits = every.memory <= room(known.task)
    found = search(known.task, known.pins, top=1)
    assert found.step[0] == pytest.approx(every.step[fits].min(), rel=1e-12)


def test_layers_are_told_apart_where_pins_speak_of_some():
    found = plan(question(pins=("layers.3-5.mlp.up.embed=8",)))
    assert [block.layers for block in found.blocks] == ["embedding", "0-2, 6-31", "3-5", "head"]
    assert cut(found, "mlp.up", 0) == {"batch": 1, "seq": 1, "ffn": 8}
    assert cut(found, "mlp.up", 1) == {"batch": 1, "seq": 1, "embed": 8}
    model = understand(question()).task.model
    pins = parse_pins(["layers.0-31.mlp.up.ffn=tp"], get_trainer("megatron"), model).operators
    assert divided(model, pins)[0] is model


def test_experts_and_modules_behind_the_layers():
    pins = ("layers.*.moe.up.expert_ffn=2", "moe.up.experts=ep", "mtp.attn.out.heads=tp")
    found = plan(question("deepseek-v3", "h800-sxm:512", "megatron", pins=pins))
    assert found.degrees.etp == 2
    assert all(price.cost >= 0 for price in found.pin_prices)


def test_a_stated_layout_takes_pins_on_operators():
    asked = question(pins=("mlp.up.embed=tp",))
    found = price(asked, {"tp": 8})
    plain = price(question(), {"tp": 8})
    assert operators(found)["mlp.up"].split["tp"] == "embed"
    assert found.pin_prices[0].without <= plain.step < found.step
    with pytest.raises(PlannerError, match="can be cut into 1 or 8 parts"):
        price(question(pins=("attn.q.heads=4",)), {"tp": 8})
    with pytest.raises(PlannerError, match="contradicts the stated layout"):
        price(question(pins=("tp=4",)), {"tp": 8})


WRONG = {
    "mlp.upp.ffn=tp": ("N01", "no operator mlp.upp", "mlp.up"),
    "layers.*.mlp=((1,1),(1,8))": ("N01", "no operator layers.*.mlp", "layers.*.mlp.up"),
    "mlp.up.fnn=tp": ("N01", "mlp.up has no dim fnn", "Nearest: ffn"),
    "mlp.up=tp": ("N01", "neither which dim", "mlp.up.ffn"),
    "layers.40.mlp.up.ffn=tp": ("N01", "no layers 40", "0-31"),
    "mlp.up.ffn=top": ("N02", "top is no axis", "dp, cp, tp"),
    "mlp.up.ffn=tp+tp": ("N02", "tp+tp is no axis", "dp, cp, tp"),
    "mlp.up.ffn=3": ("N02", "ffn of mlp.up is 14,336, which has no 3 equal parts", "2, 4, 7 or 8"),
    "mlp.up.ffn=16": ("N02", "no layout here has mlp.up with ffn in 16 parts", "1, 2, 4 or 8"),
    "mlp.up.ffn=dp": ("N02", "never cuts ffn of mlp.up by dp", "batch by dp, seq by cp, ffn by tp and embed by tp"),
    "attn.core.keys=2": ("N02", "never cuts keys of attn.core", "heads by tp"),
    "mlp.up=((1,1),(1,8),(1,1),(1,1))": ("N02", "has 2 inputs, not 4", "(embed, gates, ffn)"),
    "mlp.up=((1,1,1,1),(1,8))": ("N02", "does not fit batch, seq and embed", "may be given as one"),
    "mlp.up=((1,8),(1,1))": ("N02", "embed is cut into 8 and into 1", "(batch, seq, embed)"),
    "mlp.up=((1,1),(1,0))": ("N02", "is no strategy", "like ((1,1),(1,8))"),
    "mlp.up=((1,1),(1,8)": ("N02", "is no strategy", "like ((1,1),(1,8))"),
    "mlp.up.ffn>=8": ("N02", "only = makes sense", ""),
}  # fmt: skip


@pytest.mark.parametrize("pin", WRONG)
def test_what_cannot_be_is_refused_with_what_can(pin):
    (fault,) = refusal(pin)
    code, what, fix = WRONG[pin]
    assert fault.code == code
    assert pin in fault.what
    assert what in fault.what
    assert fix in " ".join(fault.fix)


def test_names_are_those_that_a_model_is_shown_with():
    text = show("deepseek-v3").text
    assert "#   layers.*.moe.up  (experts, capacity, embed, gates, expert_ffn)" in text
    model = understand(question("deepseek-v3", trainer="megatron")).task.model
    for name, dims in model.operator_dims().items():
        assert f"#   {name}  ({', '.join(dims)})" in text
        (pin,) = parse_pins([f"{name}.{dims[0]}=1"], get_trainer("megatron"), model).operators
        assert {op for _, op in pin.wanted} == {name.split(".", 2 if "layers" in name else 1)[-1]}


def test_other_trainers_are_named_where_one_cannot():
    (fault,) = refusal("mlp.up.embed=tp", trainer="megatron")
    assert "megatron never cuts embed of mlp.up by tp" in fault.what
    assert fault.fix == (
        "It cuts batch by dp, seq by cp and ffn by tp.",
        "Trainers that can: mindspore.",
    )


def test_several_wrong_pins_are_told_at_once():
    faults = refusal("mlp.upp.ffn=tp", "tpp=8", "mlp.up.fnn=tp")
    assert [fault.code for fault in faults] == ["N01", "N01", "N01"]
    faults = refusal("attn.core.keys=2", "attn.q.heads=tp", "mlp.up.ffn=dp")
    assert len(faults) == 2


CONFLICTS = {
    ("mlp.up.ffn=8", "layers.2.mlp.up.ffn=4"): "mlp.up: ffn in 8 parts, and ffn in 4 parts",
    ("mlp.up.ffn=tp", "mlp.up.ffn=none"): "mlp.up: ffn cut by tp, and ffn whole",
    ("attn.q.heads=8", "mlp.up.ffn=2"): "exclude each other",
    ("attn.q.heads=8", "attn.out.heads=4", "tp=2"): "heads in 8 parts",
}


@pytest.mark.parametrize("pins", CONFLICTS, ids=str)
def test_pins_that_exclude_each_other(pins):
    faults = refusal(*pins)
    assert {fault.code for fault in faults} <= {"N02", "N03"}
    assert CONFLICTS[pins] in faults[0].what


def test_what_stands_in_the_way_of_a_pin_is_told():
    (fault,) = refusal(UP, model="gpt3-1.3b")
    assert "no layout here has mlp.up with ffn in 8 parts" in fault.what
    assert fault.fix[0] == "ffn of mlp.up can be cut into 1 part."
    assert fault.fix[1].startswith(
        "tp=8, cp=1, pp=1, dp=1 would, but: tp 8 cannot split 50257 words"
    )
    (fault,) = refusal("mlp.up.ffn=8", "tp=2")
    assert fault.fix[0] == "ffn of mlp.up can be cut into 1 or 2 parts."
    assert fault.fix[1].startswith("That is under tp=2:")
    (fault,) = refusal("mlp.up.ffn=8", "attn.out.heads=4", trainer="megatron")
    assert fault.fix[0] == "Beside 'mlp.up.ffn=8': heads of attn.out can be cut into 8 parts."


def test_pins_on_different_layers_do_not_contradict():
    pins = ("layers.0-7.mlp.up.embed=8", "layers.8-31.mlp.up.ffn=8")
    assert len(plan(question(pins=pins)).blocks) == 4


@pytest.fixture
def work(monkeypatch):
    """Entries of all tables, and how often a function that costs anything is called."""
    done = {"entries": 0, "priced": 0}
    solver = role_choices.eliminate

    def counted(costs, edges, tables):
        done["entries"] += sum(table.size for table in (*costs, *tables))
        return solver(costs, edges, tables)

    def counting(function):
        def called(*args, **named):
            done["priced"] += 1
            return function(*args, **named)

        return called

    monkeypatch.setattr(role_choices, "eliminate", counted)
    for name in ("operator_cost", "move_seconds", "tensor_moves"):
        monkeypatch.setattr(role_choices, name, counting(getattr(role_choices, name)))
    return done


def test_layers_cost_no_work(work):
    """MindSpore's dynamic programming takes 22 CPU-seconds for 12 layers of a GPT on 8 devices, and 87 for 48."""
    counts = []
    for layers in ("12", "48"):
        work.update(entries=0, priced=0)
        known = understand(question("gpt3-1.3b", overrides=GPT | {"layers": layers}, pins=(UP,)))
        build_space(known.task, known.pins)
        counts.append(dict(work))
    assert counts[0] == counts[1]
    assert 0 < counts[0]["priced"] < 1_500
    assert 0 < counts[0]["entries"] < 200_000


def test_one_block_on_64_chips_at_once(work):
    """MindSpore's dynamic programming does not finish one block on 64 devices."""
    model = build_model(read_model("llama-3-8b"), 4096)
    task = replace(task_of(model, "mindspore", 64), cluster=read_cluster("h100-sxm:64"))
    pins = parse_pins(["layers.*.mlp.up=((1,1),(1,64))"], task.trainer, model)
    taken = []
    for _ in range(3):
        work.update(entries=0, priced=0)
        start = process_time()
        build_space(task, pins)
        taken.append(process_time() - start)
    assert min(taken) < 0.5
    assert work["priced"] < 1_500
    assert work["entries"] < 2_000_000


def test_a_rule_of_the_trainer_holds_however_operators_are_cut():
    whole = tuple(f"{name}.heads=none" for name in ("attn.core", "attn.out"))
    fault = refusal("tp=64", *whole, cluster="h100-sxm:64")[-1]
    assert fault.code == "D02"
    assert "however pins let operators be cut" in fault.fix[-1]
    assert not refusal("tp=64", cluster="h100-sxm:64")[-1].fix
