"""Launch scripts: variables put in their places, and options wherever they stand.

A script is not run. Assignments, arrays and simple arithmetic are followed; what only a run could tell (the output of
a program) stays open, and an option whose value stays open is reported.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Mapping

from planner.errors import PlannerError
from planner.units import Json

_ASSIGNED = re.compile(
    r"""^[ \t]*(?:export[ \t]+|local[ \t]+|readonly[ \t]+)?([A-Za-z_]\w*)(\+?)=
        (\((?:[^()]|\([^()]*\))*\) | "(?:[^"\\]|\\.)*" | '[^']*' | \$\(\([^\n]*?\)\) | [^\s;&|]*)""",
    re.MULTILINE | re.VERBOSE | re.DOTALL,
)
_USED = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?[-=?]([^{}]*))?\}|(\w+))")
_SUM = re.compile(r"\$\(\((.*?)\)\)")
_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
HIDDEN = str.maketrans("|;()&", "\1\2\3\4\5")
SHOWN = str.maketrans("\1\2\3\4\5", "|;()&")
"""Signs that end a command, but not inside quotes."""
DEEPEST = 20
"""Variables inside variables; a script that needs more refers to itself."""


def variables(text: str) -> dict[str, str]:
    """What a script assigns, the last value of each name, variables inside put in their places."""
    found: dict[str, str] = {}
    for name, more, value in _ASSIGNED.findall(plain(text)):
        bare = value.strip()
        if (bare[:1] in "\"'" and len(bare) > 1) or (bare.startswith("(") and bare.endswith(")")):
            bare = bare[1:-1]
        found[name] = f"{found.get(name, '')} {bare}" if more else expanded(bare, found)
    return {name: expanded(value, found) for name, value in found.items()}


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Variables and sums of whole numbers put in their places; unknown variables stay.

    >>> expanded("--nnodes ${N:-2} $((2 * $N)) $X", {"N": "4"})
    '--nnodes 4 8 $X'
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        default = match[2]
        return known.get(name, match[0] if default is None else default.strip("'\""))

    for _ in range(DEEPEST):
        before, text = text, _USED.sub(value, text)
        if text == before:
            break
    return _SUM.sub(lambda match: _summed(match, known), text)


def _summed(match: re.Match[str], known: Mapping[str, str]) -> str:
    """A sum inside ``$(( ))``; names there stand for variables without a dollar sign too."""
    words = re.sub(r"[A-Za-z_]\w*", lambda m: known.get(m[0], m[0]), match[1].replace("$", ""))
    try:
        return str(_number(ast.parse(words.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return match[0]


def _number(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError("no sum of whole numbers")


def options(text: str, path: str) -> tuple[dict[str, Json], dict[str, str]]:
    """Every long option of a script with its value (True without one, a list for several), and its variables.

    Raises:
        PlannerError: no option at all, so it is no launch script (W03).
    """
    known = variables(text)
    found: dict[str, Json] = {}
    hidden = {name: value.translate(HIDDEN) for name, value in known.items()}
    for line in _lines(expanded(_strings_kept(plain(text)), hidden)):
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.replace('"', " ").replace("'", " ").split()
        found |= words_to_options([part for word in words for part in _inside(word)])
    if not found:
        raise PlannerError.of("W03", "has no options such as --num-layers.", where=path)
    return found, known


def _inside(word: str) -> list[str]:
    """An option string assigned to a variable is its words; anything else is one word."""
    if "--" not in word or word.startswith("--"):
        return [word]
    return word[word.index("--") :].split()


def words_to_options(words: list[str]) -> dict[str, Json]:
    """A list of arguments as options; a Python file after an option's value is the program that torchrun starts.

    >>> words_to_options("--nproc-per-node 8 pretrain_gpt.py --bf16".split())
    {'nproc-per-node': '8', 'bf16': True}
    >>> words_to_options("--tp 8 --bf16 --modules a b --seed=1".split())
    {'tp': '8', 'bf16': True, 'modules': ['a', 'b'], 'seed': '1'}
    """
    found: dict[str, Json] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else True
        elif name and word.endswith(".py") and found[name] is not True:
            name = ""
        elif name:
            before = found[name]
            found[name] = (
                word
                if before is True
                else [*(before if isinstance(before, list) else [before]), word]
            )
    return found


def plain(text: str) -> str:
    """Comments gone, which end with their line whatever is last on it, and lines that go on joined."""
    told = re.sub(r"(^|[ \t])#[^\n]*", r"\1", text, flags=re.MULTILINE)
    return re.sub(r"\\[ \t]*\r?\n", " ", told)


def _lines(text: str) -> list[str]:
    """Pieces of a script between whose words no option reaches: lines, without brackets of arrays."""
    cut = re.split(r"\n|;|\||&&|(?<!\$)\(|\)(?!\))", text)
    return [piece.translate(SHOWN).strip() for piece in cut if "--" in piece]


def _strings_kept(text: str) -> str:
    """Bars and brackets inside quotes are no ends of commands."""

    def hidden(match: re.Match[str]) -> str:
        body = match[0][1:-1].translate(HIDDEN)
        return body if "\n" in body or "--" in body else f"'{body}'"

    return re.sub(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", hidden, text)
