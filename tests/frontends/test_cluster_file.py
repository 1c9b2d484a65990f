import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.frontends.catalog import data_folder, entries
from planner.frontends.cluster_file import read_chip, read_cluster
from planner.frontends.hardware_text import dump_chip, dump_cluster
from planner.units import GIB

GOOD = """\
name: mine
num_chips: 64
chips_per_host: 8
chip: {base: h100-sxm, memory_gib: 90}
levels:
  - name: node
    size: 8
    link: nvlink4
    bandwidth_gbps: 450
  - name: network
    link: infiniband
    bandwidth_gbps: 400 Gb/s
"""


def write(folder, text, name="my.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def faults(spec):
    with pytest.raises(PlannerError) as caught:
        read_cluster(spec)
    return caught.value.faults


def fault(folder, *edits):
    """The only fault of the good file after some edits, with the file's folder taken off its place."""
    text = GOOD
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (only,) = faults(write(folder, text))
    return replace(only, where=only.where.removeprefix(f"{folder}/"))


def test_chip_and_count_take_the_levels_of_the_usual_cluster():
    cluster = read_cluster("h100-sxm:256")
    assert (cluster.name, cluster.num_chips) == ("h100-sxm", 256)
    assert [level.size for level in cluster.levels] == [8, None]
    assert cluster.levels[1].bandwidth == 50e9
    assert cluster.assumed == (
        "400 Gb/s a chip between nodes (profile dgx-h100; not measured on your cluster)",
    )


def test_no_network_is_assumed_inside_one_node():
    cluster = read_cluster("h100:4")
    assert (cluster.depth, cluster.groups, cluster.assumed) == (1, (0, 0), ())


def test_profiles_have_a_count_of_their_own_and_take_another():
    assert read_cluster("dgx-h100").num_chips == 256
    assert read_cluster("b200-nvl72:98304").groups == (64, 0)
    assert read_cluster("meta-llama3-rsc:49152").levels[-1].achieved == pytest.approx(45e9 / 7)


@pytest.mark.parametrize(
    ("spec", "chips", "sizes", "host"),
    [
        ("910b:48x8", 384, [8, None], 8),
        ("h100-sxm:32x4", 128, [4, None], 4),
        ("h100-sxm:4x16", 64, [16, None], 8),
        ("gb200:18x4", 72, [72, None], 4),
        ("gb200:2x36", 72, [36, None], 4),
        ("mi250x:4x2", 8, [2, 8, None], 2),
        ("910c:2x384", 768, [384, None], 16),
        ("meta-llama3-rsc:100x4", 400, [4, 3072, None], 4),
    ],
)
def test_nodes_and_chips_in_each(spec, chips, sizes, host):
    cluster = read_cluster(spec)
    assert cluster.num_chips == chips
    assert [level.size for level in cluster.levels] == sizes
    assert cluster.chips_per_host == host


def test_a_smaller_full_mesh_has_fewer_links():
    whole, half = read_cluster("910b:8").levels[0], read_cluster("910b:8x4").levels[0]
    assert half.bandwidth == pytest.approx(whole.bandwidth * 3 / 7)
    assert half.achieved_by(4) == pytest.approx(whole.achieved_by(4))
    assert np.all(half.achieved_by(np.array([2, 4])) == whole.achieved_by(np.array([2, 4])))


def test_own_file_with_a_chip_laid_over_another(tmp_path):
    cluster = read_cluster(write(tmp_path, GOOD))
    assert cluster.chip.memory_bytes == 90 * GIB
    assert cluster.chip.peak == read_chip("h100").peak
    assert cluster.levels[1].bandwidth == 50e9
    assert (cluster.num_chips, cluster.assumed) == (64, ())
    assert read_cluster(write(tmp_path, GOOD) + ":16x8").num_chips == 128


def test_overriding_one_precision_keeps_the_others(tmp_path):
    text = GOOD.replace("memory_gib: 90", "peak_tflops: {bf16: 800}")
    peak = read_cluster(write(tmp_path, text)).chip.peak
    assert (peak["bf16"], peak["fp8"]) == (800e12, 1979e12)


def test_a_chip_shown_to_a_file_is_a_cluster(tmp_path):
    shown = (data_folder("hardware_profiles") / "chips" / "h100-sxm.yaml").read_text()
    for text in (shown, dump_chip(read_chip("h100-sxm"))):
        path = write(tmp_path, text)
        assert read_chip(path) == read_chip("h100-sxm")
        assert read_cluster(f"{path}:16") == read_cluster("h100-sxm:16")
        assert read_cluster(path) == read_cluster("h100-sxm")


@pytest.mark.parametrize("kind", ["chip", "cluster"])
def test_dumps_read_back_equal(kind, tmp_path):
    names = [entry.name for entry in entries(kind)]
    assert len(names) > 12
    for name in names[::3]:
        if kind == "chip":
            chip = read_chip(name)
            assert read_chip(write(tmp_path, dump_chip(chip))) == chip
        else:
            cluster = read_cluster(name)
            assert read_cluster(write(tmp_path, dump_cluster(cluster))) == cluster


def test_hardware_what_ifs(tmp_path):
    cluster = read_cluster("h100-sxm:256")
    node, network = cluster.levels
    slower = replace(cluster, levels=(node, replace(network, bandwidth=12.5e9)), num_chips=64)
    assert read_cluster(write(tmp_path, dump_cluster(slower))) == slower


def test_unknown_names():
    (only,) = faults("h100sxm:256")
    assert str(only).splitlines() == [
        "Error: no chip named 'h100sxm' in --cluster h100sxm:256. "
        "Nearest: h100-sxm, v100-sxm-16gb, h800-sxm.",
        "       For a chip we do not know, start from one we do:",
        "       shardwright show h100-sxm > my.yaml   [C01]",
    ]
    assert faults("910b x")[0].what.startswith("no cluster named '910b x'. Nearest: ")
    assert faults("dgx-h10")[0].what.startswith("no cluster named 'dgx-h10'. Nearest: dgx-h100")


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        ("4x A100", "a100-sxm-80gb:4"),
        ("4xA100", "a100-sxm-80gb:4"),
        ("A100x4", "a100-sxm-80gb:4"),
        ("4 A100", "a100-sxm-80gb:4"),
        ("A100 x 2x8", "a100-sxm-80gb:2x8"),
        ("2x8 dgx-h100", "dgx-h100:2x8"),
        ("4x910b", "ascend-910b2:4"),
        ("h101-sxm*64", "h100-sxm:64"),
    ],
)
def test_a_count_without_its_colon(spec, right):
    (only,) = faults(spec)
    assert (only.code, only.what) == ("C01", f"no cluster named '{spec}'.")
    assert only.fix[1] == f"--cluster {right}"
    assert read_cluster(right).num_chips == math.prod(
        int(n) for n in right.split(":")[1].split("x")
    )


