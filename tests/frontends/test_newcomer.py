"""What a newcomer and a breaker tried first, on the real planner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from planner.api import PlannerError, Question, plan, show
from planner.frontends.cluster_file import read_cluster
from planner.question import default_batch

ROOT = Path(__file__).parents[2]
SMALL = "plan gpt2 -c h100-sxm:8 -b 8 --quiet"


@pytest.mark.parametrize("chips", [1, 3, 7, 12, 250, 600, 997, 98_304, 1_000_000])
def test_the_default_batch_can_be_cut_for_any_number_of_chips(chips: int) -> None:
    odd = chips // (chips & -chips)
    assert default_batch(8192, chips) % odd == 0


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("plan gpt2 -c h100-sxm:8 -b 8", 0),
        ("plan --help", 0),
        ("--version", 0),
        ("plan x -c y:1", 2),
    ],
)
def test_no_reader_is_no_bug(line: str, code: int) -> None:
    """``shardwright plan … 2>&1 | head -1``."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "cli.main", *line.split()]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=write, check=False)
    os.close(write)
    assert done.returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("line", ["list trainers", "plan --help"])
def test_a_full_disk_is_no_bug(line: str) -> None:
    command = [sys.executable, "-m", "cli.main", *line.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "the output cannot be written: No space left on device." in done.stderr


@pytest.mark.parametrize("line", ["list trainers", "plan --help", "--version"])
def test_a_closed_output_is_said(line: str) -> None:
    """``shardwright … >&-``: no answer is lost without a word."""
    command = ["sh", "-c", f"exec {sys.executable} -m cli.main {line} >&-"]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: the output cannot be written: it is closed.   [O03]\n"


def test_ranges_of_pins_that_nothing_lies_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL.split(), "--pin", "tp<=2", "--pin", "tp>=4"]) == 2
    assert "no layout of 8 chips has tp<=2 and tp>=4." in capsys.readouterr().err


