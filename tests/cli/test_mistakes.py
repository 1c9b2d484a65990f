"""The twelve most likely mistakes, typed, and every line of what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main

LLAMA = ["llama-3-70b", "--cluster", "h100-sxm:256"]


@pytest.fixture(autouse=True)
def real(planner: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner itself, not the one of these tests."""
    monkeypatch.undo()


def said(line: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of standard error of a command that refuses what it is given."""
    capsys.readouterr()
    assert main(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.rstrip("\n").splitlines()


MISTAKES = {
    "model": (
        ["plan", "llama3-70", "--cluster", "h100-sxm:256"],
        [
            "Error: no model named 'llama3-70'. Nearest: llama-3-70b, llama-3.1-70b, llama-30b.",
            "       A folder or file with a config.json works too. All: shardwright list models   [M01]",
        ],
    ),
    "chip": (
        ["plan", "llama-3-70b", "--cluster", "h100sxm:256"],
        [
            "Error: no chip named 'h100sxm' in --cluster h100sxm:256. Nearest: h100-sxm, v100-sxm-16gb, h800-sxm.",
            "       For a chip we do not know, start from one we do:",
            "       shardwright show h100-sxm > my.yaml   [C01]",
        ],
    ),
    "degrees": (
        ["plan", *LLAMA, "--pin", "dp=8,tp=8,pp=3"],
        [
            "Error: dp 8 × tp 8 × pp 3 = 192, but the cluster has 256 chips.",
            "       With tp 8 and pp 4, dp becomes 8; no dp makes 256 with tp 8 × pp 3.   [D01]",
        ],
    ),
    "heads": (
        ["plan", *LLAMA, "--pin", "tp=16"],
        [
            "Error: tp 16 cannot split 8 key/value heads (llama-3-70b, attn.kv). tp 1, 2, 4 or 8 can.",
            "       megatron can copy key/value heads: add --pin kv-heads=copy (up to +480.0 MiB a chip).   [D02]",
        ],
    ),
    "heads of a stage": (
        ["price", *LLAMA, "--set", "tp=16,pp=4"],
        [
            "Error: tp 16 cannot split 8 key/value heads (llama-3-70b, attn.kv). tp 1, 2, 4 or 8 can.",
            "       megatron can copy key/value heads: add --set kv-heads=copy (+120.0 MiB a chip).   [D02]",
        ],
    ),
    "batch": (
        ["plan", *LLAMA, "-b", "500", "--pin", "dp=16"],
        [
            "Error: global batch 500 is not a multiple of dp × micro-batch = 16 × 1.",
            "       Nearest with dp 16: 496 or 512. With 500, dp can be 1, 2 or 4 on 256 chips.   [B01]",
        ],
    ),
    "layers": (
        ["price", "deepseek-v3", *LLAMA[1:], "--set", "dp=8,tp=8,pp=4,vpp=5,ep=32"],
        [
            "Error: 61 layers cannot be cut equally into pp 4 × 5 virtual stages, as megatron needs.",
            "       pp 4 without virtual stages can be 16, 15, 15, 15. Drop --set vpp=5.",
            "       Or say how unequal ones are: stage-layers=4+3+3+3+3+3+3+3+3+3+3+3+3+3+3+3+3+3+3+3   [P01]",
        ],
    ),
    "virtual stages": (
        ["plan", *LLAMA, "--pin", "pp=4,vpp=50"],
        [
            "Error: pp 4 × 50 virtual stages are 200, more than the 80 layers.",
            "       With pp 4, vpp can be 1, 2, 4, 5, 10 or 20.   [P01]",
        ],
    ),
    "experts": (
        ["plan", "qwen3-235b-a22b", "--cluster", "h100-sxm:384", "--pin", "ep=12"],
        [
            "Error: ep 12 does not divide 128 experts. ep 1, 2, 4, 8, 16, 32, 64 or 128 does.",
            "       ep shares chips with dp and tp; it does not multiply the chip count.   [E01]",
        ],
    ),
    "trainer": (
        ["plan", *LLAMA, "--trainer", "torchtitan", "--pin", "vpp=5,schedule=1f1b"],
        [
            "Error: torchtitan cannot run --pin vpp=5 with schedule 1f1b.",
            "       It can with interleaved or zb-h1.",
            "       No other trainer can.   [T01]",
        ],
    ),
    "trainers that can": (
        ["price", *LLAMA, "--set", "tp=2,pp=8,schedule=zbv"],
        [
            "Error: megatron cannot run schedule zbv.",
            "       It can with 1f1b or interleaved.",
            "       Trainers that can: torchtitan and mindspore.   [T01]",
        ],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_would_be_right(
    mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, words = MISTAKES[mistake]
    assert said(line, capsys) == words


SLIPS = {
    "unit": (
        "bandwidth_gbps: 50 GB/s",
        "bandwidth_gbps: 400",
        "400",
        [
            "bandwidth 400 of level 'network' looks like Gb/s; the field is GB/s for one chip and direction.",
            "       Write 50, or '400 Gb/s' with its unit.   [U01]",
        ],
    ),
    "key": (
        "  memory_gib",
        "  memmory_gib",
        "memmory_gib",
        ["unknown key 'memmory_gib' in chip. Did you mean 'memory_gib'?   [Y01]"],
    ),
    "key twice": (
        "size: 72",
        "size: 72\n  size: 36",
        "size: 36",
        ["key 'size' is given twice (first on line 10).   [Y02]"],
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_in_a_profile_are_told_with_their_place(
    slip: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong, at, words = SLIPS[slip]
    assert main(["show", "b200-nvl72"]) == 0
    text = capsys.readouterr().out.replace(right, wrong, 1)
    file = tmp_path / "my.yaml"
    file.write_text(text)
    before = text[: text.index(f"{at}\n") if at != "memmory_gib" else text.index(at)].split("\n")
    where = f"{file}:{len(before)}:{len(before[-1]) + 1}: error: "
    first, *rest = said(["plan", "llama-3-70b", "-c", str(file)], capsys)
    assert [first.removeprefix(where), *rest] == words


def test_a_model_that_states_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    stated = {
        "architectures": ["FooForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
    }
    (folder / "config.json").write_text(json.dumps(stated))
    assert said(["plan", str(folder), "-c", "h100-sxm:64"], capsys) == [
        f"Error: {folder}/config.json has no num_key_value_heads, and its architecture 'FooForCausalLM' is not known.",
        "       Give it: --set num_key_value_heads=8",
        "       and, if it is built like Llama: --set model_type=llama",
        "       Or describe the model yourself: shardwright schema model   [M02]",
    ]


def test_a_stale_plan_is_refused_with_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tree is shown with a warning, for it needs no price; rows would be priced anew."""
    monkeypatch.chdir(tmp_path)
    recipe = Path("recipe.yaml")
    recipe.write_text("seq_len: 8192\nglobal_batch: 64\n")
    line = ["plan", "llama-3-8b", "-c", "h100-sxm:8", "--recipe", "recipe.yaml", "-o", "plan.json"]
    assert main([*line, "-q"]) == 0
    recipe.write_text("seq_len: 4096\nglobal_batch: 64\n")
    what = "plan.json was made with seq 8192; the recipe says 4096. Its times are not valid."
    assert said(["explain", "plan.json", "#2"], capsys) == [
        f"Error: {what}",
        "       Price it again:  shardwright price --like plan.json --seq-len 4096",
        "       Search again:    shardwright plan --like plan.json --seq-len 4096   [V01]",
    ]
    assert main(["explain", "plan.json"]) == 0
    assert capsys.readouterr().err == f"Warning: {what}\n"
    recipe.write_text("seq_len: 4096\nglobal_batch: 32\noptimizer: sgd\n")
    first, *rest = said(["explain", "plan.json", "rule:memory"], capsys)
    assert first == (
        "Error: plan.json was made with seq 8192, global batch 64 and optimizer adamw; the recipe says "
        "seq 4096, global batch 32 and optimizer sgd. Its times are not valid."
    )
    assert rest[0].endswith("--seq-len 4096 --global-batch 32 --optimizer sgd")
    assert main(["price", "--like", "plan.json", "--seq-len", "4096", "-q"]) == 0
