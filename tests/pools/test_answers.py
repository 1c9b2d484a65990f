"""Plans on pools of different chips: which way wins, what the others take, and what a stated layout costs."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import groupby, pairwise, product

import pytest

from planner.asking import plan, price, sensitive
from planner.errors import PlannerError
from planner.export.targets import export
from planner.frontends.pools_file import read_pools
from planner.hardware.change_pools import changed_pools
from planner.plan.layout import layout_of
from planner.question import Question
from planner.report.html import findings
from planner.report.html.page import render_html
from planner.report.text import render
from planner.studies.again import reopen, staleness
from planner.studies.compare import compare
from planner.studies.neighbours import neighbours
from planner.studies.size import size
from tests.pools.sites import asked

FAST = "h100-sxm:4 + t4:4"
PINNED = ("cp=1", "zero=1", "mbs=1", "pp=1")


@pytest.fixture(scope="module")
def staged():
    """Two pools that are about as fast: stages stand on both, of one chunk each."""
    question = Question(
        model="gpt2-xl", cluster="a100-sxm-80gb:1x4 + h100-sxm:1x4", global_batch=256,
        pins=("tp=1", "cp=1", "zero=1", "pp=2", "vpp=1"), precision="bf16",
        overrides={"layers": "24"},
    )  # fmt: skip
    return question, plan(question)


@pytest.fixture(scope="module")
def alone():
    question = asked(FAST, model="gpt2", layers=6, batch=16, precision="fp16", pins=PINNED)
    return question, plan(question)


def test_ways_are_sorted_and_the_first_is_the_plan(staged, alone):
    for _, found in (staged, alone):
        steps = [use.step for use in found.uses if use.step is not None]
        assert steps == sorted(steps)
        assert steps[0] == pytest.approx(found.step)
        assert found.proof.optimal
        assert found.proof.bound <= found.step * (1 + 1e-9)
    assert len(staged[1].uses) == 4
    assert len(alone[1].uses) == 3  # no pipeline at all


def test_stages_say_what_they_stand_on(staged):
    _, found = staged
    assert found.degrees.pools
    assert len(found.degrees.pools) == found.degrees.pp == len(found.stages)
    limits = {pool.name: pool.memory_limit for pool in found.cluster.pools}
    for name, stage in zip(found.degrees.pools, found.stages, strict=True):
        assert stage.chip == name
        assert stage.memory_limit == limits[name]
        assert stage.memory_total <= stage.memory_limit
    assert len(set(found.degrees.pools)) == 2
    used = {pool.name: pool.chips_used for pool in found.cluster.pools}
    each = found.degrees.chips_used // found.degrees.pp
    assert used == {name: found.degrees.pools.count(name) * each for name in used}


def test_slow_chips_stay_idle_where_that_is_faster(alone):
    _, found = alone
    assert found.degrees.pools == ("h100-sxm",) * found.degrees.pp
    assert found.degrees.chips_used == 4
    assert any(text.startswith("Left unused: 4 of 4 chips of t4") for text in found.warnings)
    assert not any("chips are left unused" in text for text in found.warnings)


def test_a_plan_is_priced_again_as_it_was_found(staged, alone):
    for question, found in (staged, alone):
        again = price(question, layout_of(found.degrees, found.pins))
        assert again.step == pytest.approx(found.step, rel=1e-9)
        assert again.degrees == found.degrees
        assert staleness(found) == ""


def test_without_pools_every_stage_has_chips_of_all(alone):
    question, found = alone
    spread = price(question, {"tp": 1, "mbs": 1})
    assert spread.degrees.dp == 8
    assert spread.degrees.pools == ()
    assert spread.stages[0].chip == "h100-sxm + t4"
    small = min(pool.memory_limit for pool in spread.cluster.pools)
    assert spread.memory_limit == small
    assert spread.step > found.step


@pytest.mark.parametrize(
    ("layout", "code"),
    [
        ({"pools": "h100-sxm:1+a100:1"}, "N02"),
        ({"pools": "h100-sxm:none"}, "N02"),
        ({"pools": "h100-sxm:1+t4:1+h100-sxm:1"}, "N02"),
        ({"pools": "h100-sxm:1+t4:1", "pp": 4}, "D01"),
        ({"pools": "h100-sxm:1+t4:1", "dp": 8}, "D01"),
        ({"tp": 5}, "D02"),
    ],
)
def test_layouts_that_cannot_be(alone, layout, code):
    question, _ = alone
    with pytest.raises(PlannerError) as caught:
        price(question, layout)
    assert code in {fault.code for fault in caught.value.faults}


@pytest.mark.parametrize(
    "more",
    [{"objective": "cost-per-token"}, {"pins": ("attn.q.heads=tp",)}],
)
def test_what_pools_do_not_take_is_refused(more):
    with pytest.raises(PlannerError) as caught:
        plan(asked(FAST, **more))
    assert [fault.code for fault in caught.value.faults] == ["C06"]


@pytest.mark.parametrize("objective", ["pareto", "fewest-chips", "cost-per-token"])
def test_an_objective_that_pools_do_not_take_has_a_nearest_one_that_works(objective):
    question = asked(FAST, model="gpt2", layers=6, batch=16, precision="fp16", pins=PINNED)
    with pytest.raises(PlannerError) as caught:
        plan(replace(question, objective=objective))
    (fault,) = caught.value.faults
    words = shlex.split(fault.fix[0])
    specs = [spec for flag, spec in pairwise(words) if flag == "--cluster"]
    if objective == "pareto":
        share = words[words.index("--memory-limit") + 1]
        assert plan(replace(question, memory_limit=share)).step >= plan(question).step
        return
    rows = compare(question, clusters=[spec.rstrip(";") for spec in specs]).rows
    assert {row.cluster for row in rows} == {"h100-sxm:4", "t4:4", FAST}
    assert all(row.fits for row in rows)


def test_rows_of_a_pool_alone_are_explained_as_they_were_found(alone):
    question, found = alone
    again = reopen(found)
    assert len(found.alternatives) > 1
    for row in found.alternatives:
        assert again.row(row).step == pytest.approx(row.step, rel=1e-9)
    assert question.what_if == ()


def test_what_ifs_change_one_pool_all_of_them_or_the_network_between(staged):
    question, found = staged
    layout = layout_of(found.degrees, found.pins)

    def step(*what_if):
        return price(replace(question, what_if=what_if), layout)

    first = found.degrees.pools[0]
    faster = step(f"{first}.peak=2x")
    assert faster.step < found.step
    assert f"{first}: what if: peak FLOP/s of a chip × 2" in {a.text for a in faster.assumptions}
    every = step("chip.peak=2x")
    assert every.step < faster.step
    slow = step("link.bandwidth=0.01x")
    assert slow.step > found.step
    assert slow.cluster.link.bandwidth == pytest.approx(0.01 * found.cluster.link.bandwidth)
    assert staleness(faster) == ""
    with pytest.raises(PlannerError) as caught:
        step("t4.peak=2x")
    assert "POOL.NUMBER" in caught.value.faults[0].fix[-1]


def test_the_network_between_pools_follows_theirs_unless_it_is_stated():
    pools = read_pools("a100-sxm-80gb:16 + h100-sxm:16")
    half = changed_pools(pools, "network.bandwidth=0.5x")
    assert half.link.bandwidth == pytest.approx(0.5 * pools.link.bandwidth)
    assert half.assumed == ("100 Gb/s a chip between pools (the slower of their networks)",)
    stated = changed_pools(changed_pools(pools, "link.bandwidth=0.5x"), "network.bandwidth=2x")
    assert stated.link.bandwidth == pytest.approx(half.link.bandwidth)


def test_the_own_layout_is_a_row_on_pools(staged, alone):
    for question, found in (staged, alone):
        mine = {"tp": 1, "mbs": 1, "pp": 2}
        other = plan(replace(question, warm_start=mine))
        assert [row for row in other.alternatives if row.own]
        assert other.step == pytest.approx(found.step)
        same = plan(replace(question, warm_start=layout_of(found.degrees, found.pins)))
        assert same.alternatives[0].own
    own = next(row for row in other.alternatives if row.own)
    assert own.step == pytest.approx(price(replace(question, pins=()), mine).step)


def test_every_number_of_pools_has_a_sensitivity(staged):
    question, found = staged
    told = {each.name: each for each in sensitive(question, found)}
    first = found.degrees.pools[0]
    peak = told[f"{first}.chip.peak"]
    assert peak.high < found.step < peak.low
    layout = layout_of(found.degrees, found.pins)
    for name, each in list(told.items())[:3]:
        again = price(replace(question, what_if=(f"{name}=0.8x",)), layout)
        assert again.step == pytest.approx(each.low)
    assert "link.bandwidth" in told
    drawn = price(replace(question, figures=True), layout)
    assert {each.name for each in drawn.figures.sensitivities} == set(told)


def test_pools_stand_among_clusters_and_prices_go_to_each(staged):
    question, found = staged
    spec = question.cluster
    rows = compare(
        question,
        clusters=(spec, "h100-sxm:1x4"),
        what_if=("link.latency=2x",),
        dollars={"h100-sxm": 1.0, "a100-sxm-80gb": 1.0},
    ).rows
    assert [row.fits for row in rows] == [True, True, True, False]
    assert rows[0].step == pytest.approx(found.step)
    assert rows[0].kind == spec
    dollars = 8 / 3600 * found.step / found.recipe.global_batch / found.recipe.seq * 1e6
    assert rows[0].price_per_million_tokens == pytest.approx(dollars)
    assert "no number 'link.latency'" in rows[3].note
    with pytest.raises(PlannerError) as caught:
        compare(question, chips=(8,))
    assert "of which pool" in caught.value.faults[0].what


def test_sizes_of_pools(alone):
    question, _ = alone
    with pytest.raises(PlannerError) as caught:
        size(question)
    assert caught.value.faults[0].code == "C06"
    found = size(question, largest="global-batch", step=1.0)
    assert found.value
    assert found.answer.step <= 1.0
    beside = neighbours(question, plan(question))
    assert [row.cluster for row in beside.rows] == [
        "h100-sxm:2 + t4:2", "h100-sxm:4 + t4:4", "h100-sxm:8 + t4:8",
    ]  # fmt: skip


def test_a_precision_that_one_pool_lacks_is_refused():
    with pytest.raises(PlannerError) as caught:
        plan(asked(FAST, precision="bf16"))
    assert caught.value.faults[0].code == "C04"
    assert "t4" in caught.value.faults[0].what


def test_nothing_fits_tells_the_closest_miss():
    found = plan(asked("t4:2 + v100-sxm-16gb:2", model="llama-3-70b", layers=80, seq_len=2048))
    assert not hasattr(found, "stages")
    assert found.explanation.startswith("No way to use the pools fits")


def test_exports_name_the_order_of_nodes_and_refuse_two_vendors(staged):
    _, found = staged
    shell = next(file for file in export(found, "megatron") if file.name.endswith(".sh"))
    first, second = found.degrees.pools
    assert f"start ranks 0-3 on {first}, 4-7 on {second}" in shell.text
    npus = tuple(
        pool.model_copy(update={"vendor": "huawei"}) if index else pool
        for index, pool in enumerate(found.cluster.pools)
    )
    other = found.model_copy(update={"cluster": found.cluster.model_copy(update={"pools": npus})})
    with pytest.raises(PlannerError) as caught:
        export(other, "megatron")
    assert "huawei and nvidia" in caught.value.faults[0].what


def test_the_page_says_where_stages_stand_and_what_the_ways_take(staged, alone):
    page = "\n".join("".join(span.text for span in line) for line in render(staged[1], width=100))
    first, second = staged[1].degrees.pools
    assert f"stage 0 on {first}, stage 1 on {second}" in " ".join(page.split())
    for use in staged[1].uses:
        assert use.text in page
    assert "None is faster in this cost model" in page
    told = render(staged[1], width=100, detail=("time",))
    lines = ["".join(span.text for span in line).split() for line in told]
    assert ["0", first] in [line[:2] for line in lines]
    assert ["1", second] in [line[:2] for line in lines]
    assert "memory" not in page.split("Removed:")[-1] or "Removed:" not in page
    spread = price(alone[0], {"tp": 1, "mbs": 1})
    page = " ".join("".join(span.text for span in line) for line in render(spread, width=100))
    assert "every stage on chips of all pools" in " ".join(page.split())


def test_the_report_compares_ways_and_claims_no_count_that_it_lacks(staged):
    question, found = staged
    text = findings.alternatives(found)
    second = found.uses[1]
    assert f"the next is {second.text}, " in text
    assert "Only this layout" not in text
    assert "looked at, on one pool" in findings.removed(found, found.figures)
    page = render_html(plan(replace(question, figures=True)))
    table = page.partition('id="ways-table"')[2].partition("</table>")[0]
    for use in found.uses:
        assert use.text in table
    assert found.cluster.efficiency_sources


@pytest.mark.parametrize("vpp", [1, 2, 4])
@pytest.mark.parametrize(("pool", "pp"), [("v100-sxm-32gb", 3), ("t4", 4)])
def test_stages_on_one_pool_cost_what_they_cost_on_it_alone(pool: str, pp: int, vpp: int) -> None:
    """Sends over the pools' own network too, from the last stage back to the first between virtual stages."""
    clusters = {"t4": "t4:1x8", "v100-sxm-32gb": "v100-sxm-32gb:3x2"}
    facts = {
        "model": "gpt2-xl", "global_batch": 48, "seq_len": 1024, "overrides": {"layers": "48"},
    }  # fmt: skip
    layout = {"pp": pp, "dp": 2, "vpp": vpp, "recompute": "full"}
    question = Question(cluster=" + ".join(clusters.values()), **facts)
    for usual in (True, False):
        alone = price(Question(cluster=clusters[pool], **facts), layout, usual=usual)
        beside = price(question, layout | {"pools": f"{pool}:{pp}"}, usual=usual)
        assert beside.step == pytest.approx(alone.step, rel=1e-12)
        assert beside.memory == pytest.approx(alone.memory, rel=1e-12)
        assert beside.time == alone.time
        assert (beside.left_open is None) == (alone.left_open is None)
        if alone.left_open is not None:
            assert beside.left_open.chosen == alone.left_open.chosen