@pytest.mark.parametrize(
    "spec", ["h100:", "h100:many", "h100:0", "h100:0x8", "h100:-8", "h100:9999999x99", "h100:1.5"]
)
def test_counts_that_are_none(spec):
    (only,) = faults(spec)
    assert only.code == "C02"
    assert spec in only.what


def test_unknown_chip_in_a_file(tmp_path):
    only = fault(tmp_path, ("h100-sxm", "h100sxm"))
    assert (only.code, only.where) == ("C01", "my.yaml:4:14")
    assert "no chip named 'h100sxm'" in only.what


@pytest.mark.parametrize("left_out", ["    bandwidth_gbps: null\n", ""])
def test_a_bandwidth_that_a_file_leaves_to_its_link_is_assumed(left_out, tmp_path):
    text = GOOD.replace("    bandwidth_gbps: 400 Gb/s\n", left_out)
    said = "400 Gb/s a chip in network (usual for infiniband; not in the file)"
    assert said in read_cluster(write(tmp_path, text)).assumed
    assert not read_cluster(write(tmp_path, GOOD)).assumed


def test_gigabits_for_gigabytes(tmp_path):
    only = fault(tmp_path, ("400 Gb/s", "400"))
    assert str(only) == (
        "my.yaml:12:21: error: bandwidth 400 of level 'network' looks like Gb/s; the field is GB/s "
        "for one chip and direction.\n"
        "       Write 50, or '400 Gb/s' with its unit.   [U01]"
    )


def test_gigabits_on_a_level_that_names_no_link(tmp_path):
    edits = ("    link: nvlink4\n    bandwidth_gbps: 450", "    bandwidth_gbps: 400")
    only = fault(tmp_path, edits)
    assert (only.code, only.where) == ("U01", "my.yaml:8:21")
    assert "of level 'node' looks like Gb/s" in only.what


def test_both_directions_for_one(tmp_path):
    only = fault(tmp_path, ("bandwidth_gbps: 450", "bandwidth_gbps: 900"))
    assert only.code == "U01"
    assert "looks like both directions together" in only.what
    assert only.fix[0].startswith("Write 450")


def test_text_with_a_unit_is_taken_as_it_is(tmp_path):
    text = GOOD.replace("bandwidth_gbps: 450", "bandwidth_gbps: 900 GB/s")
    assert read_cluster(write(tmp_path, text)).levels[0].bandwidth == 900e9


