"""Measured runs, one a line of JSON: what a source said about one training run, as it said it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planner.calibrate.spellings import sharding_stage, text
from planner.documented import wanted
from planner.errors import Fault, PlannerError
from planner.frontends.model_file import MOST_LAYERS
from planner.units import Json

MOST_FAULTS = 20
"""Wrong lines told at once; more would hide the first."""


def _whole(value: Json) -> Json:
    """``2.0`` is 2; what is no whole number stays as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _joined(value: Json) -> Json:
    """A list or a mapping of chips as the text that stands for it elsewhere: ``v100:12 + t4:4``.

    >>> _joined({"v100": 12, "t4": 4}), _joined(["v100", "t4"]), _joined("h100")
    ('v100:12 + t4:4', 'v100 + t4', 'h100')
    """
    if isinstance(value, dict):
        return " + ".join(f"{name}:{count}" for name, count in value.items())
    if isinstance(value, list):
        return " + ".join(str(_joined(each)) for each in value)
    return value


def _sized(value: Json) -> Json:
    """A number of tokens as the window of every layer."""
    return {"size": value} if isinstance(value, int | str) else value


Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=10**9)]
Size = Annotated[int, BeforeValidator(_whole), Field(ge=-1, le=10**9)]
Depth = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MOST_LAYERS)]
"""A number of layers, as many as a model's file may have."""
Amount = Annotated[float, Field(gt=0, lt=1e15)]
Word = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""Text; empty where a row has null, as rows have for what a source does not say."""
Names = Annotated[str, BeforeValidator(_joined)]
"""A name, or several as a list or with their counts."""
Told = Annotated[str | None, BeforeValidator(text)]
"""Words, a flag or a list of words; None where the source does not say."""


class Part(BaseModel):
    """A part of a row; what it has beyond our fields is kept as it is."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def other(self, key: str) -> Json:
        """A field that only some sources have; None without it."""
        return (self.model_extra or {}).get(key)


class WindowFacts(Part):
    """Which layers attend to so many tokens: every so many from the first, or all but every so many."""

    size: Count
    every: Count = 1
    all_but_every: Count | None = None


class LatentFacts(Part):
    """Widths of latent attention."""

    q_lora: Count | None = None
    kv_lora: Count
    qk_nope: Count
    qk_rope: Count
    v_head: Count


class ModelFacts(Part):
    """Shape of the model; None where the source does not say."""

    name: Word = ""
    type: Annotated[Word, AfterValidator(str.lower)] = ""
    """``llama``, ``gpt``, ``moe``, ``bert``, ``vit`` or ``other``."""
    layers: Annotated[Depth, Field(ge=1)] | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count | None = None
    gated: bool | None = None
    vocab: Count | None = None
    seq: Count | None = None
    experts: Size | None = None
    top_k: Size | None = None
    moe_ffn: Size | None = None
    shared_ffn: Size | None = None
    dense_layers: Size | None = None
    tied_embeddings: bool | None = None
    mtp_layers: Depth | None = None
    parallel_block: bool | None = None
    window: Annotated[WindowFacts | None, BeforeValidator(_sized)] = None
    mla: LatentFacts | None = None
    params_b: Amount | None = None


class HardwareFacts(Part):
    """What it ran on."""

    chip: Annotated[Word, BeforeValidator(_joined)] = ""
    chip_key: Names | None = None
    chips_per_node: Count | None = None
    num_chips: Count | None = None
    intra: Names | None = None
    inter: Names | None = None


class ParallelFacts(Part):
    """How it was divided and what ran it."""

    dp: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    etp: Count | None = None
    vpp: Annotated[Depth, Field(ge=1)] | None = None
    sp: bool | None = None
    zero: Annotated[int | str | None, BeforeValidator(sharding_stage)] = None
    micro_batch: Annotated[float, Field(gt=0)] | None = None
    global_batch: Count | None = None
    recompute: Told = None
    schedule: Told = None
    precision: Told = None
    framework: Told = None
    overlap: Told = None
    offload: Told = None
    fsdp: dict[str, str] | None = None
    zero_group: Size | None = None
    fsdp_group: Size | None = None
    fsdp_degree: Size | None = None


class MeasuredFacts(Part):
    """What was measured."""

    tflops_per_chip: Amount | None = None
    flops_formula: str | None = None
    mfu: Amount | None = None
    step_time_s: Amount | None = None
    tokens_per_s_per_chip: Amount | None = None
    samples_per_s: Amount | None = None
    mem_gib_per_chip: Amount | None = None
    mem_reserved_gib: Amount | None = None
    oom: bool | None = None


class Run(Part):
    """One measured run."""

    id: str = Field(min_length=1)
    source: Word = ""
    group: Word = ""
    """Runs of one cluster, software and model family."""
    quality: Word = ""
    """``A`` complete, ``B`` one detail assumed, ``C`` a detail missing."""
    complete: bool | None = None
    notes: str | None = None
    model: ModelFacts
    hardware: HardwareFacts
    parallel: ParallelFacts
    measured: MeasuredFacts

    @property
    def remarks(self) -> str:
        """Notes as text, empty without any."""
        return self.notes or ""

    @property
    def judged(self) -> bool:
        """Whether the totals count it: complete and of quality A or B, or without any such mark."""
        return self.complete is not False and self.quality in ("A", "B", "")


def read_runs(path: Path) -> tuple[Run, ...]:
    """All runs of a file of JSON lines, packed with gzip or not.

    Raises:
        PlannerError: a file that cannot be read (F01), lines that are no runs (F02), each with its place.
    """
    runs: list[Run] = []
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            run = _run(line)
        except ValueError as error:
            faults.append(_fault(error, f"{path}:{number}"))
            continue
        if run.id in seen:
            what = f"id '{run.id}' is given twice (first on line {seen[run.id]})."
            faults.append(Fault("F02", what, where=f"{path}:{number}"))
        seen[run.id] = number
        runs.append(run)
    if faults:
        more = len(faults) - MOST_FAULTS
        rest = [Fault("F02", f"{more} more lines are wrong.", where=str(path))] if more > 0 else []
        raise PlannerError(*faults[:MOST_FAULTS], *rest)
    if not runs:
        raise PlannerError.of("F02", "the file has no runs.", where=str(path))
    return tuple(runs)


def _run(line: str) -> Run:
    return Run.model_validate(json.loads(line))


def _lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            yield from stream
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise PlannerError.of("F01", f"cannot read {path}: {why}.") from None


def _fault(error: ValueError, where: str) -> Fault:
    """What is wrong with a line, in the words of the row's own keys."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the row"
        right = wanted(first["type"], first)
        if first["type"] == "missing":
            return Fault("F02", f"{key} is missing.", where=where)
        what = f"{key} is {str(first['input'])[:40]!r}; it should be {right}."
        return Fault("F02", what, where=where)
    if isinstance(error, json.JSONDecodeError):
        return Fault("F02", f"this is not JSON: {error.msg} (column {error.colno}).", where=where)
    return Fault("F02", f"{error}.", where=where)
