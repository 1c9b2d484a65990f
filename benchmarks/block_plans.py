"""One block on free meshes of 64 H100: seconds of one core to the proved plan, memory free and limited.

python -m benchmarks.block_plans
"""

from __future__ import annotations

from time import process_time

from planner.cost.resharding import free_mesh
from planner.errors import PlannerError
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
SHARES = (0.9, 0.7, 0.5, 0.3, 0.2)
"""Parts of the memory of the plan without a limit that a plan with one may use."""


def row(name: str, axes: dict[str, int]) -> str:
    model, cluster = build_model(read_model(name), SEQ), read_cluster("h100-sxm:64")
    recipe = Recipe(global_batch=64, seq=SEQ)
    task = Task(model, cluster, recipe, get_trainer("megatron"), cluster.chip.memory_bytes)
    block, mesh = model.blocks[-1], free_mesh(cluster, axes)
    begin = process_time()
    free = solve_block(block, mesh, task, Wish(sequences=SEQUENCES[name]))
    cells = [name, " × ".join(map(str, axes.values())), f"{process_time() - begin:.2f}"]
    gap = 1 - free.bound / free.seconds
    for share in SHARES:
        wish = Wish(sequences=SEQUENCES[name], memory_limit=share * free.memory)
        begin, told = process_time(), "none"
        try:
            held = solve_block(block, mesh, task, wish)
        except PlannerError:
            pass
        else:
            told = f"+{held.seconds / free.seconds - 1:.1%}"
            gap = max(gap, 1 - held.bound / held.seconds)
        cells.append(f"{process_time() - begin:.2f} ({told})")
    return f"| {' | '.join(cells)} | {gap:.0e} |"


def main() -> None:
    print(
        f"| block | mesh | CPU s | {' | '.join(f'{share:.0%} of its memory' for share in SHARES)} | gap |"
    )
    print(f"|{' --- |' * (4 + len(SHARES))}")
    for name in SEQUENCES:
        for axes in MESHES:
            print(row(name, axes))


if __name__ == "__main__":
    main()
