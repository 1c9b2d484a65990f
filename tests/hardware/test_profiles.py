import re

import pytest

from planner.documented import descriptions
from planner.frontends.catalog import data_folder, entries
from planner.frontends.cluster_file import read_chip, read_cluster
from planner.frontends.hardware_files import ChipFile, ClusterFile, links
from planner.frontends.yaml_source import load_packaged
from planner.hardware.mesh import members
from planner.units import GIB

CHIPS = [entry.name for entry in entries("chip")]
CLUSTERS = [entry.name for entry in entries("cluster")]


def test_there_are_enough_profiles():
    assert len(CHIPS) >= 25
    assert len(CLUSTERS) >= 12


def test_names_and_aliases_are_unique_over_chips_and_clusters():
    every = [*entries("chip"), *entries("cluster")]
    names = [name for entry in every for name in (entry.name, *entry.aliases)]
    assert sorted(names) == sorted(set(names))
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) for name in names)


@pytest.mark.parametrize("name", CHIPS)
def test_chip_profile(name):
    path = data_folder("hardware_profiles") / "chips" / f"{name}.yaml"
    raw = load_packaged(path)
    assert raw["name"] == name
    assert raw["cluster"] in CLUSTERS
    assert raw["measured"].strip()
    numeric = {key for key, value in raw.items() if isinstance(value, int | float | dict)}
    numeric -= {"sources"}
    assert len(numeric) >= 8
    assert numeric <= raw["sources"].keys()
    assert all(source.strip() for source in raw["sources"].values())
    for key in ("matmul_efficiency", "attention_efficiency", "memory_efficiency"):
        first = raw["sources"][key].split()[0].rstrip(":")
        assert first in ("fitted", "measured", "borrowed", "assumed"), key


@pytest.mark.parametrize("name", CHIPS)
def test_chip_is_physically_plausible(name):
    chip = read_chip(name)
    assert 8 <= chip.memory_bytes / GIB <= 400
    assert 250e9 <= chip.memory_bandwidth <= 10e12
    assert "bf16" in chip.peak or "fp16" in chip.peak
    for precision, peak in chip.peak.items():
        assert 5e12 <= peak <= (2e16 if precision == "fp4" else 6e15)
        assert 0.25 <= chip.efficiency_for(precision) <= 0.95
    sixteen = chip.peak.get("bf16") or chip.peak["fp16"]
    assert 20 <= sixteen / chip.memory_bandwidth <= 600, "FLOPs a byte"
    assert 1 <= chip.peak.get("fp8", sixteen) / sixteen <= 2.1
    assert chip.attention_efficiency <= chip.efficiency_for(next(iter(chip.peak)))
    assert 0.7 <= chip.memory_efficiency <= 1
    assert 1e-6 <= chip.matmul_latency <= 20e-6
    assert 1 <= chip.matmul_sharpness <= 5
    assert 0.5e-6 <= chip.launch <= 10e-6
    assert chip.watts is None or 50 <= chip.watts <= 1500
    assert (chip.price is None) == (chip.price_source == "")
    assert chip.price is None or 0.05 <= chip.price <= 20


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_profile(name):
    path = data_folder("hardware_profiles") / "clusters" / f"{name}.yaml"
    raw = load_packaged(path)
    assert raw["name"] == name
    assert raw["num_chips"] % raw["chips_per_host"] == 0
    assert "size" not in raw["levels"][-1], "nothing limits the outermost level"
    wanted = {"num_chips", "chips_per_host", "host_bandwidth_gbps"}
    wanted |= {level["name"] for level in raw["levels"]}
    assert wanted <= raw["sources"].keys()
    assert all(level["link"] in links() for level in raw["levels"])


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_is_physically_plausible(name):
    cluster = read_cluster(name)
    for inner, outer in zip(cluster.levels, cluster.levels[1:], strict=False):
        assert inner.achieved >= outer.achieved
        assert inner.latency <= outer.latency
    for level in cluster.levels:
        assert 0.2e9 <= level.achieved <= 1e12
        assert 0.1 <= level.efficiency <= 1
        assert 1e-6 <= level.latency <= 100e-6
    assert 10e9 <= cluster.host_bandwidth <= 200e9
    assert cluster.levels[0].bandwidth < cluster.chip.memory_bandwidth
    counts = members(cluster.num_chips, 1, cluster.groups)
    assert counts.prod() == cluster.num_chips


def test_every_kind_of_link_is_used_and_has_a_source():
    used = {level.link for name in CLUSTERS for level in read_cluster(name).levels}
    assert used | {"unknown"} == set(links())
    assert all(link.source for link in links().values())


def test_every_number_of_a_file_has_a_documented_key():
    readme = (data_folder("hardware_profiles") / "README.md").read_text(encoding="utf-8")
    for model in (ChipFile, ClusterFile, ClusterFile.model_fields["levels"].annotation.__args__[0]):
        assert set(descriptions(model)) == set(model.model_fields)
        for key in model.model_fields:
            assert f"`{key}`" in readme
