"""Every cell of the matrix that a format holds: what the trainer's own code derives is what the plan says."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from matrix import facts, held

pytestmark = pytest.mark.filterwarnings("ignore")
WITNESS = {
    "megatron": ("witness_megatron", "facts", "megatron"),
    "megatron-bridge": ("witness_megatron", "bridge", "megatron.bridge"),
    "torchtitan": ("witness_torch", "torchtitan", "torchtitan"),
    "torchtitan-0.2": ("witness_torch", "job", "torchtitan"),
    "deepspeed": ("witness_torch", "deepspeed", "deepspeed"),
    "accelerate": ("witness_torch", "accelerate", "accelerate"),
    "transformers": ("witness_torch", "transformers", "accelerate"),
    "dtensor": ("witness_torch", "dtensor", "torch"),
    "galvatron": ("witness_others", "galvatron", "galvatron"),
    "maxtext": ("witness_others", "maxtext", "maxtext"),
    "mindspore": ("witness_others", "mindspore", "mindspore"),
    "mindformers": ("witness_others", "mindformers", "mindformers"),
}
"""By format the module and function that ask its trainer's code, and the package that this needs."""


def _there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


CASES = [name for to, (_, _, package) in WITNESS.items() if _there(package) for name in held(to)]


@pytest.mark.parametrize("name", CASES)
def test_cell(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    to = name.partition("/")[0]
    module, function, _ = WITNESS[to]
    found: dict[str, tuple[Any, Any]] = getattr(importlib.import_module(module), function)(
        name, monkeypatch, tmp_path
    )
    assert set(found) == set(facts(name))
    for fact, (derived, said) in found.items():
        if isinstance(said, list) and said and isinstance(said[0], float):
            said = [pytest.approx(value, rel=1e-9) for value in said]
        assert derived == said, fact
