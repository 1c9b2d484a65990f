"""Runs on a cluster that the user describes: the row says what was run, the profile what it ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.calibrate.row_task import Case, case_of
from planner.calibrate.runs import Run
from planner.calibrate.shapes import NotPricedError
from planner.errors import PlannerError
from planner.frontends.catalog import find
from planner.frontends.cluster_file import read_cluster
from planner.hardware.cluster import Cluster
from planner.hardware.pools import Pools
from planner.trainers.trainer import Trainer

STAND_IN = "h100-sxm"
"""Chip that a row is read with before its cluster is put in place; it has every precision."""
FRAMEWORKS: Mapping[str, str] = {"megatron": "megatron-core"}
"""Software of a trainer that a row does not name, where it is not called like the trainer."""


def case_on(run: Run, cluster: Cluster, trainer: Trainer | None = None) -> Case:
    """Everything that pricing a run on this cluster needs.

    Args:
        run: what it says of chip and network does not count, its number of chips does.
        cluster: the user's profile.
        trainer: what ran it, as plans are made for; None where the row says so itself.

    Raises:
        NotPricedError: another chip than the cluster's, a missing fact, or a model that we do not describe.
    """
    key = run.hardware.chip_key
    if key is not None and not same_chip(key, cluster):
        raise NotPricedError(f"other chip: {key}, and the cluster has {cluster.chip.name}")
    chips = run.hardware.num_chips or cluster.num_chips
    facts = {"chip_key": STAND_IN, "num_chips": chips, "chips_per_node": cluster.chips_per_host}
    change: dict[str, object] = {"hardware": run.hardware.model_copy(update=facts)}
    if trainer is not None and not run.parallel.framework:
        name = FRAMEWORKS.get(trainer.name, trainer.name)
        change["parallel"] = run.parallel.model_copy(update={"framework": name})
    case = case_of(run.model_copy(update=change))
    try:
        cluster.chip.peak_for(case.task.recipe.precision)
    except PlannerError as error:
        raise NotPricedError(f"unsupported precision: {error.faults[0].what}") from None
    task = replace(
        case.task,
        cluster=replace(cluster, num_chips=chips),
        memory_limit=cluster.chip.memory_bytes,
        trainer=trainer or case.task.trainer,
    )
    software = replace(case.software, trainer=trainer) if trainer else case.software
    return replace(case, run=run, task=task, software=software)


def case_on_pools(run: Run, pools: Pools) -> Case:
    """Everything that pricing a run on these pools needs, its ranks on their chips in the order of the pools.

    Raises:
        NotPricedError: another number of chips than theirs, and what :func:`case_on` raises.
    """
    chips = run.hardware.num_chips or pools.num_chips
    if chips != pools.num_chips:
        raise NotPricedError(f"other chips: {chips}, and the pools have {pools.num_chips}")
    facts = run.hardware.model_copy(update={"chip_key": None, "num_chips": chips})
    plain = run.model_copy(update={"hardware": facts})
    cases = [case_on(plain, pool) for pool in pools.pools]
    return replace(cases[0], run=run, pools=pools.pools)


def profile(spec: str) -> Cluster:
    """The cluster that a person means by ``--cluster``, without remarks on what was taken from where.

    Raises:
        PlannerError: nothing has that name, or the file is wrong.
    """
    return read_cluster(spec, notes=False)


def same_chip(key: str, cluster: Cluster) -> bool:
    """Whether a row's chip is the cluster's, by any of its names."""
    if key == cluster.chip.name:
        return True
    path = find("chip", key)
    return path is not None and path.stem == cluster.chip.name
