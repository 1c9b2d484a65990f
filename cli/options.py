"""Options that commands share, and how their texts are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

FORMATS = ("table", "json", "yaml", "markdown")
SHORT_FORMATS = ("table", "json")
DETAILS = ("memory", "time", "ops", "comm", "rules", "sources", "all")
WIDEST = 100
"""Columns of a page, however wide the terminal."""
OBJECTIVES = ("step-time", "cost-per-token", "fewest-chips", "pareto")


def named(text: str) -> Path:
    """The path after ``--out``; an empty text, as a variable that is not set leaves it, is not the current folder.

    Raises:
        PlannerError: it is empty (A03).
    """
    from planner.errors import PlannerError

    if not text.strip():
        raise PlannerError.of("A03", "the path after --out is empty.", "The current folder is .")
    return Path(text)


Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A name, a folder or file with a config.json, or a YAML file."
    ),
]
Cluster: TypeAlias = Annotated[
    str,
    typer.Option(
        "--cluster", "-c", metavar="SPEC",
        help="A profile's name, a file, CHIP:COUNT (h100-sxm:256), CHIP:NODESxPER (a910b:48x8) or CHIP:8,8,4.",
    ),
]  # fmt: skip
MaybeModel: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A name, a folder or file with a config.json, or a YAML file; with --like that of the plan.",
    ),
]
MaybeCluster: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", metavar="SPEC",
        help="A profile's name, a file, CHIP:COUNT (h100-sxm:256), CHIP:NODESxPER (a910b:48x8) or CHIP:8,8,4.",
    ),
]  # fmt: skip
MaybeTrainer: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        "-t",
        metavar="NAME",
        help="What the plan must be expressible in; default: megatron.",
    ),
]
Like: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="PLAN",
        help="Ask what this plan answered, with what is stated here instead.",
    ),
]
WarmStart: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--warm-start", metavar="LAYOUT",
        help="The layout that you have, a plan's file or tp=8,pp=4: always shown as a row.",
    ),
]  # fmt: skip
MaybeLayoutSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE,...",
        help="The layout, as tp=8,pp=4,mbs=1,recompute=full: settings left out are chosen. Other keys are the model's. "
        "With --like what differs from the plan's. Repeatable.",
    ),
]  # fmt: skip
Clusters: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--cluster", "-c", metavar="SPEC", help="As for `plan`. Repeatable."),
]
Trainers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--trainer", "-t", metavar="NAME", help="Default: megatron. Repeatable."),
]
WhatIfs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if", metavar="NUMBER=VALUE",
        help="Another number: node.bandwidth=0.5x, chip.memory=192 GiB; a range: network.bandwidth=0.25x..4x. "
        "Repeatable.",
    ),
]  # fmt: skip
WhatIf: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if", metavar="NUMBER=VALUE",
        help="Another number of the cluster: node.bandwidth=0.5x, chip.memory=192 GiB. Repeatable.",
    ),
]  # fmt: skip
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", min=1, help="Processes; default: all cores for many plans."
    ),
]
Backend: TypeAlias = Annotated[
    str,
    typer.Option(
        "--backend", metavar="NAME", help="Where they run: local, dask=ADDRESS or ray=ADDRESS."
    ),
]
Trainer: TypeAlias = Annotated[
    str,
    typer.Option("--trainer", "-t", metavar="NAME", help="What the plan must be expressible in."),
]
GlobalBatch: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--global-batch", "-b", metavar="N",
        help="Sequences in a step, or tokens as in 4Mtok; default: the recipe's, else 4 M tokens.",
    ),
]  # fmt: skip
SeqLen: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--seq-len", "-s", metavar="N", help="Tokens in a sequence; default: the model's maximum."
    ),
]
Precision: TypeAlias = Annotated[
    str | None,
    typer.Option("--precision", metavar="NAME", help="bf16 (default), fp8, fp16 or fp32."),
]
Optimizer: TypeAlias = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="NAME", help="Decides bytes a parameter; default: adamw."),
]
RecipeFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--recipe", metavar="FILE", help="Batch, sequence, precision, optimizer in YAML; flags win."
    ),
]
MemoryLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--memory-limit", metavar="LIMIT",
        help="GiB a chip, or a share of the usable memory as in 90%; default: all that is usable.",
    ),
]  # fmt: skip
Pins: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", metavar="KEY=VALUE,...",
        help="Fix a choice, or several: tp=8,pp<=4, recompute=none, attn.q.heads=tp, layers.*.mlp.up=((1,1),(1,8)). "
        "Repeatable.",
    ),
]  # fmt: skip
OperatorPins: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", metavar="OPERATOR=VALUE",
        help="Fix an operator's strategy: attn.q.heads=tp or layers.*.mlp.up=((1,1),(1,8)). Repeatable.",
    ),
]  # fmt: skip
Objective: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="step-time (default), cost-per-token, fewest-chips, or pareto: step against memory.",
    ),
]
TimeLimit: TypeAlias = Annotated[
    str,
    typer.Option(
        "--time-limit", metavar="TIME", help="As in 60s or 5min; then the best so far and its gap."
    ),
]
Top: TypeAlias = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="Rows of alternatives.")
]
Detail: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--detail", metavar="LIST", help=f"More tables, comma-separated: {', '.join(DETAILS)}."
    ),
]
Format: TypeAlias = Annotated[
    str, typer.Option("--format", "-f", metavar="NAME", help=f"{', '.join(FORMATS)}.")
]
ShortFormat: TypeAlias = Annotated[
    str, typer.Option("--format", "-f", metavar="NAME", help=f"{', '.join(SHORT_FORMATS)}.")
]
ModelSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of the model's file, as layers=40 or num_key_value_heads=8. Repeatable.",
    ),
]
Out: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--out", "-o", metavar="PATH", parser=named,
        help="Also write a file: .json (the plan), .html (a report), .md, .csv, .parquet, .trace.json (a timeline). "
        "Repeatable.",
    ),
]  # fmt: skip
PlanFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan, as `plan --out plan.json` wrote it.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, notes or warnings.")
]
Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", help="More talk; whole tracebacks.")]
NoColor: TypeAlias = Annotated[bool, typer.Option("--no-color", help="Plain text.")]


def batch(text: str | None) -> int | str | None:
    """A global batch: sequences as a number, anything else as it was written."""
    return int(text) if text is not None and is_number(text) else text


def is_number(text: str) -> bool:
    """Whether a text is a whole number as people write them: Python refuses to read thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def tokens(text: str | None) -> int | None:
    """A sequence length."""
    from planner.errors import PlannerError

    if text is None or is_number(text):
        return None if text is None else int(text)
    raise PlannerError.of(
        "A03", f"--seq-len {text!r} is no length of a sequence.", "Write it like 8192."
    )