@pytest.mark.parametrize(
    ("field", "looks", "write_instead"),
    [
        ("memory_gib: 81920", "MiB", "Write 80"),
        ("memory_bandwidth_gbps: 3.35", "TB/s", "Write 3350"),
        ("peak_tflops: {bf16: 0.9894}", "PFLOPS", "Write 989.4"),
        ("peak_tflops: {bf16: 989400}", "GFLOPS", "Write 989.4"),
        ("matmul_efficiency: {bf16: 73}", "per cent", "Write 0.73"),
        ("launch_us: 0.0000025", "s", "Write 2.5"),
    ],
)
def test_slips_of_unit_in_a_chip(field, looks, write_instead, tmp_path):
    only = fault(tmp_path, ("memory_gib: 90", field))
    assert only.code == "U01"
    assert f"looks like {looks}" in only.what
    assert only.fix[0].startswith(write_instead)
    assert only.where.startswith("my.yaml:4:")


def test_typo_in_a_key(tmp_path):
    only = fault(tmp_path, ("memory_gib", "memmory_gib"))
    assert str(only) == (
        "my.yaml:4:24: error: unknown key 'memmory_gib' in chip. Did you mean 'memory_gib'?   [Y01]"
    )
    only = fault(tmp_path, ("name: mine", "nmae: mine"))
    assert only.what == "unknown key 'nmae' in cluster. Did you mean 'name'?"
    found = faults(write(tmp_path, GOOD.replace("name: mine", "colour: blue")))
    assert [each.code for each in found] == ["Y04", "Y01"]
    only = fault(tmp_path, ("    size: 8", "    sise: 8\n    size: 8"))
    assert only.what == "unknown key 'sise' in level 'node'. Did you mean 'size'?"
    only = fault(tmp_path, ("memory_gib: 90", "peak_tflops: {bf61: 800}"))
    assert only.what == "unknown key 'bf61' in peak_tflops. Did you mean 'bf16'?"


def test_key_given_twice(tmp_path):
    only = fault(tmp_path, ("    size: 8", "    size: 8\n    size: 16"))
    assert only.code == "Y02"
    assert only.what == "key 'size' is given twice (first on line 7)."
    assert only.where == "my.yaml:8:5"


def test_broken_syntax(tmp_path):
    only = fault(tmp_path, ("chip: {", "chip: {{"))
    assert only.code == "Y03"
    assert only.where.startswith("my.yaml:")


@pytest.mark.parametrize(
    ("old", "new", "code", "what"),
    [
        ("num_chips: 64", "num_chips: many", "U02", "num_chips must be a whole number."),
        ("num_chips: 64", "nodes: 8", "Y01", "unknown key 'nodes' in cluster. Write 'num_chips',"),
        ("num_chips: 64", "num_chips: 0", "U02", "num_chips must be at least 1."),
        ("num_chips: 64", "num_chips: yes", "U02", "num_chips must be a whole number."),
        ("name: mine", "name: 910", "U02", "name must be text."),
        ("    size: 8", "    size: 8.5", "U02", "size of level 'node' must be a whole number."),
        ("memory_gib: 90", "memory_gib: -90", "U02", "memory -90 must be more than zero."),
        ("memory_gib: 90", "memory_gib: .inf", "U02", "memory inf must be at most 16384 GiB."),
        ("memory_gib: 90", "memory_gib: 1e308", "U02", "memory 1e+308 must be at most 16384 GiB."),
        ("memory_gib: 90", "memory_gib: .nan", "U02", "memory nan must be more than zero."),
        ("memory_gib: 90", "memory_gib: 90 GB/s", "U02", "memory '90 GB/s' cannot be read."),
        ("memory_gib: 90", "memory_gib: [90]", "U02", "memory must be a number of GiB, or text"),
        ("chips_per_host: 8\n", "", "Y04", "cluster has no 'chips_per_host'."),
        ("    size: 8\n", "", "Y04", "level 'node' has no 'size'"),
        (
            "link: nvlink4",
            "link: nvlnk4",
            "C01",
            "no link named 'nvlnk4' in level 'node'. Nearest:",
        ),
        ("chip: {base: h100-sxm, memory_gib: 90}", "chip: 7", "U02", "chip must be a name or"),
    ],
)
def test_wrong_values(old, new, code, what, tmp_path):
    only = fault(tmp_path, (old, new))
    assert only.code == code
    assert only.what.startswith(what)
    assert only.where.startswith("my.yaml:")


def test_sizes_must_nest_and_hold_the_chips(tmp_path):
    only = fault(
        tmp_path,
        ("  - name: network", "  - name: rack\n    size: 12\n    link: pcie4\n  - name: network"),
    )
    assert only.what == "size 12 of level 'rack' is not a multiple of the 8 inside it."
    only = fault(tmp_path, ("    link: infiniband", "    size: 32\n    link: infiniband"))
    assert (only.code, "64 chips do not fit 'network'" in only.what) == ("C02", True)


