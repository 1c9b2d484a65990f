"""Pins as people write them: one by one, or several with commas."""

from __future__ import annotations

import pytest

from planner.api import PlannerError, Question
from planner.question import understand
from planner.search.pins import Pins, parse_pins

TASK = understand(Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64)).task


def read(*texts: str) -> Pins:
    return parse_pins(texts, TASK.trainer, TASK.model)


@pytest.mark.parametrize(
    ("together", "apart"),
    [
        ("tp=8,cp=1,pp=2", ("tp=8", "cp=1", "pp=2")),
        ("tp=8, pp<=4 ,recompute=none", ("tp=8", "pp<=4", "recompute=none")),
        ("order=tp-cp-dp-pp,kv-heads=copy", ("order=tp-cp-dp-pp", "kv-heads=copy")),
        ("attn.q.heads=tp,mbs=1", ("attn.q.heads=tp", "mbs=1")),
        (
            "layers.*.mlp.up=((1,1),(1,8)),tp=8,layers.*.mlp.down=((1, 8), (8, 1))",
            ("layers.*.mlp.up=((1,1),(1,8))", "tp=8", "layers.*.mlp.down=((1, 8), (8, 1))"),
        ),
    ],
)
def test_a_comma_list_is_its_pins(together: str, apart: tuple[str, ...]) -> None:
    assert read(together) == read(*apart)
    assert set(read(together).texts()) == set(apart)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("tp=8,", "N01", "pin '' is not KEY=VALUE"),
        ("tp=4,8", "N01", "pin '8' is not KEY=VALUE"),
        ("tp=8,tq=2", "N01", "no pin named 'tq'"),
        ("tp=8,pp=x", "N02", "pin 'pp=x'"),
        ("tp=8,tp=4", "N03", "pins 'tp=8' and 'tp=4' contradict"),
        ("mlp.up=((1,1),(1,8),tp=8", "N02", "is no strategy"),
    ],
)
def test_what_is_wrong_with_one_of_several_is_said_of_it(text: str, code: str, words: str) -> None:
    with pytest.raises(PlannerError) as caught:
        read(text)
    assert [fault.code for fault in caught.value.faults] == [code]
    assert words in str(caught.value)