def chosen(word: str, names: Sequence[str], flag: str) -> str:
    """A word that must be one of a few."""
    from planner.errors import PlannerError, listed, nearest

    if word in names:
        return word
    near = f"Nearest: {listed(nearest(word, names, 2))}. " if word else ""
    raise PlannerError.of("A03", f"{flag} cannot be {word!r}.", f"{near}Possible: {listed(names)}.")


def details(text: str | None) -> tuple[str, ...]:
    """The comma list of ``--detail``."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    return tuple(chosen(name, DETAILS, "--detail") for name in names)


_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ms|s|min|h|)")


def seconds(text: str, flag: str = "--time-limit") -> float:
    """A time: ``60``, ``60s``, ``500ms``, ``5min``, ``1h``."""
    from planner.errors import PlannerError

    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise PlannerError.of("A03", f"{flag} {text!r} is not a time. Write it like 60s or 5min.")
    found = float(match[1]) * {"": 1, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}[match[2]]
    if not found:
        raise PlannerError.of("A03", f"{flag} {text!r} is no time at all. Write it like 60s.")
    return found


def settings(texts: Iterable[str] | None, flag: str) -> dict[str, str]:
    """``KEY=VALUE`` pairs, several of them separated by commas or by repeating the flag."""
    from planner.errors import Fault, PlannerError

    pairs: dict[str, str] = {}
    faults = []
    for part in (part.strip() for text in texts or () for part in text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value):
            faults.append(
                Fault("A04", f"{flag} {part!r} is not KEY=VALUE.", (f"Write it like {flag} tp=8",))
            )
        elif pairs.get(key, value) != value:
            faults.append(Fault("A04", f"{flag} gives {key} twice: {pairs[key]} and {value}."))
        pairs[key] = value
    if faults:
        raise PlannerError(*faults)
    return pairs


def prices(texts: Iterable[str] | None) -> dict[str, float]:
    """Dollars of a chip-hour by name."""
    from planner.errors import PlannerError

    found = {}
    for name, text in settings(texts, "--price").items():
        try:
            found[name] = float(text.removeprefix("$"))
        except ValueError:
            found[name] = -1.0
        if not 0 < found[name] < 1e9:
            raise PlannerError.of(
                "A04", f"--price {name}={text} is no price.", "Write it like h100-sxm=2.50"
            )
    return found


_AMOUNT = re.compile(r"\$?(\d{1,15}(?:\.\d{0,9})?|\.\d{1,9}) ?([KMBGT]?)", re.IGNORECASE)


def amount(text: str | None, flag: str) -> float | None:
    """A large number: ``15T``, ``300B``, ``5M``, ``1000000``."""
    from planner.errors import PlannerError

    if text is None:
        return None
    match = _AMOUNT.fullmatch(text.strip())
    value = float(match[1]) if match else 0.0
    if match is None or value <= 0:
        raise PlannerError.of(
            "A03", f"{flag} {text!r} is no amount. Write it like 15T, 300B or 5M."
        )
    return value * {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}[match[2].upper()]