def test_several_faults_are_reported_together(tmp_path):
    text = GOOD.replace("num_chips: 64", "num_chips: 0").replace("memory_gib", "memmory_gib")
    text = text.replace("size: 8", "sise: 8").replace("name: mine", "nane: mine")
    found = faults(write(tmp_path, text))
    assert sorted(one.code for one in found) == ["U02", "Y01", "Y01", "Y01"]
    assert len(str(PlannerError(*found)).splitlines()) >= 4


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "- name: x", "levels:", "levels: []", "chip: {}", "name: x"]
)
def test_files_that_are_something_else(text, tmp_path):
    assert faults(write(tmp_path, text))


def test_things_that_are_no_files(tmp_path):
    assert faults(f"{tmp_path}/none.yaml")
    assert faults(f"{tmp_path}/")
    assert faults("none.yaml:16")
    (tmp_path / "dir.yaml").mkdir()
    assert faults(f"{tmp_path}/dir.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    assert faults(f"{tmp_path}/binary.yaml")
    assert faults("a\0b.yaml")
    assert faults("")
    assert faults(":8")


TEXTS = [
    GOOD,
    (data_folder("hardware_profiles") / "chips" / "h100-sxm.yaml").read_text(encoding="utf-8"),
    (data_folder("hardware_profiles") / "clusters" / "b200-nvl72.yaml").read_text(encoding="utf-8"),
]
BITS = [
    "",
    ":",
    "- ",
    "{",
    "]",
    "\t",
    "'",
    "&a ",
    "*a",
    "!!int ",
    "0",
    "-1",
    "1e400",
    ".nan",
    "~",
    "yes",
    "\n  ",
    "%",
]


@st.composite
def mutated(draw):
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 12))
        bit = draw(st.sampled_from(BITS) | st.text(max_size=6))
        text = text[:start] + bit + text[start + length :]
    return text.encode("utf-8", errors="surrogatepass")


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(mutated() | st.binary(max_size=60))
def test_whatever_stands_in_a_file_ends_in_a_cluster_or_in_faults(tmp_path, content):
    path = tmp_path / "fuzz.yaml"
    path.write_bytes(content)
    try:
        cluster = read_cluster(str(path))
    except PlannerError as error:
        assert error.faults
        assert all(one.code and one.what for one in error.faults)
    else:
        assert cluster.num_chips >= 1
        assert all(level.achieved > 0 for level in cluster.levels)


@settings(deadline=None, max_examples=100)
@given(
    st.text(max_size=20) | st.from_regex(r"(h100|910b|dgx-a100|x)(:[0-9x]{0,12})?", fullmatch=True)
)
def test_whatever_stands_after_cluster_ends_in_a_cluster_or_in_faults(spec):
    try:
        cluster = read_cluster(spec)
    except PlannerError as error:
        assert error.faults
    else:
        assert cluster.num_chips >= 1
        assert Path(cluster.name).name


def test_nodes_of_unlike_sizes_are_groups_that_no_node_cuts():
    """huggingface/accelerate#2780: one node of 1 chip and one of 4; another of 4 and one of 8."""
    for spec, chips, unit in (("1,4", 5, 1), ("4,8", 12, 4), ("8,8", 16, 8)):
        cluster = read_cluster(f"h100-sxm:{spec}")
        assert (cluster.num_chips, cluster.chips_per_host) == (chips, unit)
        assert [level.size for level in cluster.levels][-2:] == [unit, None]
        assert f"nodes of {spec} chips count as {chips // unit} of {unit}" in cluster.assumed[0]
    (only,) = faults("h100-sxm:0,4")
    assert only.code == "C02"
    assert "8,8,4" in only.fix[0]


@pytest.mark.parametrize(("count", "nodes"), [("1", "1x1"), ("4", "1x4"), ("8", "1x8")])
def test_a_number_of_chips_and_one_node_of_them_have_the_same_host(count, nodes):
    one, other = (read_cluster(f"h100-sxm:{spec}") for spec in (count, nodes))
    assert one.host == other.host
    eight = read_cluster("h100-sxm:8").host
    assert one.host.memory == 8 / int(count) * eight.memory


def test_every_node_of_few_chips_has_a_whole_host_and_cut_nodes_do_not():
    eight = read_cluster("h100-sxm:16x8").host
    assert read_cluster("h100-sxm:16x2").host.memory == 4 * eight.memory
    assert read_cluster("h100-sxm:8,8,4").host.memory == eight.memory