def test_no_plan_says_which_rule_and_what_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither 13 chips nor fewer divide five sequences of prime length."""
    words = [
        "plan",
        "gpt2",
        "-c",
        "h100-sxm:13",
        "-b",
        "5",
        "-s",
        "1021",
        "--trainer",
        "fsdp",
        "--quiet",
    ]
    assert main(words) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "Why global batch 5 is not a multiple of dp × micro-batch = 13 × 1." in out


def test_every_layout_is_accounted_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "llama-3-8b", "-c", "h100-sxm:8", "-b", "64", "--quiet", "--detail", "rules"])
    out = capsys.readouterr().out
    found = json_of("plan llama-3-8b -c h100-sxm:8 -b 64 --quiet", capsys)
    proof = found["proof"]
    over = proof["allowed"] - proof["fitting"]
    assert sum(rule["count"] for rule in found["removed"]) == proof["searched"] - proof["allowed"]
    assert f"{over:,} memory" in out
    assert f"{over:,}  memory" in out


def json_of(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main([*line.split(), "--format", "json"])
    return json.loads(capsys.readouterr().out)


def test_a_profile_without_a_count_says_how_many_chips(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "gpt2", "-c", "dgx-h100", "-b", "256", "--quiet"])
    assert "256 chips (a usual size of dgx-h100;" in capsys.readouterr().out


def test_shown_hardware_is_a_file_that_show_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("h100-sxm", "dgx-h100", "llama-3-8b"):
        main(["show", name])
        text = capsys.readouterr().out
        assert "not measured on your cluster" not in text, "an edited copy would still say so"
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        assert main(["show", str(file)]) == 0
        assert capsys.readouterr().out == text


def test_a_length_that_the_family_gives_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
    file = tmp_path / "config.json"
    for more, said in (
        ({}, "max_seq: 1024  # usual for the family; no n_positions"),
        ({"n_positions": 512}, "max_seq: 512"),
    ):
        file.write_text(json.dumps(keys | more))
        assert main(["show", str(file)]) == 0
        assert said in capsys.readouterr().out.splitlines()


def test_a_folder_is_shown_without_a_slash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    config = ROOT.parent / "shared/facts/hf_configs"
    files = sorted(config.glob("*llama-2*.json")) if config.is_dir() else []
    if not files:
        keys = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257}
        text = json.dumps(keys | {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024})
    else:
        text = files[0].read_text()
    (tmp_path / "mine/config.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["show", "mine"]) == 0


def test_a_recipe_says_what_came_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text("global_batch: 64\nseq_len: 512\n")
    monkeypatch.chdir(tmp_path)
    main(["plan", "gpt2", "-c", "h100-sxm:8", "--recipe", "r.yaml", "-s", "256", "--quiet"])
    out = capsys.readouterr().out
    assert "global batch 64 sequences (r.yaml)" in out
    assert "seq 512" not in out


def test_wrong_words_in_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("global_batch: 512.5\nprecision: fp9\n")
    assert main(["plan", "gpt2", "-c", "h100-sxm:8", "--recipe", str(file)]) == 2
    err = capsys.readouterr().err
    assert ":1:15: error: global_batch 512.5 must be sequences as a whole number" in err
    assert ":2:12: error: precision 'fp9' must be 'bf16', 'fp8', 'fp16' or 'fp32'." in err


def test_nodes_and_hosts_must_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["show", "dgx-h100"])
    file = tmp_path / "mine.yaml"
    file.write_text(capsys.readouterr().out.replace("  size: 8", "  size: 7"))
    assert main(["plan", "gpt2", "-c", str(file), "-b", "8"]) == 2
    assert "size 7 of level 'node' does not go with 8 chips_per_host." in capsys.readouterr().err
    assert read_cluster("dgx-h100").levels[0].size == 8


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--set tp=8,batch=3", "--set batch: a model described here has no such key."),
        ("--set tp=0", "--set 'tp=0'"),
        (f"--set tp={'9' * 5000}", "is not a whole number from 1 up."),
        (f"--set tp=1 -b {'9' * 5000}", "Write it like 512 or 4Mtok."),
        (f"--set tp=1 -b {'9' * 5000}tok", "Write it like 512 or 4Mtok."),
    ],
)
def test_price_speaks_of_set(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["price", "gpt2", "-c", "h100-sxm:8", *line.split()]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "--pin" not in err
    assert "/models/" not in err


def test_a_plan_is_not_taken_for_a_model() -> None:
    plan = Path(__file__).parents[1] / "report" / "real.json"
    with pytest.raises(PlannerError) as caught:
        show(str(plan))
    [fault] = caught.value.faults
    assert fault.code == "M05"
    assert f"shardwright explain {plan}" in fault.fix[0]


def test_a_micro_batch_that_never_divides_the_batch_says_which_do() -> None:
    question = Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=64, pins=("mbs=3",))
    with pytest.raises(PlannerError) as caught:
        plan(question)
    [fault] = caught.value.faults
    assert fault.code == "B01"
    assert "micro-batches of 3, whatever dp is" in fault.what
    assert "1, 2 and 4" in fault.fix[0]


@pytest.mark.parametrize(
    ("pin", "meant"), [("foo=1", ""), ("tpp=2", "Did you mean tp, pp or vpp?")]
)
def test_an_unknown_pin_names_what_it_may_mean(pin: str, meant: str) -> None:
    question = Question(model="llama-3-8b", cluster="h100-sxm:8", pins=(pin,))
    with pytest.raises(PlannerError) as caught:
        plan(question)
    [fault] = caught.value.faults
    assert fault.code == "N01"
    assert meant in fault.what
    assert ("Did you mean" in fault.what) == bool(meant)
    assert "kv-heads" in fault.fix[0]


def test_a_network_that_is_stated_is_no_assumption(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan gpt2 -c h100-sxm:16 -b 64 --pin tp=1,pp=1 --quiet --what-if network.bandwidth="
    for value, told in (("100Gb/s", False), ("0.5x", True)):
        assert main([*line.split()[:-1], line.split()[-1] + value]) == 0
        out = capsys.readouterr().out
        assert "what if: bandwidth of the network" in out
        assert ("400 Gb/s a chip between nodes" in out) == told
