"""Rules of the pipeline: layers over stages and virtual stages, schedules."""

from __future__ import annotations

import numpy as np

from planner.candidates import FOLDED, LOOPED, SCHEDULES, SHARDING, SPLIT, Candidates
from planner.errors import Fault, listed
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import around, closest, divisors, value
from planner.units import BoolArray

WEIGHTS = SHARDING.index("ZeRO-3")
STATED = 32
"""Chunks up to which their layers are written out."""
INTERLEAVED, DUALPIPEV = (SCHEDULES.index(name) for name in ("interleaved", "dualpipev"))


def _stages(task: Task, candidates: Candidates) -> BoolArray:
    pp, layers = candidates.pp, task.model.num_layers
    keeps: BoolArray = pp <= layers
    return keeps if task.trainer.uneven_stages else keeps & (layers % pp == 0)


def _stages_fault(task: Task, candidates: Candidates) -> Fault:
    pp, layers = value(candidates, "pp"), task.model.num_layers
    if pp > layers:
        return Fault(
            "P01", f"pp {pp} is more than the {layers} layers.", (f"pp can be 1 to {layers}.",)
        )
    fits = closest(divisors(layers), pp)
    what = f"{layers} layers cannot be cut equally into pp {pp}, as {task.trainer.name} needs."
    return Fault("P01", what, (f"pp can be {listed(fits)}.",))


STAGES = Rule(
    name="stages",
    family="layers",
    sentence="Every stage has a layer, and equal numbers where the trainer knows no uneven layout.",
    needs=frozenset({"pp"}),
    keeps=_stages,
    fault=_stages_fault,
    source="Megatron-LM 0.19.2 refuses layers not divisible, and takes a layout string instead",
)


def even_cut(layers: int, stages: int) -> str:
    """The most equal numbers of layers: ``16, 15, 15, 15``.

    >>> even_cut(61, 4)
    '16, 15, 15, 15'
    """
    low, more = divmod(layers, stages)
    return ", ".join(str(low + (stage < more)) for stage in range(stages))


def equal_chunks(task: Task, candidates: Candidates) -> BoolArray:
    """Layouts whose virtual stages hold equal numbers of layers, with embedding and head where the trainer counts them.

    Or that a trainer fills with empty layers, and those without virtual stages.
    """
    chunks = candidates.pp * candidates.vpp
    keeps: BoolArray = candidates.vpp == 1
    for places in cut_places(task):
        keeps = keeps | (places % chunks == 0)
    return keeps | (chunks <= task.model.num_layers) if task.trainer.pads_layers else keeps


def _chunks(task: Task, candidates: Candidates) -> BoolArray:
    keeps = equal_chunks(task, candidates)
    if task.uneven_chunks and task.trainer.uneven_stages:
        keeps = keeps | (candidates.pp * candidates.vpp <= task.model.num_layers)
    return keeps


def cut_places(task: Task) -> tuple[int, ...]:
    """Numbers of equal places that the layers may be cut as: embedding and head may count as one each."""
    layers = task.model.num_layers
    return (layers, layers + 1, layers + 2) if task.trainer.counts_ends else (layers,)


