"""What a stated layout leaves open: the fastest that fits is chosen, and said."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from planner.api import Plan, PlannerError, Question, check, plan, price
from planner.plan.layout import layout_of
from planner.report.markdown import render_markdown
from planner.report.tables import plain
from planner.report.text import render

LLAMA = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64, seq_len=4096)
EXPERTS = Question(model="qwen3-30b-a3b", cluster="h100-sxm:16", global_batch=64, seq_len=4096)
DEGREES = {"dp": 2, "tp": 4, "pp": 2, "cp": 1, "ep": 1, "etp": 1}
LAYOUTS = [
    (LLAMA, DEGREES),
    (LLAMA, DEGREES | {"mbs": 2, "recompute": "full"}),
    (LLAMA, DEGREES | {"vpp": 4, "zero": "none"}),
    (EXPERTS, DEGREES | {"dp": 8, "tp": 1, "ep": 8, "sp": "off"}),
]


def pins_of(layout: dict[str, int | str]) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in layout.items())


@pytest.mark.parametrize(
    ("question", "layout"), [*LAYOUTS, (replace(LLAMA, trainer="torchtitan"), DEGREES)]
)
def test_it_is_what_a_plan_under_these_pins_would_be(question, layout):
    """Stages apart: a layout that states what layers recompute has even ones."""
    found = price(question, layout)
    best = plan(replace(question, pins=pins_of(layout)))
    assert isinstance(best, Plan)
    words = layout_of(found.degrees)
    assert all(str(words[key]) == str(value) for key, value in layout.items())
    assert found.left_open is not None
    assert not set(found.left_open.chosen) & set(layout)
    if "recompute" in layout or "vpp" in layout:  # a plan may have uneven stages then
        assert best.step <= found.step * (1 + 1e-9)
    else:
        assert found.step == pytest.approx(best.step)


@pytest.mark.parametrize(("question", "layout"), LAYOUTS)
def test_nothing_that_could_have_been_chosen_is_faster(question, layout):
    found = price(question, layout)
    stated = {"recompute": "none"} | layout | {"order": "tp-cp-dp-pp"}
    tried = [
        price(question, stated | {"mbs": mbs, "vpp": vpp, "zero": zero, "sp": sp})
        for mbs, vpp, zero, sp in product(
            *(
                [layout[key]] if key in layout else values
                for key, values in {
                    "mbs": (1, 2, 4),
                    "vpp": (1, 2),
                    "zero": ("none", "ZeRO-1"),
                    "sp": ("off", "on") if layout["tp"] > 1 else ("off",),
                }.items()
            )
        )
    ]
    assert all(each.left_open is None for each in tried)
    assert all(each.proof.searched == 1 for each in tried)
    assert any(each.fits for each in tried)
    assert all(found.step <= each.step * (1 + 1e-9) for each in tried if each.fits)


def test_the_defaults_stand_beside_it():
    found = price(LLAMA, DEGREES)
    alone = price(LLAMA, DEGREES, usual=True)
    usual = found.left_open.usual
    assert alone.left_open is None
    assert (usual.degrees, usual.fits) == (alone.degrees, alone.fits)
    assert usual.step == pytest.approx(alone.step)
    assert usual.mfu == pytest.approx(alone.mfu)
    assert usual.memory == pytest.approx(alone.memory)
    assert found.step < usual.step
    page = plain(render(found))
    assert "  Left open mbs=" in page
    assert "(the fastest that fits)" in page
    assert "  Defaults " in page
    assert "megatron by itself" in page
    assert "ways to fill in what was left open" in page
    assert "- Left open: mbs=" in render_markdown(found)


def test_one_length_of_chunks_is_no_range():
    """And the layers of one stage are no chunk."""
    one, four = (
        " ".join(plain(render(price(LLAMA, {"tp": 1} | stages))).split())
        for stages in ({"pp": 1}, {"pp": 4, "vpp": 8, "stage-layers": "+".join("1" * 32)})
    )
    assert "a chunk" not in one
    assert "stages of" not in one
    assert " 1 layer a chunk" in four
    assert "to 1 layer" not in four


def test_a_whole_layout_is_one_layout():
    whole = layout_of(price(LLAMA, DEGREES).degrees)
    found = price(LLAMA, whole)
    assert found.left_open is None
    page = plain(render(found))
    assert "Priced this one layout; nothing was searched." in page
    assert "Left open" not in page


def test_where_nothing_fits_it_needs_least_memory():
    tight = Question(
        model="llama-3-70b", cluster="h100-sxm:16", global_batch=64, pins=("offload=none",)
    )
    found = price(tight, {"tp": 2, "pp": 2})
    assert not found.fits
    assert found.proof.fitting == 0
    assert found.degrees.recompute == "full"
    assert found.memory <= found.left_open.usual.memory
    for recompute, mbs in product(("none", "selective", "full"), (1, 2)):
        other = price(tight, {"tp": 2, "pp": 2, "recompute": recompute, "mbs": mbs})
        assert found.memory <= other.memory * (1 + 1e-9)
    assert "None of " in plain(render(found))


def test_host_memory_is_left_open_where_nothing_fits_without():
    asked = Question(
        model="llama-3-8b",
        cluster="rtx-3090:8",
        trainer="fsdp",
        global_batch=16,
        seq_len=1024,
        precision="fp16",
    )
    layout = {"zero": 3, "mbs": 1, "recompute": "full"}
    found = price(asked, layout)
    assert found.fits
    best = plan(replace(asked, pins=(*pins_of(layout), "dp=8", "offload=any")))
    assert found.left_open.chosen["offload"] == best.degrees.offload != "none"
    assert found.step == pytest.approx(best.step)
    for held in (price(asked, layout | {"offload": "none"}), price(asked, layout, usual=True)):
        assert not held.fits
        assert held.degrees.offload == "none"
    page = " ".join(plain(render(price(asked, layout | {"offload": "none"}))).split())
    assert "Left open shard-group=8 (nothing fits: this needs least memory)" in page


def test_defaults_that_cannot_run_are_said_with_their_reason():
    """ZBV has two chunks a stage, and one is the default."""
    found = price(replace(LLAMA, trainer="torchtitan"), {"pp": 4, "schedule": "zbv"})
    assert found.degrees.vpp == 2
    assert found.left_open.usual is None
    assert "zbv" in found.left_open.refused
    assert "torchtitan cannot run what it would take itself" in plain(render(found))


def test_layers_that_are_divided_leave_the_rest_open():
    layout = {"tp": 4, "pp": 2, "stage-layers": "17+15"}
    found = price(LLAMA, layout)
    assert found.degrees.layers == (17, 15)
    assert found.degrees.vpp == 1
    assert {"mbs", "zero", "recompute"} <= set(found.left_open.chosen)
    whole = layout_of(found.degrees)
    assert price(LLAMA, whole).step == pytest.approx(found.step)
    for mbs, recompute in product((1, 2, 4), ("none", "selective", "full")):
        other = price(LLAMA, layout | {"mbs": mbs, "recompute": recompute})
        assert not other.fits or found.step <= other.step * (1 + 1e-9)


def test_pins_hold_on_what_is_open_and_agree_with_what_is_stated():
    found = price(replace(LLAMA, pins=("mbs>=2", "tp=4")), DEGREES)
    assert found.degrees.micro_batch >= 2
    assert found.pins == (*pins_of(DEGREES), "mbs>=2")
    with pytest.raises(PlannerError) as stated:
        price(replace(LLAMA, pins=("tp=8",)), DEGREES)
    assert "contradicts the stated layout" in str(stated.value)
    with pytest.raises(PlannerError) as nothing:
        price(replace(LLAMA, pins=("mbs>32",)), DEGREES | {"dp": 2})
    assert "contradicts the stated layout" in str(nothing.value)


def test_a_plan_that_is_checked_leaves_nothing_open():
    best = plan(LLAMA)
    assert isinstance(best, Plan)
    found = check(best, Question(model="", cluster=""), search=False)
    assert found.plan is not None
    assert found.plan.left_open is None
    assert found.plan.step == pytest.approx(best.step)
