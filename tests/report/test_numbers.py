"""Rounded parts sum to their rounded total."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.report.numbers import bar, gib, gib_parts, percents, seconds_parts, slower
from planner.report.tables import flow
from planner.units import GIB, show_seconds

PARTS = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=9)


@settings(deadline=None)
@given(PARTS)
def test_memory_parts_sum_to_the_total(parts: list[float]) -> None:
    sizes = [part * GIB for part in parts]
    shown = gib_parts(sizes, sum(sizes))
    assert (
        abs(sum(float(x.replace(",", "")) for x in shown) - float(gib(sum(sizes)).replace(",", "")))
        < 1e-6
    )
    for size, text in zip(parts, shown, strict=True):
        assert abs(float(text.replace(",", "")) - size) <= 0.1 + 1e-9


@settings(deadline=None)
@given(PARTS)
def test_shares_sum_to_100(parts: list[float]) -> None:
    shown = [text.removesuffix(" %") for text in percents(parts, sum(parts))]
    assert sum(0 if text == "<1" else int(text) for text in shown) == 100


@settings(deadline=None)
@given(PARTS)
def test_seconds_sum_to_the_total(parts: list[float]) -> None:
    total = sum(parts)
    shown = seconds_parts(parts, total)
    whole, unit = show_seconds(total).replace(",", "").split()
    values = [float(text.replace(",", "").split()[0]) for text in shown]
    assert {text.split()[1] for text in shown} == {unit}
    grain = 10.0 ** -len(whole.partition(".")[2])
    assert abs(sum(values) - float(whole)) <= (0.51 + 0.06 * len(parts)) * grain


def test_seconds_keep_three_digits() -> None:
    parts = [14.9, 2.05, 0.41, 0.34, 0.28, 0.12]
    assert seconds_parts(parts, sum(parts)) == [
        "14.9 s",
        "2.05 s",
        "0.41 s",
        "0.34 s",
        "0.28 s",
        "0.12 s",
    ]
    assert seconds_parts([0.31, 0.0986, 0.0031], 0.4117) == ["310 ms", "98.6 ms", "3.1 ms"]
    assert seconds_parts([], 0.0) == []
    assert seconds_parts([0.0], 0.0) == ["0 s"]


def test_slower() -> None:
    assert [slower(x, 1.0) for x in (1.0, 1.004, 1.02, 1.12, 3.5, 0.97)] == [
        "same", "+0.4 %", "+ 2 %", "+12 %", "+250 %", "- 3 %",
    ]  # fmt: skip


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(4, 30))
def test_bars_are_no_longer_than_their_room(a: float, b: float, width: int) -> None:
    assert len(bar(min(a, b), max(a, b), width)) <= width
    assert bool(bar(min(a, b), max(a, b), width)) == (min(a, b) > 0)


@settings(deadline=None)
@given(st.lists(st.text("abc 12", min_size=1, max_size=30), max_size=6), st.integers(30, 60))
def test_flow_keeps_every_word_and_the_width(pieces: list[str], width: int) -> None:
    lines = flow(pieces, " · ", width, "  Label    ", 11)
    words = [word for line in lines for word in line.split() if word != "·"]
    assert all(len(line) <= width for line in lines if " " in line[11:].strip())
    assert "".join(words[1:]) == "".join("".join(pieces).split())