def test_chunks_on_pools_may_be_stated_unequal() -> None:
    """As on one cluster: a plan whose search cut them so can be priced again."""
    question = Question(
        cluster="t4:1x8 + v100-sxm-32gb:3x2", model="gpt2-xl", global_batch=48, seq_len=1024
    )
    layout = {"pp": 2, "dp": 2, "vpp": 3, "pools": "v100-sxm-32gb:1+t4:1", "recompute": "full"}
    cut = (12, 4, 12, 4, 12, 4)
    found = price(question, layout | {"stage-layers": "+".join(map(str, cut))})
    assert found.degrees.layers == cut
    again = layout_of(found.degrees, found.pins)
    assert price(question, again, usual=True).step == pytest.approx(found.step, rel=1e-12)
    with pytest.raises(PlannerError, match="cannot be cut equally"):
        price(question, layout | {"vpp": 7})


def test_what_a_layout_on_several_pools_leaves_open_is_chosen(staged) -> None:
    """The plan's own degrees and pools alone lead back to it; no way to fill them in by hand is faster."""
    question, found = staged
    d = found.degrees
    pools = "+".join(f"{name}:{len(list(group))}" for name, group in groupby(d.pools))
    layout = {"tp": d.tp, "cp": d.cp, "pp": d.pp, "dp": d.dp, "pools": pools}
    chosen = price(question, layout)
    assert chosen.step == pytest.approx(found.step, rel=1e-9)
    assert chosen.left_open is not None
    assert {"mbs", "recompute"} <= set(chosen.left_open.chosen)
    usual = price(question, layout, usual=True)
    assert usual.left_open is None
    assert usual.step >= chosen.step or not usual.fits
    for mbs, recompute in product((1, 2, 4), ("none", "full")):
        stated = price(question, layout | {"mbs": mbs, "recompute": recompute}, usual=True)
        assert stated.step >= chosen.step * (1 - 1e-9) or not stated.fits


