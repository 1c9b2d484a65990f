"""Pools of different chips after ``--cluster`` and in files, and what is said where they are wrong."""

from __future__ import annotations

import pytest

from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.frontends.pools_file import read_pools

GOOD = """\
name: two-halls
pools:
  - h100-sxm:64
  - name: old
    chip: a100-sxm-80gb
    num_chips: 32
    chips_per_host: 8
    levels:
      - {name: node, size: 8, link: nvlink3}
      - {name: network, link: infiniband, bandwidth_gbps: 200 Gb/s}
link: {name: between halls, link: ethernet, bandwidth_gbps: 100 Gb/s}
"""


def write(folder, text):
    path = folder / "pools.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def faults(spec, folder=None):
    with pytest.raises(PlannerError) as caught:
        read_pools(spec)
    prefix = f"{folder}/" if folder else ""
    return [(f.code, f.where.removeprefix(prefix), f.what) for f in caught.value.faults]


@pytest.mark.parametrize("spec", ["v100:12 + t4:4", "v100:12+t4:4", "v100:3x4 +t4:1x4"])
def test_clusters_are_joined_by_a_plus(spec):
    pools = read_pools(spec)
    assert [(pool.chip.name, pool.num_chips) for pool in pools.pools] == [
        ("v100-sxm-16gb", 12),
        ("t4", 4),
    ]
    assert (pools.name, pools.num_chips) == (spec, 16)


def test_the_network_between_is_the_slower_of_both_unless_a_file_says():
    pools = read_pools("h100-sxm:64 + a100-sxm-80gb:64")
    assert pools.link.bandwidth == read_cluster("a100-sxm-80gb:64").levels[-1].bandwidth
    assert pools.link.size is None
    assert pools.assumed == ("200 Gb/s a chip between pools (the slower of their networks)",)


def test_one_kind_of_chip_is_no_pools(tmp_path):
    assert read_pools("h100-sxm:64") is None
    assert read_pools("dgx-h100") is None
    plus = tmp_path / "a+b.yaml"
    plus.write_text("name: x\n", encoding="utf-8")
    assert read_pools(str(plus)) is None


def test_pools_of_one_name_are_numbered():
    assert [pool.name for pool in read_pools("t4:4 + h100:8 + t4:8").pools] == [
        "t4 1",
        "h100-sxm",
        "t4 2",
    ]


def test_a_file_has_pools_of_both_forms_and_a_link(tmp_path):
    pools = read_pools(write(tmp_path, GOOD))
    assert [(pool.name, pool.num_chips) for pool in pools.pools] == [("h100-sxm", 64), ("old", 32)]
    assert (pools.link.name, pools.link.bandwidth) == ("between halls", 12.5e9)
    assert pools.assumed == ()


@pytest.mark.parametrize(
    ("old", "new", "code", "where"),
    [
        ("h100-sxm:64", "h101-sxm:64", "C01", "pools.yaml:3:5"),
        ("chip: a100-sxm-80gb", "chip: a1000", "C01", "pools.yaml:5:11"),
        ("size: 8,", "size: 0,", "U02", "pools.yaml:9:28"),
        ("size: 8,", "seize: 8,", "Y01", "pools.yaml:9:22"),
        ("200 Gb/s", "200", "U01", "pools.yaml:10:59"),
        ("100 Gb/s}", "100 apples}", "U02", "pools.yaml:11:61"),
        ("link: ethernet", "link: rope", "C01", "pools.yaml:11:35"),
        ("name: two-halls", "nome: two-halls", "Y01", "pools.yaml:1:1"),
        ("  - h100-sxm:64\n", "  - 64\n", "U02", "pools.yaml:3:5"),
    ],
)
def test_faults_have_their_places(tmp_path, old, new, code, where):
    assert old in GOOD
    found = faults(write(tmp_path, GOOD.replace(old, new)), tmp_path)
    assert (code, where) in [(code, where) for code, where, _ in found]


def test_all_faults_of_a_file_are_told_together(tmp_path):
    text = GOOD.replace("h100-sxm:64", "h101:64").replace("link: ethernet", "link: rope")
    assert [code for code, _, _ in faults(write(tmp_path, text), tmp_path)] == ["C01", "C01"]


def test_one_pool_is_not_enough(tmp_path):
    found = faults(write(tmp_path, "name: x\npools: [h100:8]\n"), tmp_path)
    assert [(code, where) for code, where, _ in found] == [("U02", "pools.yaml:2:8")]


@pytest.mark.parametrize("spec", ["h100:8 +", "+ h100:8", "h100:8 + + t4:4"])
def test_a_plus_stands_between_pools(spec):
    assert [code for code, _, _ in faults(spec)] == ["C06"]


@pytest.mark.parametrize("spec", ["h100:8 + h101:8", "h100:8 + t4:none"])
def test_wrong_pools_are_told_as_wrong_clusters(spec):
    assert faults(spec)[0][0] in ("C01", "C02")


def test_what_needs_one_kind_of_chip_says_so(tmp_path):
    for spec in ("h100:8 + t4:4", write(tmp_path, GOOD)):
        with pytest.raises(PlannerError) as caught:
            read_cluster(spec)
        assert [fault.code for fault in caught.value.faults] == ["C06"]
        assert spec in caught.value.faults[0].what
