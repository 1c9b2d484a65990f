"""How long it takes to prove a plan on pools of different chips.

    python -m benchmarks.pools [--write]

Every case asks for all ways to use the pools: each alone, all chips alike, stages on several; first with one chunk a
stage, then with any number. CPU seconds, since machines are shared; ``--write`` puts the table into
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from planner.api import Plan, Question, plan

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- pools: begin -->", "<!-- pools: end -->"
CASES = (
    ("two pools of 512 chips, 80 layers",
     Question(model="llama-3.1-70b", cluster="a100-sxm-80gb:512 + h100-sxm:512", global_batch=1024,
              seq_len=8192)),
    ("two node types, 24 layers",
     Question(model="gpt3-1.3b", cluster="a100-sxm-80gb:8 + v100-sxm-32gb:8", global_batch=128,
              precision="fp16")),
    ("two node types, 32 layers",
     Question(model="gpt3-6.7b", cluster="a100-sxm-80gb:16 + t4:16", global_batch=128,
              precision="fp16")),
    ("three node types, 32 layers",
     Question(model="gpt3-6.7b", global_batch=128, precision="fp16",
              cluster="h100-sxm:16 + a100-sxm-80gb:16 + v100-sxm-32gb:16")),
    ("three node types, 40 layers",
     Question(model="gpt3-13b", global_batch=256, precision="fp16",
              cluster="h100-sxm:8 + a100-sxm-80gb:16 + v100-sxm-32gb:32")),
    ("two node types, 96 layers",
     Question(model="gpt3-175b", cluster="a100-sxm-80gb:128 + h100-sxm:64", global_batch=512)),
)  # fmt: skip


def timed(question: Question) -> tuple[Plan, float, float]:
    """Its plan, the CPU seconds that it took, and the share by which another could still be faster."""
    start = time.process_time()
    found = plan(question)
    assert isinstance(found, Plan)
    return found, time.process_time() - start, max(found.proof.gap, found.proof.cut_gap)


def row(name: str, question: Question) -> str:
    """One case, as a line of the table: with one chunk a stage, and with as many as are fastest."""
    single, seconds, gap = timed(replace(question, pins=("vpp=1",)))
    chunked, more_seconds, more_gap = timed(question)
    return (
        f"| {name} | {question.model}, {question.cluster} | {seconds:.1f} | {gap:.2%} | {single.uses[0].text} | "
        f"{more_seconds:.1f} | {more_gap:.2%} | {single.step / chunked.step - 1:.1%} |"
    )


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d}, 2 shared cores, one run of each.",
        "",
        "| case | question | CPU s | gap | fastest | CPU s, any chunks | gap | faster by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(row(name, question) for name, question in CASES),
    ]
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        page = README.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        after = rest.split(END)[1]
        README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