def _chunks_fault(task: Task, candidates: Candidates) -> Fault:
    pp, vpp = value(candidates, "pp"), value(candidates, "vpp")
    layers = task.model.num_layers
    what = f"{layers} layers cannot be cut equally into pp {pp} × {vpp} virtual stages, as {task.trainer.name} needs."
    if pp * vpp > layers:
        what = f"pp {pp} × {vpp} virtual stages are {pp * vpp}, more than the {layers} layers."
    fits = sorted({v for n in cut_places(task) if n % pp == 0 for v in divisors(n // pp) if v > 1})
    if fits:
        better = f"With pp {pp}, vpp can be {listed([1, *closest(fits, vpp)])}."
    elif layers % pp == 0 or (task.trainer.uneven_stages and pp <= layers):
        shown = f"pp {pp} without virtual stages can be {even_cut(layers, pp)}." if pp <= 8 else ""
        better = f"{shown or f'pp {pp} can do without virtual stages.'} Drop --pin vpp={vpp}."
    else:
        better = f"pp can be {listed(closest(divisors(layers), pp))}."
    if not task.trainer.uneven_stages or pp * vpp > min(layers, STATED):
        return Fault("P01", what, (better,))
    unequal = even_cut(layers, pp * vpp).replace(", ", "+")
    return Fault("P01", what, (better, f"Or say how unequal ones are: stage-layers={unequal}"))


CHUNKS = Rule(
    name="virtual-chunks",
    family="layers",
    sentence="Virtual stages hold equal numbers of layers: these, with embedding and head where a trainer counts "
    "them, divide by pp · vpp. Where the trainer can, unequal ones are looked at if they may be faster or are asked "
    "for; or empty layers fill them.",
    needs=frozenset({"pp", "vpp"}),
    keeps=_chunks,
    fault=_chunks_fault,
    source="Megatron-LM #468 (80 layers, pp 16, vpp 2 trained 64) and #326; --account-for-embedding-in-pipeline-split "
    "and --account-for-loss-in-pipeline-split count the ends as layers (Llama-3.1 405B: 126 layers on 16 × 8). "
    "MindSpeed-LLM's --noop-layers: 61 layers as 64, 94 as 96. "
    "A layout string, offsets or lists of modules hold any chunks",
)


def _schedule(task: Task, candidates: Candidates) -> BoolArray:
    known = [SCHEDULES.index(name) for name in task.trainer.schedules]
    keeps: BoolArray = np.isin(candidates.schedule, known)
    return keeps


def _schedule_fault(task: Task, candidates: Candidates) -> Fault:
    name = SCHEDULES[value(candidates, "schedule")]
    what = f"{task.trainer.name} cannot run schedule {name}."
    return Fault("T01", what, (f"It can with {listed(task.trainer.schedules)}.",))


SCHEDULE = Rule(
    name="schedule",
    family="trainer rules",
    sentence="The schedule is one that the trainer knows.",
    needs=frozenset({"schedule"}),
    keeps=_schedule,
    fault=_schedule_fault,
    source="the trainer's list of schedules",
)


def _virtual(task: Task, candidates: Candidates) -> BoolArray:
    vpp, schedule = candidates.vpp, candidates.schedule
    chunks = np.where(np.isin(schedule, FOLDED), vpp == 2, vpp == 1)
    keeps: BoolArray = np.where(np.isin(schedule, LOOPED), vpp > 1, chunks)
    return keeps


def _virtual_fault(task: Task, candidates: Candidates) -> Fault:
    vpp, name = value(candidates, "vpp"), SCHEDULES[value(candidates, "schedule")]
    what = f"{task.trainer.name} cannot run --pin vpp={vpp} with schedule {name}."
    code = value(candidates, "schedule")
    if code in LOOPED:
        return Fault("T01", what, ("Interleaving needs 2 or more virtual stages.",))
    if code in FOLDED:
        return Fault("T01", what, ("A schedule in a V needs 2 virtual stages.",))
    can = [each for each in task.trainer.schedules if SCHEDULES.index(each) in LOOPED]
    return Fault("T01", what, (f"It can with {listed(can) if can else 'vpp 1'}.",))


VIRTUAL = Rule(
    name="virtual-schedule",
    family="trainer rules",
    sentence="There are virtual stages exactly where the schedule is interleaved, two where it stands in a V.",
    needs=frozenset({"vpp", "schedule"}),
    keeps=_virtual,
    fault=_virtual_fault,
    source="Megatron-LM and torch.distributed.pipelining: single-stage schedules take one chunk a rank",
)


def _whole(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = (candidates.recompute == 0) | ~np.isin(candidates.schedule, SPLIT)
    return keeps


def _whole_fault(task: Task, candidates: Candidates) -> Fault:
    name = SCHEDULES[value(candidates, "schedule")]
    what = f"{task.trainer.name} cannot recompute under schedule {name}: layers would run again for every weight."
    return Fault("T01", what, ("It can with recompute none, or with 1f1b or interleaved.",))


WHOLE_BACKWARD = Rule(
    name="whole-backward",
    family="trainer rules",
    sentence="Nothing is recomputed where the backward pass comes in halves, one for inputs and one for weights.",
    needs=frozenset({"schedule", "recompute"}),
    keeps=_whole,
    fault=_whole_fault,
    source=(
        "torch 2.13: stage_backward_weight runs autograd once for every group of weights, and a checkpoint recomputes "
        "in each run (96 gathers instead of 40 for two layers on gloo ranks)"
    ),
)


def _kept(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = (candidates.sharding < WEIGHTS) | ~np.isin(candidates.schedule, SPLIT)
    return keeps


def _kept_fault(task: Task, candidates: Candidates) -> Fault:
    name = SCHEDULES[value(candidates, "schedule")]
    what = f"{task.trainer.name} cannot run ZeRO-3 under schedule {name}: gradients of weights would be lost."
    return Fault("T01", what, ("It can with ZeRO-2, or with 1f1b or interleaved.",))


KEPT_WEIGHTS = Rule(
    name="kept-weights",
    family="trainer rules",
    sentence="Weights stay gathered between passes where the backward pass comes in halves.",
    needs=frozenset({"schedule", "sharding"}),
    keeps=_kept,
    fault=_kept_fault,
    source=(
        "torch 2.13: stage_backward_input looks for weights before FSDP2 has gathered them again, so that ZB-H1 and "
        "ZBV give no gradients of weights and DualPipeV wrong ones (gloo ranks)"
    ),
)


def _virtual_stages(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = (candidates.vpp == 1) | (candidates.pp > 1)
    return keeps


def _virtual_stages_fault(task: Task, candidates: Candidates) -> Fault:
    vpp = value(candidates, "vpp")
    what = f"vpp {vpp} needs a pipeline, but pp is 1."
    return Fault("P02", what, (f"Drop --pin vpp={vpp}, or use pp 2 or more.",))


VIRTUAL_STAGES = Rule(
    name="virtual-pipeline",
    family="layers",
    sentence="Virtual stages need a pipeline of two stages or more.",
    needs=frozenset({"pp", "vpp"}),
    keeps=_virtual_stages,
    fault=_virtual_stages_fault,
    source="Megatron-LM: interleaving needs pipeline-model-parallel-size > 1",
)


def _filled(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    keeps: BoolArray = c.num_micro_batches(task.recipe.global_batch) >= c.pp
    return keeps


def _filled_fault(task: Task, candidates: Candidates) -> Fault:
    batch = task.recipe.global_batch
    count = int(candidates.num_micro_batches(batch)[0])
    pp, dp, mbs = (value(candidates, name) for name in ("pp", "dp", "micro_batch"))
    fixes = [f"Use a global batch of {pp * dp * mbs} or more"]
    if batch // (mbs * pp) >= 1:
        fixes.append(f"dp of at most {batch // (mbs * pp)}")
    fixes.append(f"pp of at most {max(count, 1)}")
    what = f"{count} micro-batches cannot fill pp {pp} stages, as {task.trainer.name} needs."
    return Fault("B02", what, (f"{listed(fixes)}.",))


FILLED = Rule(
    name="filled-stages",
    family="batch",
    sentence="There are at least as many micro-batches as stages.",
    needs=frozenset({"dp", "pp", "micro_batch"}),
    keeps=_filled,
    fault=_filled_fault,
    source="MindSpore nn/wrap PipelineCell: 'micro_size must be greater or equal to pipeline stages'",
)


def _filled_torch(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    count = c.num_micro_batches(task.recipe.global_batch)
    dual = c.schedule == DUALPIPEV
    several = ~dual & np.isin(c.schedule, (*LOOPED, *FOLDED))
    keeps: BoolArray = several | (count >= np.where(dual, 2, 1) * c.pp)
    return keeps


def _filled_torch_fault(task: Task, candidates: Candidates) -> Fault:
    if value(candidates, "schedule") != DUALPIPEV:
        return _filled_fault(task, candidates)
    count, pp = (
        int(candidates.num_micro_batches(task.recipe.global_batch)[0]),
        value(candidates, "pp"),
    )
    what = (
        f"{count} micro-batches are too few for dualpipev on pp {pp}, as {task.trainer.name} needs."
    )
    return Fault(
        "B02",
        what,
        (f"Use {2 * pp} micro-batches or more, or pp of at most {max(count // 2, 1)}.",),
    )


FILLED_TORCH = Rule(
    name="filled-stages-torch",
    family="batch",
    sentence="With one chunk a stage, there are at least as many micro-batches as stages; for DualPipeV twice as many.",
    needs=frozenset({"dp", "pp", "micro_batch", "schedule"}),
    keeps=_filled_torch,
    fault=_filled_torch_fault,
    source="torchtitan #775; torch.distributed.pipelining DualPipeV",
)


def _rounds(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    count = c.num_micro_batches(task.recipe.global_batch)
    keeps: BoolArray = (c.schedule != INTERLEAVED) | (count % c.pp == 0)
    return keeps


def _rounds_fault(task: Task, candidates: Candidates) -> Fault:
    batch = task.recipe.global_batch
    count, pp = int(candidates.num_micro_batches(batch)[0]), value(candidates, "pp")
    fits = closest(divisors(count), pp, 5) if count else [1]
    what = f"interleaving needs a multiple of pp {pp} micro-batches; there are {count}."
    step = value(candidates, "dp") * value(candidates, "micro_batch") * pp
    near = listed(around(batch, step))
    return Fault(
        "B02", what, (f"Nearest global batch: {near}. With {batch}, pp can be {listed(fits)}.",)
    )


ROUNDS = Rule(
    name="interleaved-batch",
    family="batch",
    sentence="Under interleaving the micro-batches are a multiple of pp.",
    needs=frozenset({"dp", "pp", "micro_batch", "schedule"}),
    keeps=_rounds,
    fault=_rounds_fault,
    source="Megatron-LM: 'number of microbatches is divisible by pipeline-model-parallel-size'",
)


def _rounds_torch(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    count = c.num_micro_batches(task.recipe.global_batch)
    rounds = np.maximum(1, count // c.pp)
    keeps: BoolArray = ~np.isin(c.schedule, LOOPED) | (count % rounds == 0)
    return keeps


def _rounds_torch_fault(task: Task, candidates: Candidates) -> Fault:
    count = int(candidates.num_micro_batches(task.recipe.global_batch)[0])
    pp = value(candidates, "pp")
    rounds = max(1, count // pp)
    fits = [n for n in range(max(1, count - pp), count + pp) if n % max(1, n // pp) == 0]
    what = f"{count} micro-batches do not divide into {rounds} equal rounds of pp {pp} or more."
    return Fault("B02", what, (f"Nearest numbers: {listed(closest(fits, count, 2))}.",))


ROUNDS_TORCH = Rule(
    name="interleaved-rounds",
    family="batch",
    sentence="Under interleaving the micro-batches divide into max(1, micro-batches // pp) equal rounds.",
    needs=frozenset({"dp", "pp", "micro_batch", "schedule"}),
    keeps=_rounds_torch,
    fault=_rounds_torch_fault,
    source="PyTorch #129597, torch.distributed.pipelining Interleaved1F1B",
)

RULES = (
    STAGES,
    VIRTUAL_STAGES,
    CHUNKS,
    SCHEDULE,
    VIRTUAL,
    WHOLE_BACKWARD,
    KEPT_WEIGHTS,
    FILLED,
    FILLED_TORCH,
    ROUNDS,
    ROUNDS_TORCH,
)
