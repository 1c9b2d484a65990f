"""torchtitan 0.2.2 takes the exported job files. Two releases cannot share a process, so it runs in its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plans import plan
from test_files import holding

from planner.export.targets import export
from planner.export.view import View

FOLDER = os.environ.get("TORCHTITAN_02", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="TORCHTITAN_02 names no folder with torchtitan 0.2.2"
)


def asked(what: str, files: dict[Path, int]) -> dict[str, dict]:
    """What the program beside this file answers about job files, each for so many ranks; by name."""
    program = Path(__file__).with_name("titan_02_cpu.py")
    words = [str(word) for pair in files.items() for word in pair]
    done = subprocess.run(
        [sys.executable, str(program), FOLDER, what, *words], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {Path(p).stem: row for p, row in json.loads(done.stdout.partition("FOUND")[2]).items()}


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("jobs")
    for name in holding("torchtitan-0.2"):
        (folder / f"{name}.toml").write_text(export(plan(name), "torchtitan-0.2")[0].text)
    (folder / "nothing.toml").write_text("")
    worlds = {folder / f"{name}.toml": View(plan(name)).world for name in holding("torchtitan-0.2")}
    return asked("parsed", worlds | {folder / "nothing.toml": 1})


def test_what_a_file_that_says_nothing_computes_again(parsed: dict[str, dict]) -> None:
    assert parsed["nothing"]["mode"] == ["selective", "2"]


@pytest.mark.parametrize("name", holding("torchtitan-0.2"))
def test_mesh_batches_and_stages(name: str, parsed: dict[str, dict]) -> None:
    view, row = View(plan(name)), parsed[name]
    d = view.degrees
    assert row["mesh"] == [view.replicas, d.dp // view.replicas, d.cp, d.tp, d.pp, d.ep]
    local, micro, batch, seq = row["batches"]
    pieces = local // micro if d.pp > 1 else 1
    assert batch // (local * d.dp) * pieces == d.num_micro_batches
    assert (batch, seq) == (view.plan.recipe.global_batch, view.plan.recipe.seq)
    assert row["mode"] == [d.recompute, "op"]
    assert (row["reshard"] == "always") == (view.level == 3)
    if d.pp > 1:
        layers = [sum(module.startswith("layers.") for module in part) for part in row["stages"]]
        assert layers == [len(visit) for visit in view.visits]
