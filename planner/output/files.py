"""Files that a command writes: whole or not at all, and never over something else."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import Fault, PlannerError, listed
from planner.plan.schema import NoPlan, Plan
from planner.plan.write import write_plan

if TYPE_CHECKING:
    from planner.export.files import File
    from planner.plan.findings import Comparison, Largest, Sizing

REPORT = ".html"
"""Ending of a plan's report."""
MADE = "made by shardwright"
"""What every exported file says of itself."""
ENDINGS = {
    ".json": "the plan",
    REPORT: "the report",
    ".md": "the page as Markdown",
    ".csv": "the alternatives",
    ".parquet": "the same, with pyarrow",
}
TRACES = {".trace.json": "a timeline", ".trace.json.gz": "the same, compressed"}
"""Endings of two parts or more."""


def check_outputs(paths: Sequence[Path]) -> None:
    """Says before the work what could not be written after it.

    Raises:
        PlannerError: an ending that nothing is written for (O01), something else in its place (O02), a place that
            cannot be written (O03).
    """
    faults = [fault for path in paths if (fault := _fault(path)) is not None]
    if faults:
        raise PlannerError(*faults)


def check_profile(path: Path) -> None:
    """The same for a cluster's profile, which is YAML.

    Raises:
        PlannerError: as :func:`check_outputs`.
    """
    fault = None
    if path.suffix not in (".yaml", ".yml"):
        what = f"cannot write {path}: a cluster's profile ends in .yaml."
        fault = Fault("O01", what, (f"Write it like {path.with_suffix('.yaml')}",))
    elif path.is_file() and not _is_profile(path):
        what = f"{path} is there and is not a cluster's profile; it is not overwritten."
        fault = Fault("O02", what, ("Choose another name, or remove it.",))
    fault = fault or place_fault(path)
    if fault is not None:
        raise PlannerError(fault)


def _is_profile(path: Path) -> bool:
    """Whether a file has the keys of a cluster, or nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return not text.strip() or ("\nlevels:" in text and "\nchips_per_host:" in text)


def write_output(
    path: Path, plan: Plan, beside: Comparison | Sizing | Largest | None = None
) -> None:
    """Writes the file that its ending asks for.

    Args:
        path: where to.
        plan: what it shows.
        beside: what a report shows among its what-ifs.

    Raises:
        PlannerError: as :func:`check_outputs`.
    """
    check_outputs([path])
    write_or_refuse(path, _text(path, plan, beside))


def write_no_plan(path: Path, answer: NoPlan) -> bool:
    """Writes why there is no plan, where the ending is that of a report or of Markdown.

    Returns:
        Whether it does.

    Raises:
        PlannerError: as :func:`check_outputs`.
    """
    if path.suffix == REPORT:
        from planner.report.html.no_plan import render_no_plan_html

        text = render_no_plan_html(answer)
    elif path.suffix == ".md":
        from planner.report.markdown import render_markdown

        text = render_markdown(answer)
    else:
        return False
    check_outputs([path])
    write_or_refuse(path, text)
    return True


def write_files(folder: Path, files: Sequence[File], *, anything: bool = False) -> list[Path]:
    """Writes the files of an export into a folder: all of them, or none if one would hide something else.

    Args:
        folder: where to.
        files: what to write.
        anything: whether a file that is there may not be replaced, whoever made it.

    Raises:
        PlannerError: a place that cannot be written (O03), a file that no export wrote (O02).
    """
    paths = [folder / file.name for file in files]
    faults = [fault for path in paths if (fault := _export_fault(path, anything)) is not None]
    if faults:
        raise PlannerError(*faults)
    for path, file in zip(paths, files, strict=True):
        write_or_refuse(path, file.text)
        if file.executable:
            path.chmod(path.stat().st_mode | 0o111)
    return paths


def _export_fault(path: Path, anything: bool) -> Fault | None:
    if anything and path.exists():
        what = f"{path} is there; an edited file goes into another folder."
        return Fault("O02", what, ("Choose another folder, or remove it.",))
    try:
        other = path.is_file() and MADE not in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        other = False
    if other:
        what = f"{path} is there and was not exported by shardwright; it is not overwritten."
        return Fault("O02", what, ("Choose another folder, or remove it.",))
    return place_fault(path)


def _text(path: Path, plan: Plan, beside: Comparison | Sizing | Largest | None) -> str | bytes:
    if is_trace(path):
        from planner.report.trace import render_trace

        text = render_trace(plan)
        return gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text
    if path.suffix == REPORT:
        from planner.output.tabs import tabs
        from planner.report.html.page import render_html

        if plan.figures is None:
            what = f"cannot write {path}: the plan was made without what a report draws."
            raise PlannerError.of("O01", what, "Ask for it: Question(…, figures=True)")
        return render_html(plan, *tabs(plan), study=beside)
    from planner.report.data import render_csv, render_parquet
    from planner.report.markdown import render_markdown

    if path.suffix == ".parquet":
        return render_parquet(plan)
    renderers = {".json": write_plan, ".csv": render_csv, ".md": render_markdown}
    return renderers[path.suffix](plan)


def write_or_refuse(path: Path, text: str | bytes) -> None:
    """Writes a file whole.

    Raises:
        PlannerError: a place that cannot be written (O03).
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise PlannerError.of("O03", f"cannot write {path}: {error.strerror or error}.") from None


