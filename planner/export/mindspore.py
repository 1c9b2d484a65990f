"""MindSpore: auto-parallel settings in Python, and the layout of every parameter in its own strategy format.

A parameter that the file leaves out is dropped silently when a checkpoint is cut, so every weight of the plan is
there, under the names that MindFormers' Llama-like models have. Release: MindSpore 2.9 to 2.10.
"""

from __future__ import annotations

from planner.errors import listed
from planner.export.files import File, json_text
from planner.export.mindspore_names import AGAIN, ENDS, LAYER, Named, computed_by, in_layer
from planner.export.mindspore_operators import operator_file
from planner.export.refusal import Limits, any_level, offloads, pinned, schedules
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import Shape, shape_of
from planner.export.view import View, commented, header
from planner.plan.schema import BlockPlan, OperatorPlan
from planner.units import Json

RELEASE = "MindSpore 2.9-2.10"
SCHEDULERS = {"1f1b": "1f1b", "interleaved": "1f1b", "gpipe": "gpipe", "zbv": "zero_bubble_v"}
AXES = ("tp", "cp", "dp")
EXPERT_AXES = ("etp", "ep", "edp")
"""Axes inside a stage from the fastest, of all weights but experts and of those; a tensor map counts from the right."""


def write(view: View) -> list[File]:
    """``auto_parallel.py``, the layouts of every stage's parameters, the module that writes those of operators.

    And the script that measures: it runs a training script of one's own, which has MindSpore's ``TimeMonitor``.

    Raises:
        PlannerError: what MindSpore cannot hold (W01).
    """
    limits, shape = Limits(RELEASE), shape_of(view)
    _check(limits, view, shape)
    head = header(view, RELEASE)
    files = [File("auto_parallel.py", commented(head) + _settings(view))]
    for stage in range(view.degrees.pp):
        name = f"parameters_stage_{stage}.json"
        files.append(File(name, json_text({"_about": head} | strategy(view, stage))))
    return [*files, operator_file(view, RELEASE), remeasure(view, MEASURED)]


def _check(limits: Limits, view: View, shape: Shape) -> None:
    d = view.degrees
    offloads(limits, view)
    schedules(limits, view, "1f1b", "gpipe", "interleaved", "zbv")
    in_part = d.recompute in ("selective", "mixed")
    strange = sorted(view.recomputed - AGAIN.keys()) if in_part else []
    limits.refuse(
        bool(strange),
        f"recompute of {listed(strange, 'and')} alone: what computes it in a layer has no name that is known",
        f"{pinned('recompute=none')}, or recompute=full",
    )
    any_level(limits, view, (0, 1, 3))
    limits.refuse(
        not all(block.tensors for block in view.plan.blocks),
        "a plan that does not say which dims tensors have (an older version made it)",
        "the same question again: shardwright plan …",
    )
    inside = d.dp * d.cp * d.tp
    limits.refuse(
        inside * d.pp not in (1, 2, 4) and inside * d.pp % 8 > 0,
        f"{inside * d.pp} devices",
        "1, 2, 4 or a multiple of 8",
    )
    limits.refuse(
        d.order.index("pp") < d.order.index("dp") and d.pp > 1,
        "stages inside data parallelism",
        pinned("order=tp-cp-dp-pp"),
    )
    limits.refuse(
        d.pp > 1 and d.num_micro_batches < d.pp,
        f"{d.num_micro_batches} micro-batches in {d.pp} stages",
        pinned(f"pp<={d.num_micro_batches}"),
    )
    odd = {
        "latent attention": shape.latent,
        "a bias of the router": shape.router_bias,
        "prediction modules": shape.mtp > 0,
        "norms of queries and keys": shape.qk_norm,
        **dict.fromkeys(set(shape.odd) - {"windowed attention"}, True),
        "other norms": shape.norm != "rms",
        "biases": shape.biased,
        "an MLP without a gate": not shape.gated,
    }
    what = listed([name for name, there in odd.items() if there], "and")
    limits.refuse(
        any(odd.values()),
        f"{what} of {view.plan.model.name}: its files name parameters, and those of Llama-like models are known, "
        "also with experts",
        f"--to {'mindformers' if shape.norm == 'rms' and shape.gated else 'dtensor'}",
    )
    for axis in ("tp", "cp", "dp"):
        size = getattr(d, axis)
        limits.refuse(
            size & (size - 1) > 0,
            f"{axis} {size}, which is no power of two",
            pinned(f"{axis}={1 << (size.bit_length() - 1)}"),
        )
    limits.done()


def strategy(view: View, stage: int) -> dict[str, Json]:
    """The parameter layouts of one stage, as MindSpore's checkpoint cutter reads them."""
    layouts: dict[str, Json] = {}
    layers = [layer for chunk in view.chunks[stage] for layer in chunk]
    blocks = view.layer_blocks
    for layer in layers:
        for op in blocks[layer].operators:
            if op.name in LAYER:
                named = in_layer(op.name, shared="shared_ffn" in blocks[layer].sizes)
                for name in named[0]:
                    layouts[f"model.layers.{layer}.{name}"] = _layout(
                        view, blocks[layer], op, named
                    )
    for place, held in (("embedding", stage == 0), ("head", stage == view.degrees.pp - 1)):
        block = view.block(place) if held else None
        for op in block.operators if block else ():
            if op.name in ENDS:
                layouts[ENDS[op.name][0][0]] = _layout(view, block, op, ENDS[op.name])
    return {"current_stage": stage, "parallel_strategy_item": {}, "parallel_layout_item": layouts}


