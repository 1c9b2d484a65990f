"""How far measured runs reach by chip family: what lies beyond is told with a plan.

python -m benchmarks.measured             # the table
python -m benchmarks.measured --write     # into planner/trainers/measured.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from benchmarks.accuracy import RUNS
from planner.calibrate.row_task import case_of
from planner.calibrate.runs import read_runs
from planner.calibrate.shapes import NotPricedError
from planner.trainers.measured import PATH

DEGREES = ("tp", "pp", "cp", "ep")


def largest() -> Mapping[str, Mapping[str, float]]:
    """The largest number of chips, parameters and tokens in a sequence, and the largest degrees, of all priced runs."""
    found: dict[str, dict[str, float]] = {}
    for path in RUNS.values():
        for run in read_runs(path):
            try:
                case = case_of(run)
            except NotPricedError:
                continue
            facts = {
                "chips": float(case.layout.ranks[0]),
                "params": float(case.task.model.num_params),
                "seq": float(case.task.recipe.seq),
            } | {name: float(getattr(case.layout, name)[0]) for name in DEGREES}
            known = found.setdefault(case.task.cluster.chip.family, {})
            found[case.task.cluster.chip.family] = {
                name: max(value, known.get(name, 0.0)) for name, value in facts.items()
            }
    return dict(sorted(found.items()))


def main() -> None:
    """Print, and write where that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    text = json.dumps(largest(), indent=2) + "\n"
    if parser.parse_args().write:
        PATH.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
