"""What torchtitan computes again where its file does not say: the default of 0.2, and of each configuration of 0.3."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.frontends.launch.found import TrainerFile
from planner.frontends.launch.read import read_trainer_file

EVERY_SECOND = "recompute of every second layer"
JOB = """[model]
name = "llama3"
flavor = "8B"
[parallelism]
tensor_parallel_degree = 4
data_parallel_shard_degree = 8
"""
SECTION = "[activation_checkpoint]\n"


def read(folder: Path, name: str, text: str) -> TrainerFile:
    (folder / name).write_text(text)
    return read_trainer_file(folder / name)


@pytest.mark.parametrize(
    ("more", "mode", "layers"),
    [
        ("", "selective", True),
        (SECTION + 'mode = "none"\n', "none", False),
        (SECTION + 'mode = "full"\n', "full", False),
        (SECTION + 'mode = "selective"\n', "selective", True),
        (SECTION + 'selective_ac_option = "op"\n', "selective", False),
    ],
)
def test_job_files(more: str, mode: str, layers: bool, tmp_path: Path) -> None:
    """0.2.2, job_config.ActivationCheckpoint: selective, and that of every second layer."""
    found = read(tmp_path, "job.toml", JOB + more)
    assert found.layout["recompute"] == mode
    assert any(EVERY_SECOND in note for note in found.notes) == layers


@pytest.mark.parametrize(
    ("job", "flags", "mode", "tp"),
    [
        ("", "", "selective", 2),
        ("", "--activation_checkpoint.mode none", "none", 2),
        (SECTION + 'mode = "full"\n', "", "full", 2),
        (SECTION + 'mode = "full"\n', "--activation_checkpoint.mode none", "none", 2),
    ],
)
def test_flags_with_a_job_file(job: str, flags: str, mode: str, tp: int, tmp_path: Path) -> None:
    """Flags come before the file that they name, and the file before the defaults."""
    (tmp_path / "job.toml").write_text(JOB + job)
    command = "torchrun -m torchtitan.train --job.config_file job.toml --parallelism.tensor_parallel_degree 2"
    found = read(tmp_path, "run.sh", f"{command} {flags}\n")
    assert (found.layout["recompute"], found.layout["tp"], found.layout["dp"]) == (mode, tp, 8)
    assert found.model == "llama-3-8b"
    assert not [note for note in found.notes if "not there" in note]


def test_a_job_file_that_is_not_there(tmp_path: Path) -> None:
    flags = "--job.config_file far/job.toml --parallelism.tensor_parallel_degree 2"
    found = read(tmp_path, "run.sh", f"torchrun -m torchtitan.train {flags}\n")
    assert found.layout["recompute"] == "selective"
    assert [note for note in found.notes if note.startswith("far/job.toml is not there")]


@pytest.mark.parametrize(
    ("config", "more", "mode"),
    [
        ("llama3_8b", "", "selective"),
        ("llama3_70b", "", "full"),
        ("llama3_70b", "activation_checkpoint:none", "none"),
        ("llama3_8b", "activation-checkpoint:full", "full"),
        ("llama3_8b", "--training.steps 9 activation_checkpoint:memory-budget", "selective"),
    ],
)
def test_flags_of_a_configuration(config: str, more: str, mode: str, tmp_path: Path) -> None:
    """The way to recompute stands behind the value of any flag."""
    flags = f"--module llama3 --config {config} --parallelism.tensor_parallel_degree 4 {more}"
    found = read(tmp_path, "run.sh", f"torchrun -m torchtitan.train {flags}\n")
    assert (found.layout["recompute"], found.layout["tp"]) == (mode, 4)
    assert (found.model, found.faults) == (config.replace("llama3_", "llama-3-"), ())


@pytest.mark.parametrize(
    ("config", "line", "mode"),
    [
        ("llama3_8b", "", "selective"),
        ("llama3_70b", "", "full"),
        ("llama3_70b", "    config.activation_checkpoint = None\n", "none"),
        ("llama3_8b", "    config.activation_checkpoint = ac.FullAC.Config()\n", "full"),
        ("llama3_70b", "    config.activation_checkpoint = SelectiveAC.Config()\n", "selective"),
    ],
)
def test_modules(config: str, line: str, mode: str, tmp_path: Path) -> None:
    text = f"""from torchtitan.models.llama3.config_registry import {config}


def plan():
    config = {config}()
    config.parallelism.tensor_parallel_degree = 4
{line}    return config
"""
    found = read(tmp_path, "ours.py", text)
    assert (found.layout["recompute"], found.layout["tp"]) == (mode, 4)
