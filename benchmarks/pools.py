"""How long it takes to prove a plan on pools of different chips.

    python -m benchmarks.pools [--write]

Every case asks for all ways to use the pools: each alone, all chips alike, stages on several. CPU seconds, since
machines
are shared; ``--write`` puts the table into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

from planner.api import Question, plan

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


def row(name: str, question: Question) -> str:
    """One case, as a line of the table."""
    start = time.process_time()
    found = plan(question)
    seconds = time.process_time() - start
    proof = found.proof
    gap = max(proof.gap, proof.cut_gap)
    best, second = [use.text for use in found.uses if use.step is not None][:2]
    gain = next(use.step for use in found.uses if use.text == second) / found.step - 1
    return (
        f"| {name} | {question.model}, {question.cluster} | {seconds:.1f} | {proof.searched:,} | "
        f"{gap:.2%} | {best} | {second} | {gain:.0%} |"
    )


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d}, 2 shared cores, one run of each.",
        "",
        "| case | question | CPU s | layouts | gap | fastest | next | slower by |",
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
