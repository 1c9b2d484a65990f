"""Plans survive their file, and a broken file is said to be broken, with the place."""

from __future__ import annotations

import functools
import json
import math
import random
import types
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, MinLen
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from planner.errors import PlannerError
from planner.known import schema
from planner.plan.read import parsed_plan, read_plan
from planner.plan.schema import Plan
from planner.plan.write import write_plan
from planner.report.data import render_csv
from planner.report.markdown import render_markdown
from planner.report.tables import plain
from planner.report.text import render

DENSE = (Path(__file__).parent / "dense.json").read_text()
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 10**15),
    float: st.just(0.0) | st.floats(1e-12, 1e18),
    bool: st.booleans(),
    str: st.text(st.characters(codec="utf-8"), max_size=12),
    types.NoneType: st.none(),
}


def from_schema(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type of the schema: every field, anything that its type allows."""
    if kind in LEAVES:
        return LEAVES[kind]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return st.builds(kind, **{n: of_field(f) for n, f in kind.model_fields.items()})
    args = get_args(kind)
    if get_origin(kind) is Annotated:
        return constrained(args[0], args[1].metadata)
    if get_origin(kind) is Literal:
        return st.sampled_from(args)
    if get_origin(kind) is dict:
        return st.dictionaries(from_schema(args[0]), from_schema(args[1]), max_size=2)
    if get_origin(kind) is tuple:
        return st.lists(from_schema(args[0]), max_size=2).map(tuple)
    return st.one_of([from_schema(arg) for arg in args])


def of_field(field: FieldInfo) -> st.SearchStrategy[Any]:
    """Values of a field: anything that its type and its bounds allow."""
    return constrained(field.annotation, field.metadata)


def constrained(kind: Any, notes: list[Any]) -> st.SearchStrategy[Any]:
    """Counts from 1 up, sizes above 0, texts of a pattern, tuples that are not empty; else whatever the type allows."""
    if not notes:
        return from_schema(kind)
    (note,) = notes
    if note == Ge(1):
        return st.integers(1, 10**15)
    if note in (Ge(0), Gt(0)):
        return st.floats(1e-12, 1e18)
    if note == MinLen(1):
        return st.lists(from_schema(get_args(kind)[0]), min_size=1, max_size=2).map(tuple)
    return st.from_regex(note.pattern, fullmatch=True)


PLANS = from_schema(Plan)
SLOW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)


@SLOW
@given(PLANS)
def test_round_trip(tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "plan.json"
    text = write_plan(plan)
    path.write_text(text, encoding="utf-8")
    again = parsed_plan(path)
    assert again == plan
    assert write_plan(again) == text
    assert text.endswith("}\n")


@SLOW
@given(PLANS, st.integers(40, 120))
def test_any_plan_can_be_shown(plan: Plan, width: int) -> None:
    assert plain(render(plan, width=width, detail=("all",)))
    assert render_markdown(plan)
    assert render_csv(plan)


def read(text: str | bytes, folder: Path) -> Plan:
    path = folder / "plan.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return read_plan(path)


def changed(change: dict[str, Any]) -> str:
    data = json.loads(DENSE)
    for place, value in change.items():
        *parents, last = place.split(".")
        inner = data
        for parent in parents:
            inner = inner[int(parent) if parent.isdecimal() else parent]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (changed({"schema_version": "7"}), "V02", "was made by shardwright 0.1.0 with plan schema '7'"),
        (changed({"schema_version": 1}), "V02", "newer shardwright"),
        (changed({"schema_version": None}), "V04", "'schema_version'"),
        ("{\n  'a': 1\n}", "V03", "plan.json:2:3: error: is not JSON"),
        ("", "V03", "plan.json:1:1"),
        (DENSE[:700], "V03", "is not JSON"),
        ('{"a": 1, "a": 2}', "V03", "key 'a' is given twice"),
        ("[" * 100_000, "V03", "nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "V03", "is not JSON"),
        (b"\xff\xfe{", "V03", "byte 0 is not UTF-8"),
        ("[]", "V04", "a plan is an object"),
        ("null", "V04", "holds a JSON null"),
        (changed({"stepp": 3.0}), "V04", "unknown key 'stepp'.\n       Nearest: step"),
        (changed({"stages.1.memori": []}), "V04", "unknown key 'stages[1].memori'.\n       Nearest: memory"),
        (changed({"cluster.levels.0.width": 1}), "V04", "unknown key 'cluster.levels[0].width'"),
        (changed({"degrees.tp": None}), "V04", "key 'degrees.tp' is missing"),
        (changed({"degrees.tp": "eight"}), "V04", "'degrees.tp' is 'eight'; it should be a whole number"),
        (changed({"stages": []}), "V04", "'stages' is a JSON list; it should be a list of at least one entry"),
        (changed({"stages.0.layers": ["x"]}), "V04", "'stages[0].layers[0]' is 'x'"),
        (changed({"blocks.0.layers": "x"}), "V04", "'blocks[0].layers' is 'x'"),
        (changed({"blocks.0.sizes": {"seq": 0}}), "V04", "'blocks[0].sizes.seq' is 0"),
        (changed({"degrees.order": ["up"]}), "V04", "'degrees.order[0]' is 'up'"),
        (changed({"degrees.ep": 0}), "V04", "'degrees.ep' is 0; it should be at least 1"),
        (changed({"degrees.schedule": "zb"}), "V04", "'degrees.schedule' is 'zb'; it should be 'gpipe', '1f1b'"),
        (changed({"blocks": []}), "V04", "'blocks' is a JSON list; it should be a list of at least one entry"),
        (changed({"step": -1.0}), "V04", "'step' is -1.0; it should be more than 0"),
        (changed({"step": 1.0}), "V04", "'step' is 1, and the values of 'time' sum to 18.1"),
        (changed({"memory": 1.0}), "V04", "'memory' is 1, and 'memory_total' of its stage is"),
        (changed({"memory_limit": float("inf")}), "V04", "'memory_limit' is inf; it should be a finite number"),
        (changed({"memory_limit": float("nan")}), "V04", "'memory_limit' is nan; it should be a finite number"),
        (changed({"memory_limit": 1e9}), "V04", "'fits' is true, and memory says false"),
        (changed({"memory_stage": 99}), "V04", "'memory_stage' is 99"),
        (changed({"cluster.num_chips": 0}), "V04", "'cluster.num_chips' is 0; it should be"),
        (changed({"cluster.num_chips": 8}), "V04", "and 'cluster.num_chips' is 8"),
        (changed({"stages.0.memory.0.value": 1.0}), "V04", "the values of 'stages[0].memory' sum to"),
        (changed({"recipe.seq": 1}), "V04", "'tokens_per_second' is"),
        (changed({"degrees.cp": 8}), "V04", "make 2,048 chips, and 'degrees.chips_used' is 256"),
        (changed({"degrees.micro_batch": 2}), "V04", "is not 'recipe.global_batch', 512"),
        (changed({"degrees": None}), "V04", "key 'degrees' is missing"),
        ((Path(__file__).parent / "no_plan.json").read_text(), "V05", "found no plan"),
    ],
)  # fmt: skip
def test_broken_files(text: str | bytes, code: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PlannerError) as caught:
        read(text, tmp_path)
    assert [fault.code for fault in caught.value.faults] == [code]
    assert words in str(caught.value)


TOTALS = (
    "step", "tokens_per_second", "memory", "memory_stage", "memory_upper", "recipe.global_batch", "recipe.seq",
    "degrees.dp", "degrees.tp", "degrees.pp", "degrees.cp", "degrees.micro_batch", "degrees.num_micro_batches",
    "degrees.chips_used", *(f"stages.{i}.{key}" for i in range(4) for key in ("index", "memory_total")),
)  # fmt: skip


@SLOW
@given(st.sampled_from(TOTALS), st.integers() | st.floats() | st.sampled_from([math.inf, math.nan]))
def test_no_total_can_be_edited_alone(tmp_path: Path, place: str, value: float) -> None:
    """Whatever number stands there instead of its own: the file is refused, and the price anew is named."""
    own = functools.reduce(
        lambda at, key: at[int(key) if key.isdecimal() else key],
        place.split("."),
        json.loads(DENSE),
    )
    assume(not math.isclose(value, own, rel_tol=1e-3))
    assume(not (place == "memory_upper" and own < value))
    with pytest.raises(PlannerError) as caught:
        read(changed({place: value}), tmp_path)
    assert {fault.code for fault in caught.value.faults} == {"V04"}


def test_many_faults_are_cut_short(tmp_path: Path) -> None:
    with pytest.raises(PlannerError) as caught:
        read('{"schema_version": "1"}', tmp_path)
    assert len(caught.value.faults) == 9
    assert "more like these" in str(caught.value)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    assert read("\ufeff" + DENSE, tmp_path) == read(DENSE, tmp_path)


@pytest.mark.parametrize("name", ["", "absent.json", "x" * 300, "a\0b"])
def test_files_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(PlannerError) as caught:
        read_plan(tmp_path / name)
    assert caught.value.faults[0].code == "F01"


@pytest.mark.parametrize("seed", range(150))
def test_damaged_files_never_end_in_a_traceback(seed: int, tmp_path: Path) -> None:
    """Bytes flipped, removed, doubled or moved; values replaced by others of any type."""
    chance = random.Random(seed)
    if seed % 2:
        data = bytearray(DENSE.encode())
        for _ in range(chance.randint(1, 4)):
            at, end = sorted(chance.sample(range(len(data)), 2))
            piece = data[at : min(end, at + 40)]
            how = chance.choice(["flip", "cut", "double"])
            if how == "flip":
                data[at] = chance.randrange(256)
            else:
                data[at : at + len(piece)] = b"" if how == "cut" else piece * 2
        text: str | bytes = bytes(data)
    else:
        values = [
            None,
            -1,
            0,
            1e400,
            "x",
            "\ud800",
            [],
            {},
            [[]],
            {"": None},
            True,
            10**400,
            "1" * 5000,
        ]
        tree = json.loads(DENSE)
        for _ in range(chance.randint(1, 3)):
            inner = tree
            while True:
                keys = list(inner) if isinstance(inner, dict) else range(len(inner))
                key = chance.choice(list(keys))
                if (
                    not isinstance(inner[key], dict | list)
                    or not inner[key]
                    or chance.random() < 0.3
                ):
                    inner[key] = chance.choice(values)
                    break
                inner = inner[key]
        text = json.dumps(tree)
    try:
        plan = read(text, tmp_path)
    except PlannerError as error:
        assert error.faults
        str(error).encode("utf-8", "replace")
    else:
        assert isinstance(plan, Plan)


@pytest.mark.parametrize("kind", ["plan", "no-plan"])
def test_every_number_of_the_schema_says_what_it_is(kind: str) -> None:
    """Units stand in the descriptions, which editors and other programs read from the JSON Schema."""
    whole = schema(kind)
    parts = whole["$defs"] | {kind: whole}
    numbers = [
        (name, field, facts)
        for name, part in parts.items()
        for field, facts in part.get("properties", {}).items()
        if "number" in [facts.get("type"), *(one.get("type") for one in facts.get("anyOf", ()))]
    ]
    assert len(numbers) >= 12
    assert [(name, field) for name, field, facts in numbers if not facts.get("description")] == []
    step = {"plan": ("plan", "step"), "no-plan": ("Term", "value")}[kind]
    assert "econds" in parts[step[0]]["properties"][step[1]]["description"]
