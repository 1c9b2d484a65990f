"""What a Megatron run recomputes, from the modules and the number of layers that it names."""

from __future__ import annotations

import re

from planner.calibrate.runs import Run

MODULES: dict[str, frozenset[str]] = {
    "core_attn": frozenset({"core"}),
    "coreattn": frozenset({"core"}),
    "layernorm": frozenset({"norm"}),
    "norm": frozenset({"norm"}),
    "moe_act": frozenset({"activation"}),
    "act": frozenset({"activation"}),
    "mla_up_proj": frozenset({"mla_up"}),
    "mlp": frozenset(
        f"{part}.{step}" for part in ("mlp", "shared") for step in ("up", "act", "down")
    ),
    "moe": frozenset(
        {"moe.router", "moe.top_k", "moe.dispatch", "moe.up", "moe.act", "moe.down", "moe.combine"}
    ),
}
"""Tags or names of the operators of a module of ``--recompute-modules``, or of a shorter word for it."""
_WHOLE = re.compile(
    r"granularity[= ]full (?:--recompute-)?method[= ]block (?:--recompute-)?num[_-]layers[= ](\d+)"
    r"|recompute block, first (\d+) layers|recompute of (\d+) of \d+ layers"
)
"""How many layers of every chunk run again as a whole: Megatron's ``--recompute-method block``."""
_NAMED = re.compile(r"recompute(?:_modules:)? ((?:[a-z_]+, )*[a-z_]+)")


def recomputed_modules(run: Run) -> frozenset[str]:
    """Tags of the operators that a row names for recompute, or that recipes of its program do where it names none.

    Empty where neither names any that we know.
    """
    word = run.parallel.recompute or ""
    if word not in ("", "selective"):
        return frozenset()
    return (_named(run) if word else frozenset()) or _usual(run)


def _named(run: Run) -> frozenset[str]:
    told = _NAMED.search(run.remarks)
    words = re.split(r"[+, -]+", str(run.parallel.other("recompute_modules") or ""))
    words += re.split(", ", told[1]) if told else []
    return frozenset().union(*(MODULES.get(word, frozenset()) for word in words))


def _usual(run: Run) -> frozenset[str]:
    """What all recipes of NeMo and Megatron-Bridge with latent attention recompute: its up-projections.

    Source: Megatron-Bridge, deepseek_v3.py and deepseek_workload_base_configs.py.
    """
    ours = re.search("nemo|bridge", (run.parallel.framework or "").lower())
    return MODULES["mla_up_proj"] if ours and run.model.mla else frozenset()


def whole_layers(run: Run) -> int | None:
    """Layers of every chunk that a row recomputes as a whole; None where it says nothing of a number."""
    if (run.parallel.recompute or "") not in ("full", "partial"):
        return None
    told = _WHOLE.search(run.remarks)
    return int(next(number for number in told.groups() if number)) if told else None
