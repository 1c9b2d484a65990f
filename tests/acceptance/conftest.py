"""Tests with the trainers' own code. They skip where a trainer is not installed: ``make test-exports`` installs all."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("LOG_MF_PATH", str(Path(tempfile.gettempdir()) / "mindformers"))
"""MindFormers writes logs when it is imported, beside whatever runs."""
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "export")]
NEEDS = {
    "test_megatron.py": "megatron",
    "test_bridge.py": "megatron.bridge",
    "test_torchtitan.py": "torchtitan",
    "test_torchtitan_02.py": "torchtitan",
    "test_selective.py": "torchtitan",
    "test_deepspeed.py": "deepspeed",
    "test_deepspeed_run.py": "deepspeed",
    "test_accelerate.py": "accelerate",
    "test_transformers.py": "transformers",
    "test_transformers_run.py": "accelerate",
    "test_galvatron.py": "galvatron",
    "test_runtime.py": "torch",
    "test_measure.py": "torch",
    "test_memory.py": "torch",
    "test_mindspore.py": "mindspore",
    "test_mindformers.py": "mindformers",
    "test_maxtext.py": "maxtext",
}
"""Files to the package that they need. Only found, not imported: an import that fails must not look like a skip."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    needed = NEEDS.get(collection_path.name)
    return True if needed and not _installed(needed) else None


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
