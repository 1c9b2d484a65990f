"""Imports go down: what each room may know about, no cycles, nothing heavy before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOTTOM = {"units", "errors", "documented"}
DESCRIBED = BOTTOM | {"recipe", "candidates", "graph", "hardware"}
ASKED = DESCRIBED | {"frontends", "trainers", "plan"}
ALLOWED: dict[str, set[str]] = {
    "documented": set(),
    "errors": set(),
    "units": set(),
    "recipe": BOTTOM,
    "graph": BOTTOM | {"recipe"},
    "hardware": BOTTOM,
    "candidates": BOTTOM | {"graph"},
    "plan": BOTTOM,
    "frontends": DESCRIBED,
    "trainers": DESCRIBED,
    "cost": DESCRIBED | {"trainers"},
    "search": DESCRIBED | {"trainers", "cost", "plan"},
    "calibrate": ASKED | {"cost", "search", "question"},
    "report": BOTTOM | {"plan"},
    "export": BOTTOM | {"plan"},
    "runtime": BOTTOM | {"plan"},
    "question": ASKED | {"search"},
    "known": ASKED,
    "answered": ASKED | {"cost", "search", "question"},
    "stated": ASKED | {"cost", "search", "question"},
    "unplanned": ASKED | {"search", "question", "answered", "stated"},
    "planning": ASKED | {"cost", "search", "question", "answered", "stated", "unplanned"},
    "pricing": ASKED | {"cost", "search", "question", "answered", "stated"},
    "seated": ASKED | {"cost", "search", "question", "stated"},
    "pooled": ASKED | {"cost", "search", "question", "answered", "seated"},
    "smallest": ASKED | {"search", "question", "planning"},
    "asking": ASKED | {"search", "question", "planning", "pricing", "pooled", "smallest"},
    "studies": ASKED | {"cost", "search", "question", "stated", "planning", "asking"},
    "output": BOTTOM | {"plan", "report", "export"},
    "api": ASKED | {"question", "known", "planning", "asking", "studies", "calibrate", "output"},
    "cli": BOTTOM
    | {"api", "plan", "report", "export", "calibrate", "studies", "runtime", "output", "known"},
}
HEAVY = {"torch", "onnx", "plotly", "pandas", "matplotlib", "ortools", "joblib", "dask", "ray"}
"""Only inside functions, everywhere."""
SLOW_START = HEAVY | {"numpy", "scipy", "pydantic", "rich", "ruamel", "planner"}
"""Only inside functions, in what the command line loads for ``--help``."""
STARTED = {
    "main",
    "program",
    "options",
    "exits",
    "plan",
    "explain",
    "price",
    "compare",
    "size",
    "diff",
    "export",
    "check",
    "evaluate",
    "calibrate",
    "list",
    "show",
    "schema",
}

Edge = tuple[str, str, bool]


def edges() -> Iterator[Edge]:
    """Importing module, imported name, and whether the import runs when the module is loaded."""
    for path in (*ROOT.glob("planner/**/*.py"), *ROOT.glob("cli/**/*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {id(n) for f in ast.walk(tree) if isinstance(f, LATER) for n in ast.walk(f)}
        typing = {id(n) for i in ast.walk(tree) if _types_only(i) for n in ast.walk(i)}
        for node in ast.walk(tree):
            for name in _imported(node):
                yield module, name, id(node) not in inside | typing


LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, "imports are absolute"
    assert node.module
    if node.module in {"planner", "cli"} or (ROOT / node.module.replace(".", "/")).is_dir():
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [node.module]


def room(module: str) -> str:
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "planner" else top


OURS = [edge for edge in edges() if edge[1].partition(".")[0] in {"planner", "cli"}]


def test_imports_go_down() -> None:
    assert len(OURS) > 80, "the walk found too little to mean anything"
    rooms = {room(module) for module, _, _ in OURS} - {""}
    assert rooms <= ALLOWED.keys(), "a new room: say in ALLOWED what it may know about"
    wrong = [
        f"{module} imports {name}"
        for module, name, _ in OURS
        if room(module) and room(name) not in ALLOWED[room(module)] | {room(module)}
    ]
    assert not wrong


def test_nobody_imports_the_root() -> None:
    roots = {f"planner.{name}" for name in ALLOWED} | {"cli"}
    wrong = [
        f"{m} imports {n}"
        for m, n, _ in OURS
        if not any(f"{n}.".startswith(f"{r}.") for r in roots)
    ]
    assert not wrong


def test_there_is_no_cycle() -> None:
    known = {module for module, _, _ in OURS}
    graph: dict[str, set[str]] = {}
    for module, name, at_once in OURS:
        target = name if name in known else name.rpartition(".")[0]
        if at_once and target != module:
            graph.setdefault(module, set()).add(target)
    assert len(list(TopologicalSorter(graph).static_order())) > 30


def test_heavy_libraries_wait() -> None:
    wrong = []
    for module, name, at_once in edges():
        if room(module) == "runtime" and name.partition(".")[0] == "torch":
            continue  # a room that is itself imported inside functions only
        top, _, last = module.partition(".")
        banned = SLOW_START if top == "cli" and last in STARTED else HEAVY
        if at_once and name.partition(".")[0] in banned:
            wrong.append(f"{module} imports {name} when it is loaded")
    assert not wrong


def test_a_plan_loads_no_program_solver() -> None:
    """scipy.optimize takes .3 s and 40 MiB: only pools and operators within a memory limit need it."""
    code = (
        "import sys; from planner.api import Question, plan; "
        "plan(Question(model='llama-3-8b', cluster='h100-sxm:8')); "
        "sys.exit('scipy.optimize' in sys.modules)"
    )
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, check=False, cwd=ROOT).returncode == 0
