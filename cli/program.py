"""The executable: finds the command, and turns whatever goes wrong into words and an exit code."""

from __future__ import annotations

import errno
import io
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli import exits
from cli.calibrate import calibrate
from cli.check import check
from cli.compare import compare
from cli.console import CLOSED, put
from cli.diff import diff
from cli.evaluate import evaluate
from cli.explain import explain
from cli.export import export
from cli.list import list_names
from cli.plan import plan
from cli.price import price
from cli.schema import schema
from cli.show import show
from cli.size import size

if TYPE_CHECKING:
    from planner.errors import Fault

PROGRAM = "shardwright"

app = typer.Typer(
    name=PROGRAM,
    help="Find the fastest parallel training plan that fits a cluster, and say why.",
    epilog=f"The version: {PROGRAM} --version",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
app.command("plan")(plan)
app.command("explain")(explain)
app.command("price")(price)
app.command("compare")(compare)
app.command("size")(size)
app.command("diff")(diff)
app.command("export")(export)
app.command("check")(check)
app.command("evaluate")(evaluate)
app.command("calibrate")(calibrate)
app.command("list")(list_names)
app.command("show")(show)
app.command("schema")(schema)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _ready_streams()
    try:
        return _run(words)
    except (KeyboardInterrupt, typer.Abort):
        _say("Stopped before there was an answer.")
        return exits.INTERRUPTED
    except SystemExit:  # how the parser ends where nobody reads its help any more
        return exits.ANSWER
    except Exception as error:
        from planner.errors import Fault, PlannerError

        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            what = f"the output cannot be written: {error.strerror}."
            return _refuse([Fault("O03", what)], words)
        if isinstance(error, io.UnsupportedOperation) and not sys.stdout.writable():
            return _refuse([Fault("O03", CLOSED)], words)
        if isinstance(error, typer.TyperException):
            return _refuse([_usage_fault(error)], words)
        if isinstance(error, PlannerError):
            return _refuse(error.faults, words)
        return _bug(error, words)


def _ready_streams() -> None:
    """Odd characters are replaced; where the caller closed them, answers are refused and talk goes nowhere."""
    sys.stdout = sys.stdout or Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(text: str) -> None:
    put(text + "\n", sys.stderr)


def _run(words: list[str]) -> int:
    if words[0] == "--version":
        put(f"{PROGRAM} {_version()}\n", sys.stdout)
        return exits.ANSWER
    from typer.main import get_command

    program: Any = get_command(app)
    if words[0].startswith("-"):
        program.main(words, prog_name=PROGRAM, standalone_mode=False)
        return exits.ANSWER
    command = program.commands.get(words[0])
    if command is None:
        from planner.errors import PlannerError, listed, nearest

        near = listed(nearest(words[0], program.commands, 2))
        raise PlannerError.of(
            "A02",
            f"no command {words[0]!r}. Nearest: {near}.",
            f"All: {listed(list(program.commands))}. Help: {PROGRAM} --help",
        )
    name = f"{PROGRAM} {words[0]}"
    _refuse_repeated(command.params, words[1:], name)
    result = command.main(words[1:], prog_name=name, standalone_mode=False)
    if result == exits.INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else exits.ANSWER


def _refuse_repeated(params: Sequence[Any], words: list[str], name: str) -> None:
    """Refuses an option with one value that is given two: the parser would silently take the last."""
    takes = {text: param for param in params for text in param.opts if not _bare(param, text)}
    given: dict[str, str] = {}
    following = iter(words)
    for word in following:
        text, equals, value = word.partition("=")
        param = takes.get(text)
        if param is None:
            continue
        value = value if equals else next(following, "")
        if param.multiple or param.name not in given:
            given[param.name] = value
            continue
        from planner.errors import PlannerError

        before = given[param.name]
        pools = f'Pools of one job: --cluster "{before} + {value}". To compare: {PROGRAM} compare.'
        more = pools if param.name == "cluster" else f"Help: {name} --help"
        raise PlannerError.of("A03", f"{text} is given twice: {before} and {value}.", more)


def _bare(param: Any, text: str) -> bool:  # noqa: ANN401
    """Whether this name of a parameter is followed by no value."""
    return not text.startswith("-") or bool(param.is_flag)


def _version() -> str:
    """Not an option of the parser, which would load pydantic for every ``--help``."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PROGRAM)
    except PackageNotFoundError:
        return "from a checkout that is not installed"


def _usage_fault(error: typer.TyperException) -> Fault:
    """What the parser of the command line found, in our words."""
    from planner.errors import Fault, listed, nearest

    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context else PROGRAM
    option = getattr(error, "option_name", "")
    if type(error).__name__ == "NoSuchOption":
        known = [
            name for param in context.command.params for name in param.opts if name.startswith("--")
        ]
        near = listed(nearest(option, [*known, "--help", *([] if known else ["--version"])], 2))
        return Fault(
            "A01", f"no option {option} in {path}. Nearest: {near}.", (f"All: {path} --help",)
        )
    message = error.format_message().rstrip(".").replace("Input should be", "it should be")
    message = message.replace("greater than or equal to", "at least")
    return Fault("A03", f"{message[:1].lower()}{message[1:]}.", (f"Help: {path} --help",))


def _refuse(faults: Sequence[Fault], words: list[str]) -> int:
    """Says what is wrong with the input: to people in sentences, to ``--format json`` as one line of JSON."""
    if _wants_json(words):
        import json
        from dataclasses import asdict

        _say(json.dumps({"faults": [asdict(f) for f in faults]}, ensure_ascii=False))
    else:
        for fault in faults:
            _say(str(fault))
    return exits.WRONG_INPUT


def _wants_json(words: list[str]) -> bool:
    wanted = {("--format", "json"), ("-f", "json")}
    return "--format=json" in words or not wanted.isdisjoint(itertools.pairwise(words))


def _bug(error: Exception, words: list[str]) -> int:
    """A failure that is ours: how to report it, and the traceback where nobody has to read it."""
    import tempfile
    import traceback

    trace = "".join(traceback.format_exception(error))
    _say(f"Error: {type(error).__name__}: {error}")
    _say("       This is a bug in shardwright, not in your input. Please report it,")
    if "--verbose" in words:
        _say(f"       with the text below.   [X01]\n\n{trace.rstrip()}")
        return exits.BUG
    try:
        handle, name = tempfile.mkstemp(prefix=f"{PROGRAM}-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(f"{PROGRAM} {' '.join(words)}\n\n{trace}")
        _say(f"       with the file {name}   [X01]")
    except OSError:
        _say("       with what --verbose shows.   [X01]")
    return exits.BUG
