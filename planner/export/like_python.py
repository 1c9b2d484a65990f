"""A configuration module of torchtitan with only what the plan decides changed: values replaced where they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from planner.errors import PlannerError
from planner.export.torchtitan import POLICY_SOURCE
from planner.units import Json

CLASSES = {"training": "TrainingConfig", "parallelism": "ParallelismConfig"}
"""Sections and the classes that a module fills them with."""
RECOMPUTE = "activation_checkpoint"
DEFAULTS: dict[str, Json] = {
    "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "fsdp_reshard_after_forward": "default",
    "tensor_parallel_degree": 1, "context_parallel_degree": 1, "pipeline_parallel_degree": 1,
    "expert_parallel_degree": 1, "local_batch_size": 8, "enable_cpu_offload": False, "disable_cuda_graphs": False,
    "module_fqns_per_model_part": None,
}  # fmt: skip
"""What a key means that a module does not have (torchtitan 0.3.0)."""
_NO_LITERAL = object()
_Edit = tuple[int, int, str]


def edited(text: str, sections: Mapping[str, Mapping[str, Json]], policy: str, name: str) -> str:
    """A module with the plan's values in ``config.section.key = value`` and in the arguments of its classes.

    Args:
        text: the module.
        sections: values by section and key.
        policy: the class that recomputes, such as ``FullAC``; ``None`` where nothing is.
        name: of the file, for errors.

    Raises:
        PlannerError: no Python, or a section that the plan must change is nowhere in it (W05).
    """
    tree = _parsed(text, name)
    places = _Places(text)
    edits: list[_Edit] = []
    for section, values in sections.items():
        edits += _section(tree, places, section, values, name)
    edits += _policy(tree, places, policy, name)
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def said(text: str, name: str) -> dict[str, dict[str, Json]]:
    """Literal values of a module by section and key.

    Raises:
        PlannerError: no Python (W05).
    """
    tree = _parsed(text, name)
    found: dict[str, dict[str, Json]] = {}
    for section in CLASSES:
        held = {key: node.value for key, node in _assigned(tree, section)} | _given(tree, section)
        values = {key: _literal(node) for key, node in held.items()}
        found[section] = {key: value for key, value in values.items() if value is not _NO_LITERAL}
    return found


def _parsed(text: str, name: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise PlannerError.of("W05", f"is not Python: {error}.", where=name) from None


def _literal(node: ast.expr) -> Json:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return _NO_LITERAL


def _calls(tree: ast.Module, section: str) -> list[ast.Call]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [node for node in nodes if _last(node.func) == CLASSES[section]]


def _given(tree: ast.Module, section: str) -> dict[str, ast.expr]:
    words = (word for call in _calls(tree, section) for word in call.keywords)
    return {word.arg: word.value for word in words if word.arg}


class _Places:
    """Where nodes stand in a text: Python counts bytes of a line."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, row: int, column: int) -> int:
        line = self.lines[row - 1].encode()
        return self.starts[row - 1] + len(line[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def indent(self, node: ast.stmt) -> str:
        line = self.lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]


def _section(
    tree: ast.Module, places: _Places, section: str, values: Mapping[str, Json], name: str
) -> Iterator[_Edit]:  # fmt: skip
    assigned = dict(_assigned(tree, section))
    calls, given = _calls(tree, section), _given(tree, section)
    missing = {}
    for key, value in values.items():
        held = assigned[key].value if key in assigned else given.get(key)
        if held is not None and _literal(held) == value:
            continue
        if held is not None:
            yield (*places.span(held), repr(value))
        elif value != DEFAULTS.get(key):
            missing[key] = value
    if not missing:
        return
    if assigned:
        statement = list(assigned.values())[-1]
        target = ast.unparse(statement.targets[0]).rpartition(".")[0]
        end, pad = places.span(statement)[1], places.indent(statement)
        yield (
            end,
            end,
            "".join(f"\n{pad}{target}.{key} = {value!r}" for key, value in missing.items()),
        )
    elif calls:
        end = places.span(calls[-1])[1] - 1
        yield end, end, _words(places, calls[-1], missing)
    else:
        raise PlannerError.of(
            "W05",
            f"sets nothing of {section}, so there is no place for {', '.join(missing)}.",
            f"Write {CLASSES[section]}(…) or config.{section}.… = … into it, or leave --like out.",
            where=name,
        )


def _words(places: _Places, call: ast.Call, missing: Mapping[str, Json]) -> str:
    """Arguments behind those that a call has, a line each where its own have lines of their own."""
    rows = [word.value.lineno for word in call.keywords]
    if rows and rows[-1] != call.lineno:
        last = call.keywords[-1]
        line = places.lines[last.value.lineno - 1]
        pad = line[: len(line) - len(line.lstrip())]
        outer = places.lines[(call.end_lineno or 1) - 1]
        outer = outer[: len(outer) - len(outer.lstrip())]
        inside = "".join(f"{pad}{key}={value!r},\n" for key, value in missing.items())
        return inside.removeprefix(outer) + outer
    words = ", ".join(f"{key}={value!r}" for key, value in missing.items())
    return f", {words}" if rows else words


def _assigned(tree: ast.Module, section: str) -> Iterator[tuple[str, ast.Assign]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            parts = ast.unparse(node.targets[0]).split(".")
            if len(parts) == 3 and parts[1] == section:
                yield parts[2], node


def _policy(tree: ast.Module, places: _Places, policy: str, name: str) -> Iterator[_Edit]:
    """The class that recomputes, and its import where it is new."""
    written = "None" if policy == "None" else f"{policy}.Config()"
    held: list[ast.expr] = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(f".{RECOMPUTE}")
    ]
    held += [
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == RECOMPUTE
    ]
    if not held:
        yield _added(tree, places, written, name)
    for value in held:
        if _last(getattr(getattr(value, "func", value), "value", value)) != policy:
            yield (*places.span(value), written)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if policy not in imported | {"None"}:
        first = next((n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)), None)
        late = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module != "__future__"]
        place = late[0] if late else first
        start = places.span(place)[0] if place is not None else 0
        yield start, start, f"from {POLICY_SOURCE} import {policy}\n"


def _added(tree: ast.Module, places: _Places, written: str, name: str) -> _Edit:
    """The same where a module leaves it to the configuration that it changes, whatever that computes again."""
    assigned, calls = dict(_assigned(tree, "parallelism")), _calls(tree, "parallelism")
    if assigned:
        statement = list(assigned.values())[-1]
        config, end = ast.unparse(statement.targets[0]).split(".")[0], places.span(statement)[1]
        return end, end, f"\n{places.indent(statement)}{config}.{RECOMPUTE} = {written}"
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for word in (word for node in nodes for word in node.keywords):
        if word.value in calls:
            start = places.at(word.lineno, word.col_offset)
            return start, start, f"{RECOMPUTE}={written}, "
    raise PlannerError.of(
        "W05",
        f"sets no {RECOMPUTE}, and has no place for {written}.",
        f"Write {RECOMPUTE}=None into it, or leave --like out.",
        where=name,
    )


def _last(node: ast.AST) -> str:
    """The last name of a dotted one."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