def write_whole(path: Path, text: str | bytes) -> None:
    """Writes a file so that there is never half of it: a temporary file beside it takes its name."""
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode() if isinstance(text, str) else text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(_mode(target))
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, or of a new one."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _fault(path: Path) -> Fault | None:
    possible = listed([f"{ending} ({what})" for ending, what in (ENDINGS | TRACES).items()])
    if path.suffix not in ENDINGS and not is_trace(path):
        return Fault(
            "O01",
            f"cannot write {path}: nothing is written with this ending.",
            (f"Possible: {possible}.",),
        )
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        fix = "To fix it: pip install 'shardwright[parquet]'"
        return Fault("A05", f"cannot write {path}: pyarrow is not installed.", (fix,))
    try:
        if path.is_file() and not _same_kind(path):
            kind = "a timeline" if is_trace(path) else ENDINGS[path.suffix]
            what = f"{path} is there and is not {kind}; it is not overwritten."
            return Fault("O02", what, ("Choose another name, or remove it.",))
    except (OSError, ValueError):
        pass
    return place_fault(path)


def _is_timeline(path: Path) -> bool:
    """Whether a file holds a timeline, or nothing."""
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data and path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error):
        return False
    return not text.strip() or text.startswith(b'{"traceEvents":')


def place_fault(path: Path) -> Fault | None:
    """What is wrong with the place of a file, whatever it holds."""
    try:
        if path.is_dir():
            return Fault("O03", f"cannot write {path}: it is a folder.")
        path.exists()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such path is possible"
        return Fault("O03", f"cannot write {path}: {why}.")
    parent = next((folder for folder in path.absolute().parents if folder.exists()), None)
    if parent is None or not parent.is_dir():
        return Fault("O03", f"cannot write {path}: {parent} is not a folder.")
    if not os.access(parent, os.W_OK):
        return Fault("O03", f"cannot write {path}: no permission to write in {parent}.")
    return None


def is_trace(path: Path) -> bool:
    """Whether a name is that of a timeline."""
    return path.name.endswith(tuple(TRACES))


def _same_kind(path: Path) -> bool:
    """Whether a file is of the kind that its ending promises; an empty one is of every kind."""
    if not path.is_file():
        return False
    if is_trace(path):
        return _is_timeline(path)
    if path.suffix == ".parquet":
        data = path.read_bytes()
        return not data or data.startswith(b"PAR1")
    from planner.report.data import CSV_COLUMNS
    from planner.report.markdown import TRUST

    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            return True
        if path.suffix == ".csv":
            return text.startswith(",".join(CSV_COLUMNS[:2]))
        if path.suffix == REPORT:
            return '<meta name="generator" content="shardwright' in text[:2000]
        if path.suffix == ".md":
            return text.startswith("## ") and f"\n{TRUST}" in text
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"schema_version", "made_by"} <= data.keys()
