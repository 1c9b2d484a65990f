"""The plan as a command of our own."""

from __future__ import annotations

import shlex

from planner.plan.schema import Plan


def price_command(plan: Plan) -> str:
    """What to type so that this layout is priced again, with everything that was asked."""
    asked, d = plan.asked, plan.degrees
    layout = {"dp": d.dp, "tp": d.tp, "pp": d.pp, "cp": d.cp, "ep": d.ep, "etp": d.etp, "vpp": d.vpp,
              "mbs": d.micro_batch, "zero": ("none", "ZeRO-1", "ZeRO-2", "ZeRO-3").index(d.sharding),
              "shard-group": d.shard_group, "recompute": d.recompute, "schedule": d.schedule,
              "order": "-".join(d.order)}  # fmt: skip
    usual = {"cp": 1, "ep": 1, "etp": 1, "vpp": 1, "shard-group": d.dp * d.cp}
    said = ",".join(f"{key}={value}" for key, value in layout.items() if usual.get(key) != value)
    if d.tp > 1:
        said += f",sp={'on' if d.sequence_parallel else 'off'}"
    options = {
        "--cluster": asked.cluster,
        "--trainer": plan.trainer,
        "--global-batch": str(plan.recipe.global_batch),
        "--seq-len": str(plan.recipe.seq),
        "--precision": plan.recipe.precision,
        "--optimizer": plan.recipe.optimizer,
        "--recipe": asked.recipe_file,
        "--memory-limit": asked.memory_limit,
        "--set": said,
    }
    lines = [f"shardwright price {shlex.quote(asked.model)}"]
    lines += [
        f"{flag} {shlex.quote(value)}" for flag, value in options.items() if value is not None
    ]
    lines += [f"--set {shlex.quote(f'{key}={value}')}" for key, value in asked.overrides.items()]
    if "kv-heads=copy" in plan.pins:
        lines.append("--set kv-heads=copy")
    return " \\\n  ".join(lines) + "\n"
