"""Accelerate 1.15.0: the launcher takes the exported file, and makes an environment that says what the plan says."""

from __future__ import annotations

from pathlib import Path

import pytest
from plans import plan
from test_files import holding

from planner.export.targets import export
from planner.export.view import View
from planner.frontends.launch.accelerate import FSDP, PARALLELISM

pytestmark = pytest.mark.filterwarnings("ignore")


def environment(text: str, folder: Path) -> dict[str, str]:
    """Variables of the processes that the launcher would start."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    path = folder / "accelerate.yaml"
    path.write_text(text)
    args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, _, _ = _validate_launch_command(args)
    return prepare_multi_gpu_env(args)


@pytest.mark.parametrize("name", holding("accelerate"))
def test_the_launcher_s_environment(name: str, tmp_path: Path) -> None:
    view = View(plan(name))
    d = view.degrees
    found = environment(export(plan(name), "accelerate")[0].text, tmp_path)
    sizes = {
        key: int(found[f"PARALLELISM_CONFIG_{key}_SIZE"])
        for key in ("DP_REPLICATE", "DP_SHARD", "TP", "CP")
    }
    assert sizes == {
        "DP_REPLICATE": view.replicas,
        "DP_SHARD": d.dp // view.replicas,
        "TP": d.tp,
        "CP": d.cp,
    }
    assert found["FSDP_VERSION"] == "2"
    assert found["FSDP_RESHARD_AFTER_FORWARD"].lower() == str(view.level == 3).lower()
    assert found["FSDP_ACTIVATION_CHECKPOINTING"].lower() == str(d.recompute == "full").lower()
    assert found["FSDP_OFFLOAD_PARAMS"].lower() == str(d.offload == "states").lower()
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize("name", holding("accelerate"))
def test_its_own_check_of_sizes(name: str) -> None:
    from accelerate.parallelism_config import ParallelismConfig

    view = View(plan(name))
    d = view.degrees
    found = ParallelismConfig(
        dp_replicate_size=view.replicas,
        dp_shard_size=d.dp // view.replicas,
        tp_size=d.tp,
        cp_size=d.cp,
    )
    assert found.total_size == view.world


def test_keys_that_we_call_known_are_its_launcher_s() -> None:
    from accelerate.commands.launch import launch_command_parser

    options = {action.dest for action in launch_command_parser()._actions}
    assert options >= FSDP
    assert options >= PARALLELISM


def test_an_unknown_key_at_the_top_is_refused(tmp_path: Path) -> None:
    text = export(plan("fsdp"), "accelerate")[0].text
    with pytest.raises((ValueError, TypeError, SystemExit)):
        environment(text + "parallelism: 3\n", tmp_path)
