"""The answer as data for other programs: YAML, and the alternatives as CSV."""

from __future__ import annotations

import csv
import io

from planner.plan.schema import Degrees, NoPlan, Plan


def render_yaml(answer: Plan | NoPlan) -> str:
    """The plan as YAML, with the keys of its JSON."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    stream = io.StringIO()
    yaml.dump(answer.model_dump(mode="json"), stream)
    return stream.getvalue()


CSV_COLUMNS = ("rank", "step_seconds", "memory_bytes", "fits", *Degrees.model_fields, "reason")
"""Headings of the table of alternatives."""


def render_csv(plan: Plan) -> str:
    """The alternatives, the plan first, one a row."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in plan.alternatives:
        degrees = row.degrees.model_dump() | {"order": "-".join(row.degrees.order)}
        facts = [row.rank, row.step, row.memory, row.fits]
        writer.writerow([*facts, *degrees.values(), row.reason])
    return stream.getvalue()


def render_parquet(plan: Plan) -> bytes:
    """The same as a Parquet file, which needs pyarrow."""
    from importlib import import_module

    read, written = import_module("pyarrow.csv"), import_module("pyarrow.parquet")
    out = io.BytesIO()
    written.write_table(read.read_csv(io.BytesIO(render_csv(plan).encode())), out)
    return out.getvalue()