def _layout(view: View, block: BlockPlan | None, op: OperatorPlan, named: Named) -> dict[str, Json]:
    """One parameter: a weight of experts has a matrix of its own, in which ep stands inside the ranks that share it."""
    assert block is not None
    d = view.degrees
    weights = next(iter(op.weights.values()), {})
    axes = EXPERT_AXES if "ep" in weights else AXES
    cut = {
        axis: place.removeprefix("shard(").rstrip(")")
        for axis, place in weights.items()
        if "shard" in place
    }
    sizes, maps = [], []
    for dims in named[1]:
        size = 1
        for dim in dims:
            size *= int(block.sizes[dim])
        axis = next((axis for axis in axes if cut.get(axis) in dims), None)
        sizes.append(size)
        maps.append(-1 if axis is None else axes.index(axis))
    inner = d.ep * d.etp if axes is EXPERT_AXES else d.tp
    group = d.shard_group * d.tp // inner
    whole = d.shard_group == d.dp * d.cp
    return {
        "dev_matrix": [view.ranks(axis) for axis in reversed(axes)],
        "tensor_map": maps,
        "tensor_shape": sizes,
        "field": 0,
        "opt_weight_shard_step": inner if view.level else 0,
        "opt_weight_shard_size": (-1 if whole else group) if view.level else 0,
    }


def _settings(view: View) -> str:
    d = view.degrees
    lines = [f"    net.dataset_strategy((({d.dp}, 1), ({d.dp}, 1)))"]
    if d.pp > 1:
        scheduler = SCHEDULERS[d.schedule]
        lines.append(
            f'    net.pipeline(stages={d.pp}, interleave={d.vpp > 1}, scheduler="{scheduler}")'
        )
    if view.level:
        group = -1 if d.shard_group == d.dp * d.cp else d.shard_group
        level = {1: "level1", 3: "level3"}[view.level]
        lines.append(f'    net.hsdp(shard_size={group}, threshold=64, optimizer_level="{level}")')
    wrap = (
        f"Pipeline(net, {d.num_micro_batches}, stage_config=STAGES, segment_config=SEGMENTS)"
        if d.pp > 1
        else "net"
    )
    if d.pp == 1 and d.num_micro_batches > 1:
        wrap = f"GradAccumulation(net, {d.num_micro_batches})"
    places = [
        (f"model.layers.{layer}", stage, turn)
        for stage, chunks in enumerate(view.chunks)
        for turn, chunk in enumerate(chunks)
        for layer in chunk
    ]
    return _PYTHON.format(
        lines="\n".join(lines),
        wrap=wrap,
        stages={name: stage for name, stage, _ in places} if d.pp > 1 else {},
        segments={name: turn for name, _, turn in places} if d.vpp > 1 else None,
        again=[_again(view, layer) for layer in range(len(view.layer_blocks))],
    )


def _again(view: View, layer: int) -> tuple[str, ...]:
    """What is computed again of a layer: nothing, all of it (an empty name), or parts of it."""
    block, (whole, some) = view.layer_blocks[layer], view.recomputing
    if layer not in some:
        return ("",) * (layer in whole)
    names = [op.name for op in block.operators if op.recomputed]
    shared = "shared_ffn" in block.sizes
    return tuple(part for name in names for part in computed_by(name, shared=shared))


_PYTHON = '''
from functools import reduce

from mindspore.nn import Cell
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import GradAccumulation, Pipeline

STAGES = {stages}
"""Stage of every layer, by the name of its cell."""
SEGMENTS = {segments}
"""Chunk of every layer within its stage; None without virtual stages."""
RECOMPUTE = {again}
"""Of every layer the cells and primitives that are computed again in the backward pass; an empty name is all of it."""


def recomputed(part):
    """Sets a part of a layer computed again, its result too where it is a cell of several primitives."""
    part.recompute(**({{"output_recompute": True}} if isinstance(part, Cell) else {{}}))


def wrapped(net, layers):
    """The net with a loss, cut into micro-batches; ``layers`` are the cells of its layers, in order."""
    for layer, names in zip(layers, RECOMPUTE):
        for name in names:
            if name:
                recomputed(reduce(getattr, name.split("."), layer))
            else:
                layer.recompute()
    return {wrap}


def configured(net):
    """The training net in semi-automatic parallelism."""
    net = AutoParallel(net, parallel_mode="semi_auto")
{lines}
    return net
'''


MEASURED = Remeasured(
    framework=RELEASE,
    command=(
        'msrun --worker_num="$((NODES * PER_NODE))" --local_worker_num="$PER_NODE" --node_rank="${NODE_RANK:-0}" '
        '--master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-8118}" '
        '"${TRAIN:?your script: 20 steps of the net that auto_parallel.configured gives, with TimeMonitor(1)}"'
    ),
    seconds=r"per step time: ([0-9.]+) ms",
    seconds_unit=1e-3,
    memory=r"Actual peak memory usage[^0-9]*([0-9.]+) *M",
    memory_gib=1 / 1024,
)