def test_what_a_layout_on_all_pools_leaves_open_is_chosen(alone) -> None:
    question = replace(alone[0], pins=())
    chosen = price(question, {"tp": 1})
    assert chosen.left_open is not None
    for mbs, recompute in product((1, 2), ("none", "full")):
        stated = price(question, {"tp": 1, "mbs": mbs, "recompute": recompute}, usual=True)
        assert stated.step >= chosen.step * (1 - 1e-9) or not stated.fits


def test_rows_beside_a_plan_on_one_pool_name_it() -> None:
    question = asked(FAST, model="gpt2", layers=6, batch=16, precision="fp16", pins=PINNED)
    found = plan(question)
    assert len(set(found.degrees.pools)) == 1
    for row in found.alternatives:
        again = price(question, layout_of(row.degrees))
        assert again.step == pytest.approx(row.step, rel=1e-12)


def test_stages_of_several_chunks_on_both_pools_win_and_are_found_again(staged) -> None:
    """The first micro-batch reaches the second pool earlier: faster than any cut into stages of one chunk."""
    question, single = staged
    free = replace(question, pins=question.pins[:-1])
    found = plan(free)
    assert found.step < 0.95 * single.step
    assert found.degrees.vpp > 1
    assert len(set(found.degrees.pools)) == 2
    assert len(found.degrees.layers) == 2 * found.degrees.vpp
    steps = {use.text: use.step for use in found.uses}
    assert steps["stages on several pools"] == pytest.approx(single.step)
    assert steps["stages of several chunks on several pools"] == pytest.approx(found.step)
    assert found.step * (1 - 1e-3) <= found.proof.bound <= found.step
    assert found.proof.optimal
    again = price(free, layout_of(found.degrees, found.pins))
    assert again.step == pytest.approx(found.step, rel=1e-9)
    assert again.memory <= again.memory_limit


def test_pins_that_no_stages_on_several_pools_have_leave_them_out() -> None:
    question = Question(
        model="gpt2-xl", cluster="t4:1x8 + v100-sxm-32gb:3x2", global_batch=32, seq_len=1024,
        pins=("vpp=2", "mbs=1", "tp=1"),
    )  # fmt: skip
    found = plan(question)
    assert found.degrees.vpp == 2
    assert not any(use.text == "stages on several pools" for use in found.uses)


def test_idle_chips_are_explained_by_the_best_that_they_could_do() -> None:
    """Stages on both pools were not looked at beyond their bound, which is below what all chips alike take."""
    question = asked(
        "h100-sxm:8 + t4:8", model="gpt2", layers=6, batch=16, precision="fp16", pins=PINNED[:3]
    )
    found = plan(question)
    (told,) = (text for text in found.warnings if text.startswith("Left unused"))
    notes = [use.note for use in found.uses if use.text.endswith("on several pools")]
    assert len(notes) == 2
    assert all(note.endswith("or more") for note in notes)
    assert told.endswith(f"as with them the step takes {min(notes)}.")
