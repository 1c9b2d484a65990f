"""Questions on pools of different chips, small enough to try everything."""

from __future__ import annotations

from dataclasses import replace

from planner.frontends.pools_file import read_pools
from planner.pooled import understood
from planner.question import Question

MIXED = "v100-sxm-16gb:4 + t4:2"


def asked(cluster=MIXED, layers=6, model="gpt2", batch=8, **more):
    """A question on pools; a model of few layers."""
    return Question(
        model=model,
        cluster=cluster,
        global_batch=batch,
        overrides={"layers": str(layers)},
        **more,
    )


def site_of(question, **changes):
    """The question on each pool, and its pins."""
    pools = read_pools(question.cluster)
    known, site = understood(question, pools)
    if changes:
        site = replace(site, **changes)
    return site, known.pins
