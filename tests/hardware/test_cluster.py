from dataclasses import replace

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.hardware.mesh import members

CHIP = Chip(
    name="test",
    memory_bytes=80e9,
    memory_bandwidth=2e12,
    peak={"bf16": 300e12, "fp32": 20e12},
    matmul_efficiency={"bf16": 0.8, "fp32": 0.7},
    matmul_latency=5e-6,
    matmul_sharpness=2.0,
    attention_efficiency=0.6,
    memory_efficiency=0.9,
    launch=2e-6,
)


def level(name, size, **more):
    return Level(
        **{"bandwidth": 100e9, "efficiency": 0.8, "latency": 5e-6, "ramp_bytes": 1e6} | more,
        name=name,
        size=size,
    )


def cluster(num_chips, *sizes, host=4):
    levels = tuple(level(f"level {size}", size) for size in (*sizes, None))
    return Cluster(
        name="test",
        chip=CHIP,
        num_chips=num_chips,
        levels=levels,
        chips_per_host=host,
        host_bandwidth=25e9,
    )


def test_missing_precision_names_those_the_chip_has():
    assert CHIP.peak_for("bf16") * CHIP.efficiency_for("bf16") == 240e12
    with pytest.raises(PlannerError, match=r"test has no fp8. It has bf16 and fp32.*\[C04\]"):
        CHIP.peak_for("fp8")


def test_achieved_counts_efficiency_and_oversubscription():
    assert level("pod", 64, oversubscription=7).achieved == pytest.approx(100e9 * 0.8 / 7)


def test_a_full_mesh_gives_a_pair_one_link_and_a_switch_gives_it_everything():
    mesh = level("node", 8, full_mesh=True)
    assert mesh.achieved_by(np.array([2, 4, 8])) == pytest.approx(
        mesh.achieved * np.array([1, 3, 7]) / 7
    )
    assert level("node", 8).achieved_by(np.array([2, 8])).tolist() == [80e9, 80e9]
    assert float(mesh.achieved_by(1)) > 0


@pytest.mark.parametrize(
    ("num_chips", "sizes", "host", "groups"),
    [
        (256, (8,), 8, (8, 0)),
        (4, (8,), 8, (0, 0)),
        (8, (8,), 8, (0, 0)),
        (12, (8,), 8, (8, 0)),
        (144, (72,), 4, (72, 0)),
        (512, (72,), 4, (64, 0)),
        (98304, (72,), 4, (64, 0)),
        (100, (72,), 4, (72, 0)),
        (16384, (8, 3072), 8, (8, 2048, 0)),
        (24, (2, 8, 16), 8, (2, 8, 16, 0)),
    ],
)
def test_jobs_fill_groups_evenly_in_whole_hosts(num_chips, sizes, host, groups):
    assert cluster(num_chips, *sizes, host=host).groups == groups


def test_depth_is_the_levels_that_are_needed_and_follows_a_change_of_count():
    small = cluster(4, 8, 64)
    assert small.depth == 1
    assert replace(small, num_chips=64).depth == 2
    assert replace(small, num_chips=65).depth == 3


def test_levels_beyond_the_depth_have_one_member():
    small = cluster(6, 4, 64)
    assert members(6, 1, small.groups).tolist() == [2, 3, 1]


def test_hardware_can_be_hashed():
    assert hash(cluster(8, 8)) == hash(cluster(8, 8))
