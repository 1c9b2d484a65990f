"""One block on free meshes of 64 H100: seconds of one core to the proved plan, memory free and limited.

python -m benchmarks.block_plans
"""

from __future__ import annotations

from time import process_time

from planner.cost.resharding import free_mesh
from planner.frontends.cluster_file import read_cluster
from planner.frontends.model_file import read_model
from planner.graph.blocks import build_model
from planner.recipe import Recipe
from planner.search.operators import Wish, solve_block
from planner.trainers.registry import get_trainer
from planner.trainers.trainer import Task

SEQ = 4096
MESHES = ({"a": 8, "b": 8}, {"a": 4, "b": 4, "c": 4}, {"a": 2, "b": 4, "c": 8})
SEQUENCES = {"llama-3-8b": 16, "deepseek-v3": 64}
"""Models, of which the last layer kind is taken, and sequences of a micro-batch on all ranks together."""
SHARE = 0.7
"""Part of the memory of the plan without a limit that the plan with one may use."""


def row(name: str, axes: dict[str, int]) -> str:
    model, cluster = build_model(read_model(name), SEQ), read_cluster("h100-sxm:64")
    recipe = Recipe(global_batch=64, seq=SEQ)
    task = Task(model, cluster, recipe, get_trainer("megatron"), cluster.chip.memory_bytes)
    block, mesh = model.blocks[-1], free_mesh(cluster, axes)
    begin = process_time()
    free = solve_block(block, mesh, task, Wish(sequences=SEQUENCES[name]))
    middle = process_time()
    limit = SHARE * free.memory
    held = solve_block(block, mesh, task, Wish(sequences=SEQUENCES[name], memory_limit=limit))
    end = process_time()
    gap = max(1 - found.bound / found.seconds for found in (free, held))
    size = " × ".join(map(str, axes.values()))
    return (
        f"| {name} | {size} | {middle - begin:.2f} | {end - middle:.2f} | "
        f"{held.seconds / free.seconds - 1:.1%} | {held.fullest.operator} {held.fullest.phase}s | {gap:.0e} |"
    )


def main() -> None:
    print(
        f"| block | mesh | CPU s | … with {SHARE:.0%} of its memory | slower by | fullest | gap |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in SEQUENCES:
        for axes in MESHES:
            print(row(name, axes))


if __name__ == "__main__":
    main()
