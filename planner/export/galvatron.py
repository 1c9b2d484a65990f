"""Galvatron: JSON with a number for every layer, in the dialect of release 2.4.0 and of the repository's newer head.

The only format here that can hold tensor parallelism, states and checkpointing layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.export.files import File, json_text
from planner.export.refusal import (
    Limits,
    any_level,
    no_axis,
    offloads,
    pinned,
    schedules,
    whole_states,
)
from planner.export.remeasure import Remeasured, remeasure
from planner.export.view import View, header
from planner.units import Json

RELEASE, NEW_RELEASE = "Galvatron 2.4.0", "Galvatron after 2.4"
DEFAULTS = {0: "ddp", 2: "zero2", 3: "zero2"}


def write(view: View) -> list[File]:
    """The strategy file of release 2.4.0.

    Raises:
        PlannerError: what it cannot hold (W01).
    """
    limits = Limits(RELEASE)
    _check(limits, view)
    no_axis(limits, view, "cp", "ep", "etp")
    limits.done()
    return _files(view, RELEASE, settings(view))


def write_new(view: View) -> list[File]:
    """The strategy file of the newer dialect, with context and expert parallelism.

    Raises:
        PlannerError: what it cannot hold (W01).
    """
    limits = Limits(NEW_RELEASE)
    _check(limits, view)
    limits.done()
    d, count = view.degrees, view.plan.model.num_layers
    data = settings(view)
    data["vocab_sdp"] = data.pop("embed_sdp")
    data |= {
        "cp_sizes_enc": joined([d.cp] * count),
        "ep_sizes_enc": joined([d.ep] * count),
        "tp_of_ep_sizes_enc": joined([d.etp] * count),
        "vcp": d.cp,
        "world_size": view.world,
    }
    return _files(view, NEW_RELEASE, data)


def settings(view: View) -> dict[str, Json]:
    """The keys of both dialects."""
    d, count = view.degrees, view.plan.model.num_layers
    full = int(view.level == 3)
    return {
        "pp_deg": d.pp,
        "tp_sizes_enc": joined([d.tp] * count),
        "tp_consecutive_flags": joined([1] * count),
        "dp_types_enc": joined([full] * count),
        "use_sp": joined([0] * count),
        "checkpoint": joined([int(d.recompute == "full")] * count),
        "global_bsz": view.plan.recipe.global_batch,
        "chunks": d.num_micro_batches,
        "pp_division": joined(view.stage_sizes),
        "pipeline_type": "gpipe" if d.schedule == "gpipe" else "pipedream_flush",
        "default_dp_type": DEFAULTS[view.level],
        "vtp": d.tp,
        "vsp": 0,
        "embed_sdp": full,
    }


def joined(values: Iterable[int]) -> str:
    """Numbers as Galvatron lists them; JSON lists are refused.

    >>> joined([8, 8])
    '8,8'
    """
    return ",".join(map(str, values))


def _files(view: View, release: str, data: dict[str, Json]) -> list[File]:
    about: dict[str, Json] = {"_about": header(view, release)}
    return [
        File("galvatron_config.json", json_text(about | data)),
        remeasure(view, _measured(release)),
    ]


def _check(limits: Limits, view: View) -> None:
    d = view.degrees
    any_level(limits, view, (0, 2, 3))
    offloads(limits, view)
    whole_states(limits, view)
    schedules(limits, view, "1f1b", "gpipe")
    limits.refuse(d.vpp > 1, f"vpp {d.vpp}: it has no virtual stages", pinned("vpp=1"))
    limits.refuse(
        d.recompute == "selective",
        "selective recompute",
        f"{pinned('recompute=none')} or recompute=full",
    )
    limits.refuse(0 in view.stage_sizes, "a stage without layers", pinned(f"pp={max(1, d.pp - 1)}"))
    limits.refuse(
        d.order.index("pp") < d.order.index("dp") and d.pp > 1,
        "stages inside data parallelism",
        pinned("order=tp-cp-dp-pp"),
    )


def _measured(release: str) -> Remeasured:
    return Remeasured(
        framework=release,
        command=(
            'torchrun $LAUNCH "${TRAIN:?the train_dist.py of the model in Galvatron}" '
            "--galvatron_config_path galvatron_config.json --train-iters 20 --profile 1"
        ),
        seconds=r"(?:elapsed time per iteration \(ms\):|Iteration [0-9]+ .*?time:) *([0-9.]+)",
        seconds_unit=1e-3,
        memory=r"[Mm]ax(?: |_)(?:memory|allocated)[^0-9]*([0-9.]+)",
        memory_gib=1 / 1024,
    )
