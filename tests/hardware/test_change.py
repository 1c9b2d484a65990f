"""What-ifs change one number of a cluster and nothing else."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.hardware.change import changed, hardware_numbers
from planner.plan.fingerprint import fingerprint

CLUSTER = read_cluster("h100-sxm:64")


def test_every_number_can_be_put_and_multiplied() -> None:
    numbers = hardware_numbers(CLUSTER)
    assert {
        "chip.peak",
        "chip.memory",
        "chip.price",
        "node.bandwidth",
        "network.latency",
        "chip.matmul_efficiency",
        "chip.attention_efficiency",
        "chip.memory_efficiency",
        "host.bandwidth",
        "network.efficiency",
    } <= numbers.keys()
    for name, number in numbers.items():
        assert number.value > 0
        assert number.put(number.value) == CLUSTER, name
        again = hardware_numbers(number.times(0.5))
        for other, now in again.items():
            factor = 0.5 if other == name else 1.0
            assert now.value == pytest.approx(factor * numbers[other].value), (name, other)


def test_a_peak_scales_all_precisions() -> None:
    found, words = changed(CLUSTER, "chip.peak=0.5x")
    assert found.chip.peak == {name: 0.5 * flops for name, flops in CLUSTER.chip.peak.items()}
    assert words == "peak FLOP/s of a chip × 0.5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("network.bandwidth=400 Gb/s", 50e9),
        ("network.bandwidth=25GB/s", 25e9),
        ("network.latency = 5 us", 5e-6),
        ("network.bandwidth=.5x", 25e9),
    ],
)
def test_values_have_units(text: str, value: float) -> None:
    found, _ = changed(CLUSTER, text)
    kind = text.partition("=")[0].strip().partition(".")[2]
    assert getattr(found.levels[1], kind) == pytest.approx(value)
    assert replace(found, levels=CLUSTER.levels) == CLUSTER


def test_an_efficiency_stops_at_one() -> None:
    assert hardware_numbers(CLUSTER)["network.efficiency"].times(9.0).levels[1].efficiency == 1.0
    most = hardware_numbers(CLUSTER)["chip.matmul_efficiency"].times(9.0).chip.matmul_efficiency
    assert 1.0 - 1e-9 < max(most.values()) <= 1.0
    assert changed(CLUSTER, "chip.memory_efficiency=0.5")[0].chip.memory_efficiency == 0.5


def test_a_price_can_be_given_where_none_is_known() -> None:
    ascend = read_cluster("ascend-910c:64")
    assert ascend.chip.price is None
    found, _ = changed(ascend, "price=$2.50")
    assert found.chip.price == 2.5
    with pytest.raises(PlannerError, match="more than nothing"):
        changed(ascend, "price=2x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node.bandwith=2x", "Nearest: node.bandwidth"),
        ("node.bandwidth", "is not NUMBER=VALUE"),
        ("node.bandwidth=400", "400 Gb/s or 50 GB/s"),
        ("chip.memory_efficiency=1.2", "at most 1"),
        ("chip.memory_efficiency=high", "0.8"),
        ("chip.memory=0x", "more than nothing"),
        ("chip.memory=-1x", "is no value"),
        ("chip.price=cheap", "2.50"),
        ("chip.memory=inf", "is no value"),
    ],
)
def test_what_is_no_what_if(text: str, words: str) -> None:
    with pytest.raises(PlannerError) as caught:
        changed(CLUSTER, text)
    assert [fault.code for fault in caught.value.faults] == ["C05"]
    assert words in str(caught.value)


def test_a_stated_efficiency_has_no_other_source() -> None:
    cluster, _ = changed(CLUSTER, "chip.matmul_efficiency=0.6")
    assert cluster.chip.sources["matmul_efficiency"] == "stated: a what-if"
    assert cluster.chip.sources["memory_efficiency"] == CLUSTER.chip.sources["memory_efficiency"]


def test_other_words_about_sources_leave_plans_as_they_are() -> None:
    """A plan is stale when a number of its cluster changes, not when a sentence does."""
    said = replace(CLUSTER.chip, sources={}, measured="anew")
    slower = replace(CLUSTER.chip, launch=2 * CLUSTER.chip.launch)
    mine, words, numbers = (
        fingerprint(asdict(replace(CLUSTER, chip=chip))) for chip in (CLUSTER.chip, said, slower)
    )
    assert mine == words != numbers
