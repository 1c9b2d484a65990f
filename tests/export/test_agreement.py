"""Plans that were edited by hand: what contradicts itself is refused before anything is written."""

import pytest
from plans import plan

from planner.errors import PlannerError
from planner.export.targets import export

ENDLESS = tuple(block for block in plan("dense").blocks if block.layers != "head")
NARROW = tuple(block.model_copy(update={"sizes": {"batch": 1.0}}) for block in plan("dense").blocks)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stages": plan("dense").stages[:1]}, "1 stages are listed, and 'degrees.pp' is"),
        ({"blocks": ENDLESS}, "0 blocks have the layers 'head'"),
        ({"blocks": NARROW}, "its sizes do not"),
    ],
)
@pytest.mark.parametrize("to", ["megatron", "mindspore", "dtensor"])
def test_parts_that_disagree_are_named(changes, told, to):
    torn = plan("dense").model_copy(update=changes)
    with pytest.raises(PlannerError, match=told) as caught:
        export(torn, to)
    assert {fault.code for fault in caught.value.faults} == {"V04"}
