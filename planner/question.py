"""A question as a person asks it, read into a task: what was stated, and what had to be assumed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar, get_args

from planner.errors import Fault, PlannerError, listed, nearest
from planner.frontends.cluster_file import read_cluster, under_what_ifs
from planner.frontends.model_file import read_model
from planner.frontends.recipe_file import RecipeFile, read_recipe
from planner.graph.adapters import trained_by_adapters
from planner.graph.architecture import Architecture
from planner.graph.blocks import build_model
from planner.graph.model import Model
from planner.hardware.cluster import Cluster
from planner.hardware.limit import memory_limit
from planner.plan.asked import Asked
from planner.plan.fingerprint import fingerprint
from planner.plan.schema import Assumption, Fingerprints
from planner.recipe import DEFAULT_BATCH_TOKENS, PRECISIONS, Lora, OptimizerName, Recipe
from planner.search.operator_pins import divided
from planner.search.pins import Pins, parse_pins
from planner.trainers.registry import check_runs, check_trains, get_trainer
from planner.trainers.trainer import Task, Trainer
from planner.units import show_count, three_digits

OBJECTIVES = ("step-time", "cost-per-token", "fewest-chips", "pareto")
"""On chips of one kind the cheapest token is the fastest one, since all of them are paid for."""
Part = TypeVar("Part")
Setting = TypeVar("Setting", int, str, int | str)
MOST_SEQ = 2**27
MOST_BATCH = 10**9
_TOKENS = re.compile(r"^([0-9]{1,18}(?:\.[0-9]+)?)\s*([KMG]?)\s*tok(?:ens)?$", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Model, cluster and what else a person states; None where they leave it open."""

    model: str
    """A catalogue name, a config.json, a folder with one, or a model description."""
    cluster: str
    """A profile, ``CHIP:COUNT``, ``CHIP:NODESxPER`` or a file."""
    trainer: str = "megatron"
    global_batch: int | str | None = None
    """Sequences a step, or tokens as in ``4Mtok``."""
    seq_len: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    recipe_file: Path | None = None
    memory_limit: str | None = None
    """GiB a chip, or a share of the usable memory such as ``90%``."""
    pins: tuple[str, ...] = ()
    objective: str = "step-time"
    time_limit: float = 60.0
    """Seconds."""
    top: int = 5
    """Alternatives to return, the plan itself included."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Keys of the model's configuration to replace."""
    warm_start: Mapping[str, int | str] = field(default_factory=dict)
    """A layout that the user has, to stand among the rows of the answer."""
    base_batch: int | None = None
    """Sequences in the batch for which the learning rate was tuned; the recipe's otherwise."""
    what_if: tuple[str, ...] = ()
    """Numbers of the hardware that are to be others, such as ``node.bandwidth=0.5x``."""
    folders: tuple[Path, ...] = ()
    """The user's own models and profiles, searched before the packaged ones."""
    figures: bool = False
    """Also compute what only a report shows; takes longer than the answer."""

    def asked(self, layout: Mapping[str, int | str] | None = None) -> Asked:
        """The question as a plan keeps it, with the layout if one was stated."""
        kept = {name: getattr(self, name) for name in Asked.model_fields if name != "layout"}
        file = None if self.recipe_file is None else str(self.recipe_file)
        kept |= {"recipe_file": file, "folders": tuple(map(str, self.folders))}
        return Asked(**kept, layout=None if layout is None else dict(layout))

    @classmethod
    def again(cls, asked: Asked) -> Question:
        """The question that a plan answered; its layout, if any, is not part of it."""
        kept = asked.model_dump(exclude={"layout"})
        file = asked.recipe_file
        kept |= {"recipe_file": None if file is None else Path(file)}
        return cls(**kept | {"folders": tuple(map(Path, asked.folders))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """A question read into a task."""

    task: Task
    pins: Pins
    assumptions: tuple[Assumption, ...]
    fingerprints: Fingerprints
    asked: Asked
    hints: tuple[str, ...] = ()
    file_layout: Mapping[str, int | str] = field(default_factory=dict)
    """The layout of the trainer's file that stands for the model; empty where the model is none."""


def understand(question: Question, cluster: Cluster | None = None) -> Understood:
    """Read model, cluster, recipe and trainer.

    Args:
        question: what is asked.
        cluster: to take in place of the one that the question names.

    Raises:
        PlannerError: anything that is wrong with them; the faults of all four together.
    """
    if question.objective not in OBJECTIVES:
        raise PlannerError.of(
            "A03",
            f"objective cannot be '{question.objective}'.",
            f"Possible: {listed(OBJECTIVES)}.",
        )
    question, told, own = with_trainer_file(question)
    arch, cluster, trainer, file = _read_parts(question, cluster)
    recipe, assumed = _recipe(question, file, arch, cluster)
    cluster.chip.peak_for(recipe.precision)
    check_runs(trainer, cluster.chip, recipe.precision)
    whole = model_of(arch, recipe)
    check_trains(trainer, whole)
    pins = parse_pins(question.pins, trainer, whole)
    model, operators = divided(whole, pins.operators)
    task = Task(
        model=model,
        cluster=cluster,
        recipe=recipe,
        trainer=trainer,
        memory_limit=memory_limit(question.memory_limit, cluster.chip),
        copy_kv=pins.copy_kv,
        uneven_chunks=pins.fixed("vpp") is not None,
    )
    if operators:
        from planner.search.operator_faults import impossible

        if wrong := impossible(task, operators):
            raise PlannerError(*wrong)
    return Understood(
        task=task,
        pins=replace(pins, operators=operators),
        assumptions=(
            *told,
            *assumed,
            *_assumed_model(arch, whole, recipe),
            *assumed_hardware(question, trainer, cluster),
        ),
        fingerprints=Fingerprints(
            model=fingerprint(asdict(arch)),
            cluster=fingerprint(asdict(cluster)),
            recipe=fingerprint(asdict(recipe)),
            trainer=fingerprint([trainer.name, trainer.release]),
        ),
        asked=question.asked(),
        hints=learning_rate_hints(recipe.global_batch, question.base_batch or file.base_batch),
        file_layout=own,
    )


def with_trainer_file(
    question: Question,
) -> tuple[Question, tuple[Assumption, ...], Mapping[str, int | str]]:
    """A question whose model is a trainer's configuration: what that says stands for what a person left open.

    Returns:
        The question filled, what was taken, and the file's own layout.
    """
    path = Path(question.model).expanduser()
    if not path.is_file():
        return question, (), {}
    from planner.frontends.launch.read import is_trainer_file, read_trainer_file

    if not is_trainer_file(path):
        return question, (), {}
    found = read_trainer_file(path)
    says = {
        key: getattr(found, key) for key in ("global_batch", "seq_len", "precision", "optimizer")
    }
    if question.recipe_file is not None:
        says = {}
    if question.trainer == "megatron":
        says["trainer"] = found.trainer
    taken = {
        key: value
        for key, value in says.items()
        if value is not None and getattr(question, key) in (None, "megatron")
    }
    words = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in taken.items())
    told = Assumption(key="trainer_file", text=f"{words} ({path.name})")
    return replace(question, **taken), (told,) * bool(taken), found.divided


def learning_rate_hints(batch: int, base: int | None) -> tuple[str, ...]:
    """What another batch than the one a learning rate was tuned for asks for; rules of thumb, named as such.

    Source: Goyal et al. 2017 (linear); Krizhevsky 2014, Malladi et al. 2022 (square root, adaptive optimizers).

    >>> learning_rate_hints(2048, 128)[0].split(":")[1].strip()
    'learning rate × 16.0 (linear rule, SGD) or × 4.00 (square-root rule, Adam)'
    """
    if base is None or base == batch:
        return ()
    ratio = batch / base
    return (
        f"global batch {batch} is {three_digits(ratio)} × the base batch {base}: learning rate "
        f"× {three_digits(ratio)} (linear rule, SGD) or × {three_digits(math.sqrt(ratio))} (square-root rule, Adam)",
        "warm up over the first 5 % of the steps and clip gradients; both are rules of thumb: check convergence",
    )


def model_of(arch: Architecture, recipe: Recipe) -> Model:
    """The graph of an architecture as a recipe trains it."""
    model = build_model(arch, recipe.seq, fused=recipe.fused_attention)
    lora = recipe.lora
    return model if lora is None else trained_by_adapters(model, lora.rank, lora.targets)


def _read_parts(
    question: Question, given: Cluster | None
) -> tuple[Architecture, Cluster, Trainer, RecipeFile]:
    """Each part by itself, so that the faults of all are told at once."""
    faults: list[Fault] = []

    def attempt(read: Callable[[], Part]) -> Part | None:
        try:
            return read()
        except PlannerError as error:
            faults.extend(error.faults)
            return None

    q = question
    arch = attempt(lambda: read_model(q.model, overrides=q.overrides, folders=q.folders))
    cluster = attempt(
        lambda: under_what_ifs(given or read_cluster(q.cluster, q.folders), q.what_if)
    )
    trainer = attempt(lambda: get_trainer(q.trainer))
    file = attempt(lambda: read_recipe(q.recipe_file) if q.recipe_file else RecipeFile())
    if arch is None or cluster is None or trainer is None or file is None:
        raise PlannerError(*faults)
    return arch, cluster, trainer, file


def _recipe(
    question: Question, file: RecipeFile, arch: Architecture, cluster: Cluster
) -> tuple[Recipe, list[Assumption]]:
    """Flags win over the recipe file, the file over defaults; every default and what came from the file is told."""
    told: list[Assumption] = []

    def settle(key: str, default: Setting, text: str, why: str = "") -> Setting:
        """A flag as it is; else the file's value or the default, told as ``text`` with its value."""
        flag, written = getattr(question, key), getattr(file, key)
        if flag is not None:
            return flag  # type: ignore[no-any-return]
        value = default if written is None else written
        origin = why if written is None else f" ({question.recipe_file})"
        told.append(Assumption(key=key, text=text.format(value) + origin))
        return value

    seq = _checked_seq(settle("seq_len", arch.max_seq, "seq {}", f" ({arch.assumed})"))
    default = default_batch(seq, cluster.num_chips)
    tokens = f" ({show_count(default * seq)} tokens)"
    batch: int | str = settle("global_batch", default, "global batch {} sequences", tokens)
    usual = "bf16" if "bf16" in cluster.chip.peak else "fp16"
    lacks = "" if usual == "bf16" else f" ({cluster.chip.name} has no bf16)"
    precision = _one_of(settle("precision", usual, "{}", lacks), PRECISIONS, "precision")
    names = get_args(OptimizerName)
    optimizer = _one_of(settle("optimizer", "adamw", "{}", ", fp32 states"), names, "optimizer")
    if file.fused_attention is False:
        told.append(Assumption(key="attention", text=f"unfused attention ({question.recipe_file})"))
    fused = file.fused_attention if file.fused_attention is not None else True
    lora, more = _lora(file, f" ({question.recipe_file})")
    told += more
    recipe = Recipe(
        global_batch=_sequences(batch, seq),
        seq=seq,
        precision=precision,  # type: ignore[arg-type]
        optimizer=optimizer,  # type: ignore[arg-type]
        fused_attention=fused,
        lora=lora,
        master_weights=file.master_weights is not False,
    )
    return recipe, told


def _lora(file: RecipeFile, origin: str) -> tuple[Lora | None, list[Assumption]]:
    """Adapters and low-precision weights without fp32 ones, as the file asks for them, and how that is told."""
    told = []
    if file.master_weights is False:
        told.append(Assumption(key="master_weights", text=f"no fp32 weights{origin}"))
    if file.lora is None:
        return None, told
    lora = Lora(rank=file.lora.rank, targets=tuple(file.lora.targets), bits=file.lora.bits)
    told.append(Assumption(key="lora", text=f"LoRA {lora.described}{origin}"))
    return lora, told


def default_batch(seq: int, chips: int) -> int:
    """About 4 M tokens in sequences: the odd part of the chips times a power of two.

    So any data-parallel degree divides it, up to the batch itself; an odd part can only be data parallel on most
    models, and therefore counts even where it makes the batch larger than 4 M tokens.

    >>> default_batch(8192, 256), default_batch(8192, 12), default_batch(131072, 1024), default_batch(8192, 600)
    (512, 384, 32, 600)
    """
    target = max(1.0, DEFAULT_BATCH_TOKENS / seq)
    odd = chips // (chips & -chips)
    return odd << max(0, round(math.log2(target / odd)))


def _checked_seq(seq: int) -> int:
    if not 0 < seq <= MOST_SEQ:
        raise PlannerError.of(
            "S03", f"--seq-len {seq} is no length of a sequence.", f"It can be 1 to {MOST_SEQ:,}."
        )
    return seq


def _sequences(batch: int | str, seq: int) -> int:
    """A global batch in sequences; tokens are divided by the sequence length and must come out even.

    >>> _sequences("4Mtok", 4096)
    1024
    """
    if isinstance(batch, str):
        match = _TOKENS.match(batch.strip())
        if match is None and not _COUNT.fullmatch(batch.strip()):
            raise PlannerError.of(
                "B03", f"global batch '{batch}' is not understood.", "Write it like 512 or 4Mtok."
            )
        if match is not None:
            scale = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2].upper()]
            tokens = round(float(match[1]) * scale)
            if tokens % seq:
                near = [count for count in (tokens // seq, tokens // seq + 1) if count]
                raise PlannerError.of(
                    "B03",
                    f"global batch {batch} is {tokens:,} tokens, no multiple of {seq} a sequence.",
                    f"Nearest, in sequences: {listed(near)}.",
                )
            batch = tokens // seq
    count = int(batch)
    if not 0 < count <= MOST_BATCH:
        raise PlannerError.of(
            "B03", f"global batch {batch} is no number of sequences.", f"It is 1 to {MOST_BATCH:,}."
        )
    return count


def _one_of(word: str, names: Sequence[str], what: str) -> str:
    if word.lower() in names:
        return word.lower()
    close = listed(nearest(word, names, 2))
    raise PlannerError.of(
        "R01", f"no {what} named '{word}'. Nearest: {close}.", f"Possible: {listed(names)}."
    )


def _assumed_model(arch: Architecture, model: Model, recipe: Recipe) -> list[Assumption]:
    """How long the source of an encoder is, and how many parameters train where that is not all of them."""
    found = []
    if model.has_encoder:
        source = (
            f"source of {arch.source_seq or recipe.seq:,} tokens; tokens counted are the decoder's"
        )
        found.append(Assumption(key="source", text=source))
    if recipe.lora:
        found.append(Assumption(key="trained", text=f"{model.num_trained:,} parameters train"))
    return found


def assumed_hardware(question: Question, trainer: Trainer, cluster: Cluster) -> list[Assumption]:
    found = []
    if question.trainer == "megatron":
        found.append(Assumption(key="trainer", text=f"trainer {trainer.name} ({trainer.release})"))
    chip = cluster.chip
    if port := trainer.elsewhere.get(chip.vendor):
        found.append(Assumption(key="port", text=f"{trainer.name} is not for {chip.name}: {port}"))
    found += [Assumption(key="cluster", text=text) for text in cluster.assumed]
    if chip.price is not None:
        source = f" ({chip.price_source})" if chip.price_source else ""
        found.append(Assumption(key="price", text=f"${chip.price:.2f} a chip-hour{source}"))
    return found
