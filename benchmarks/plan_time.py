"""How long planning takes: whole processes from the shell, and layouts priced a second.

    python -m benchmarks.plan_time [--runs 5] [--write]

Reports medians of CPU time (user + system), since machines are shared, of modules compiled as pip leaves them;
``--write`` puts the table into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = (
    ("Llama-3 8B on 8 H100", ["plan", "llama-3-8b", "--cluster", "h100-sxm:8"]),
    (
        "GPT-3 175B on 1,024 A100",
        ["plan", "gpt3-175b", "--cluster", "a100-sxm-80gb:1024", "-b", "1536"],
    ),
    (
        "Llama-3.1 405B on 16,384 H100",
        ["plan", "llama-3.1-405b", "--cluster", "h100-sxm:16384", "-s", "8192", "-b", "2048"],
    ),
    (
        "DeepSeek-V3 on 2,048 H100",
        ["plan", "deepseek-v3", "--cluster", "h100-sxm:2048", "-s", "4096", "-b", "15360"],
    ),
    (
        "1T dense on 98,304 B200 (NVL72)",
        ["plan", "megatron-1t", "--cluster", "b200-nvl72:98304", "-b", "12288"],
    ),
    ("--help", ["--help"]),
)
LAYERS = (40, 80, 160, 320, 640)
"""Equal layers of the shape of Llama 3 70B."""
CHIPS = (1024, 4096)
BEGIN, END = "<!-- plan_time: begin -->", "<!-- plan_time: end -->"


def run(arguments: list[str]) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak MiB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(arguments)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024


def pricing_rate(runs: int) -> tuple[int, float]:
    """Layouts whose step and memory are bounded, and how many of them a CPU second, over the whole space."""
    from planner.cost.memory import memory_bound
    from planner.cost.prices import prices, step_bound
    from planner.cost.table import block_table
    from planner.question import Question, understand
    from planner.search.bounded import SLICE
    from planner.search.space import build_space

    known = understand(
        Question(model="gpt3-175b", cluster="a100-sxm-80gb:1024", global_batch=1536, seq_len=2048)
    )
    rows = build_space(known.task, known.pins).candidates
    times = []
    for _ in range(runs):
        start = time.process_time()
        table, key = block_table(known.task, rows)
        for at in range(0, len(rows), SLICE):
            part = slice(at, at + SLICE)
            priced = prices(known.task, rows.take(part), (table, key[part]))
            step_bound(priced)
            memory_bound(priced)
        times.append(time.process_time() - start)
    return len(rows), len(rows) / statistics.median(times)


def operators_time(arguments: list[str], runs: int) -> tuple[int, int, float]:
    """Layouts, meshes that differ for operators, and CPU seconds for the strategies of all operators on all of them.

    As for a trainer that takes a strategy for every operator, whatever trainer the layouts are for.
    """
    from dataclasses import replace

    from planner.candidates import distinct
    from planner.question import Question, understand
    from planner.search.semi_automatic import EXPERT_KEY, plan_operators
    from planner.search.space import build_space

    flags = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    known = understand(
        Question(
            model=arguments[1],
            cluster=flags["--cluster"],
            global_batch=flags.get("-b"),
            seq_len=int(flags["-s"]) if "-s" in flags else None,
        )
    )
    task = replace(known.task, trainer=replace(known.task.trainer, per_operator=True))
    rows = build_space(task, known.pins).candidates
    meshes, _ = distinct([rows.sp.astype(int), *(getattr(rows, name) for name in EXPERT_KEY)])
    times = []
    for _ in range(runs):
        start = time.process_time()
        plan_operators(task, (), rows)
        times.append(time.process_time() - start)
    return len(rows), len(meshes), statistics.median(times)


def table(runs: int) -> str:
    packages = [str(ROOT / name) for name in ("planner", "cli")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], check=True)
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} shared cores, "
        f"median of {runs} whole processes.",
        "",
        "| from the shell | CPU s | wall s | MiB |",
        "| --- | --- | --- | --- |",
    ]
    for name, arguments in CASES:
        cpu, wall, memory = zip(*(run(arguments) for _ in range(runs)), strict=True)
        values = [statistics.median(column) for column in (cpu, wall, memory)]
        lines.append(f"| {name} | {values[0]:.2f} | {values[1]:.2f} | {values[2]:.0f} |")
    lines += [
        "",
        "CPU seconds of plans for the shape of Llama 3 70B with more and more layers, and with two pins:",
        "",
        f"| chips | {' | '.join(f'{layers} layers' for layers in LAYERS)} |",
        "| --- |" + " ---: |" * len(LAYERS),
    ]
    for chips in CHIPS:
        for pins in ([], ["--pin", "tp=8", "--pin", "pp=16"]):
            question = ["plan", "llama-3-70b", "--cluster", f"h100-sxm:{chips}", *pins]
            seconds = [
                statistics.median(
                    run([*question, "--set", f"layers={layers}"])[0] for _ in range(runs)
                )
                for layers in LAYERS
            ]
            name = f"{chips:,} H100{', tp=8 and pp=16' if pins else ''}"
            lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in seconds)} |")
    count, rate = pricing_rate(runs)
    lines += [
        "",
        f"Pricing: {count:,} complete layouts (step and memory of each), {rate:,.0f} a CPU second.",
    ]
    lines += [
        "",
        "Strategies of all operators of a model, every mesh of its search at once (`plan_operators`):",
        "",
        "| per-operator part | layouts | meshes | CPU s |",
        "| --- | --- | --- | --- |",
    ]
    for name, arguments in CASES[:-1]:
        layouts, meshes, cpu = operators_time(arguments, runs)
        lines.append(f"| {name} | {layouts:,} | {meshes:,} | {cpu:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = table(options.runs)
    print(text)
    if options.write:
        path = ROOT / "benchmarks" / "README.md"
        old = (
            path.read_text()
            if path.exists()
            else f"# Benchmarks\n\n## Planning time\n\n{BEGIN}\n{END}\n"
        )
        head, rest = old.split(BEGIN)
        tail = rest.split(END)[1]
        path.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


if __name__ == "__main__":
    main()
