"""What a command line gives: answers, exit codes, and words for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from planner.errors import Fault, PlannerError
from planner.plan.write import write_plan
from planner.search.engine import Progress

ASKED = ["plan", "llama-3-70b", "--cluster", "h100-sxm:256"]
GOLDEN = Path(__file__).parents[1] / "report" / "golden"


def test_plan_shows_the_page_on_stdout_and_talks_on_stderr(
    planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ASKED) == 0
    out, err = capsys.readouterr()
    page = (GOLDEN / "dense-100.txt").read_text()
    assert out.startswith(page)
    assert "  Next   … --out plan.json" in out
    assert err == "Warning: The bandwidth between nodes is the profile's default.\n"


def test_quiet_shows_only_the_answer(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == (GOLDEN / "dense-100.txt").read_text()
    assert err == ""


def test_every_flag_reaches_the_question(planner: Any) -> None:
    flags = "-t torchtitan -b 4Mtok -s 4096 --precision fp8 --optimizer sgd --recipe r.yaml "
    flags += (
        "--memory-limit 90% --pin tp=8 --pin pp<=4 --objective cost-per-token --time-limit 2min "
    )
    flags += "--top 9 --set num_key_value_heads=8 --set vocab_size=5,rope_theta=1e6"
    assert main(ASKED + flags.split()) == 0
    assert planner.question == planner.Question(
        model="llama-3-70b",
        cluster="h100-sxm:256",
        trainer="torchtitan",
        global_batch="4Mtok",
        seq_len=4096,
        precision="fp8",
        optimizer="sgd",
        recipe_file=Path("r.yaml"),
        memory_limit="90%",
        pins=("tp=8", "pp<=4"),
        objective="cost-per-token",
        time_limit=120.0,
        top=9,
        overrides={"num_key_value_heads": "8", "vocab_size": "5", "rope_theta": "1e6"},
    )


def test_price_divides_settings_into_layout_and_model(planner: Any) -> None:
    sets = "--set tp=8,pp=4,mbs=2,recompute=full --set shard-group=4,num_key_value_heads=8 -b 512"
    assert main(["price", "llama-3-70b", "-c", "h100-sxm:256", *sets.split()]) == 0
    assert planner.layout == {
        "tp": 8, "pp": 4, "mbs": 2, "recompute": "full", "shard-group": 4,
    }  # fmt: skip
    assert planner.question.overrides == {"num_key_value_heads": "8"}
    assert planner.question.global_batch == 512


def test_a_stated_layout_takes_pins_on_operators(
    planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["price", "m", "-c", "c", "--set", "tp=8"]
    pins = ["layers.*.mlp.up=((1,1),(1,8))", "attn.q.heads=tp"]
    assert main([*asked, "--pin", pins[0], "--pin", pins[1]]) == 0
    assert planner.question.pins == tuple(pins)
    planner.answer = PlannerError.of("N02", "pin 'attn.q.heads=4': no. pin 'tp=9': no.")
    assert main(asked) == 2
    assert "pin 'attn.q.heads=4': no. --set 'tp=9': no." in capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "yaml", "markdown"])
def test_formats(form: str, planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "-f", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        assert out == write_plan(planner.answer)
    else:
        assert out == (GOLDEN / f"dense.{form}").read_text()


def test_no_plan_is_shown_and_nothing_is_written(
    planner: Any, no_plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planner.answer = no_plan
    out_file = tmp_path / "plan.json"
    assert main([*ASKED, "--out", str(out_file)]) == 3
    out, err = capsys.readouterr()
    assert out.startswith("  Does not fit:")
    assert err == f"No plan, so {out_file} was not written.\n"
    assert not out_file.exists()
    assert main([*ASKED, "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["closest"]["tp"] == 8


def test_a_priced_layout_that_does_not_fit(
    planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    planner.answer = planner.answer.model_copy(update={"fits": False, "memory": 91.2 * 2**30})
    assert main(["price", "m", "-c", "c", "--set", "tp=8"]) == 3
    assert capsys.readouterr().out.startswith("  Does not fit: 91.2 of 76.0 GiB")


def test_a_stopped_search_has_an_answer(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    proof = planner.answer.proof.model_copy(
        update={"stopped": True, "optimal": False, "bound": 17.4}
    )
    planner.answer = planner.answer.model_copy(update={"proof": proof})
    assert main(ASKED) == 4
    err = capsys.readouterr().err
    assert err.endswith("Stopped. Best so far 18.1 s; nothing can be better than 17.4 s.\n")


def test_stages_that_were_not_divided_are_part_of_what_is_open(
    planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = planner.answer.proof.model_copy(
        update={"stopped": True, "optimal": True, "cut_gap": 0.5}
    )
    planner.answer = planner.answer.model_copy(update={"proof": proof})
    assert main(ASKED) == 4
    err = capsys.readouterr().err
    assert err.endswith("Stopped. Best so far 18.1 s; nothing can be better than 9.05 s.\n")


def test_stopped_after_the_proof_is_an_answer(
    planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = planner.answer.proof.model_copy(update={"stopped": True, "optimal": True})
    planner.answer = planner.answer.model_copy(update={"proof": proof})
    assert main(["plan", "m", "-c", "c"]) == 0
    assert "Stopped after the plan was proven" in capsys.readouterr().err


def test_ctrl_c_before_any_answer(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    planner.answer = KeyboardInterrupt()
    assert main(ASKED) == 130
    assert capsys.readouterr().err == "Stopped before there was an answer.\n"


def test_sigterm_is_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a batch system sends it, while the program works."""

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(sys.modules["planner.api"], "plan", killed)
    monkeypatch.setattr(sys, "argv", ["shardwright", *ASKED])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main() == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "Stopped before there was an answer.\n"


def test_faults_are_printed_one_after_another(
    planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    planner.answer = PlannerError(
        Fault("D02", "tp 16 cannot split 8 key/value heads.", ("tp 1, 2, 4 or 8 can.",)),
        Fault("Y01", "unknown key 'memmory_gib' in chip.", where="my.yaml:9:5"),
    )
    assert main(ASKED) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "Error: tp 16 cannot split 8 key/value heads.",
        "       tp 1, 2, 4 or 8 can.   [D02]",
        "my.yaml:9:5: error: unknown key 'memmory_gib' in chip.   [Y01]",
    ]
    assert main([*ASKED, "--format", "json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [fault["code"] for fault in json.loads(err)["faults"]] == ["D02", "Y01"]


def test_a_bug_is_reported_without_a_traceback(
    planner: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planner.answer = ZeroDivisionError("float division by zero")
    assert main(ASKED) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "please report it" in err.lower()
    [log] = tmp_path.glob("*.log")
    assert str(log) in err
    assert "Traceback" in log.read_text()
    assert main([*ASKED, "--verbose"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("plan m -c c --clustr x", "A01", "Nearest: --cluster"),
        ("plan m --clus c", "A01", "no option --clus "),
        ("plan m -c c --memory 4", "A01", "Nearest: --memory-limit"),
        ("--verson", "A01", "Nearest: --version"),
        ("pln m", "A02", "Nearest: plan"),
        ("explian plan.json", "A02", "Nearest: explain"),
        ("plan m", "A03", "missing option '--cluster'"),
        ("plan", "A03", "missing argument 'MODEL'"),
        ("plan m n -c c", "A03", "unexpected extra argument"),
        ("plan m -c", "A03", "requires an argument"),
        ("plan m -c c --cluster d", "A03", 'Pools of one job: --cluster "c + d".'),
        ("plan m -c c -b 8 --global-batch=16", "A03", "--global-batch is given twice: 8 and 16."),
        ("plan m -c c --seq-len many", "A03", "--seq-len 'many'"),
        (f"plan m -c c --seq-len {'9' * 5000}", "A03", "is no length of a sequence"),
        ("plan m -c c --top 0", "A03", "'--top': it should be at least 1."),
        ("plan m -c c --out=", "A03", "the path after --out is empty"),
        ("export plan.json --to megatron --out=", "A03", "the path after --out is empty"),
        ("plan m -c c -f tabel", "A03", "Nearest: table"),
        ("plan m -c c --detail memory,opps", "A03", "Nearest: ops"),
        ("plan m -c c --objective cheapest", "A03", "cost-per-token, fewest-chips or pareto"),
        ("plan m -c c --time-limit soon", "A03", "60s or 5min"),
        ("plan m -c c --time-limit 0", "A03", "is no time at all"),
        ("list model", "A03", "Nearest: models"),
        ("schema plam", "A03", "Nearest: plan"),
        ("show x -f yaml", "A03", "Possible: table or json"),
        ("plan m -c c --set tp=8", "A04", "--pin tp=8"),
        ("plan m -c c --set heads", "A04", "is not KEY=VALUE"),
        ("price m -c c --set tpp=8", "A04", "Nearest: tp"),
        ("price m -c c --set tp=8,tp=4", "A04", "gives tp twice: 8 and 4"),
        ("price m -c c", "A03", "missing option '--set'"),
        ("plan m -c c -o report.pdf", "O01", ".json (the plan), .html (the report), "),
        ("price -c c --set tp=8", "A03", "--like plan.json"),
        ("plan m -c c --warm-start tpp=8", "A04", "Nearest: tp"),
        (
            "plan m -c c --warm-start vocab_size=8",
            "A04",
            "no layout key 'vocab_size' in --warm-start",
        ),
        ("plan m -c c --warm-start gone.json", "F01", "gone.json"),
        ("plan --like gone.json", "F01", "gone.json"),
        ("plan m -c c -o a.trace", "O01", "nothing is written with this ending"),
    ],
)
def test_mistakes(
    line: str, code: str, words: str, planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.rstrip().endswith(f"[{code}]")
    assert planner.question is None, "the work began before the words were checked"


def test_list_show_schema(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "chips"]) == 0
    assert capsys.readouterr().out == (
        "  name      GiB  source\n  h100-sxm   80  chips\n  a910b      64  s\n"
    )
    assert main(["list", "chips", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["name"] == "a910b"
    assert main(["show", "h100-sxm"]) == 0
    assert capsys.readouterr().out == "name: h100-sxm  # the data sheet\n"
    assert main(["show", "h100-sxm", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "h100-sxm"}
    assert main(["schema", "plan"]) == 0
    assert json.loads(capsys.readouterr().out) == {"title": "plan"}


def test_progress_is_silent_in_files_until_five_seconds(
    planner: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner.progress = [Progress(28_200, 41_472, 18.5, 17.4)] * 3
    assert main(ASKED) == 0
    assert "pricing" not in capsys.readouterr().err
    monkeypatch.setattr("cli.console.EVERY_FILE", 0.01)
    planner.seconds = 0.2
    assert main(ASKED) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == second, "the clock goes on where the search says nothing"
    assert first.startswith("  pricing 41,472 layouts ━━━━━━━━━━━━━━━━╸")
    assert first.endswith("68 %   best 18.5 s   gap ≤ 6 %   0:00")
    assert main([*ASKED, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("room", [60, 79, 99, 200])
def test_the_bar_of_progress_takes_what_the_words_leave(room: int) -> None:
    from cli.console import progress_text

    line = progress_text(Progress(28_200, 41_472, 18.5, 17.4), 62.0, room)
    assert line.endswith("   68 %   best 18.5 s   gap ≤ 6 %   1:02")
    assert line.count("━") >= 2
    assert len(line) <= max(room, 69)


@pytest.mark.parametrize("last", [[], ["plan", "--help"], ["price", "--help"], ["--version"]])
def test_help(last: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(last) == 0
    assert "shardwright" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    heavy = ["numpy", "scipy", "ortools", "pydantic", "rich", "ruamel", "pandas", "planner"]
    code = (
        "import sys; from cli.main import main; main(sys.argv[1:]);"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    root = Path(__file__).parents[2]
    for line in (["--help"], ["plan", "--help"], ["price", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *line],
            cwd=root, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(root)},
        )  # fmt: skip
        assert "Usage: shardwright" in done.stdout
        assert done.stderr.strip() == "[]"


def test_frozen_options() -> None:
    """Every command and option; a new one is a promise, so it changes this file too."""
    from typer.main import get_command

    from cli.program import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    lines = [
        " ".join([name, *param.opts])
        for name, command in commands.items()
        for param in command.params
    ]
    assert lines == (Path(__file__).parent / "options.txt").read_text().splitlines()
    letters = {word for line in lines for word in line.split() if word[0] == "-" != word[1]}
    assert letters == {"-c", "-t", "-b", "-s", "-f", "-o", "-q"}


def test_words_are_the_planner_s() -> None:
    """Lists that the command line keeps, so that help need not load the planner, agree with it."""
    from cli.layout import LAYOUT
    from cli.options import DETAILS, OBJECTIVES
    from planner import question
    from planner.plan.layout import DIVISION, SEATS
    from planner.report import detail
    from planner.search import pins

    assert set(DETAILS) == set(detail.DETAILS)
    assert OBJECTIVES == question.OBJECTIVES
    assert {*pins.NAMES, *pins.OTHER, *DIVISION, SEATS} == LAYOUT


def test_the_stand_in_has_the_shape_of_the_planner(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    from dataclasses import fields
    from inspect import signature

    import planner.api as api

    assert {f.name for f in fields(planner.Question)} <= {f.name for f in fields(api.Question)}
    for name in ("plan", "price", "show"):
        assert list(signature(getattr(api, name)).parameters) == list(
            signature(getattr(planner, name)).parameters
        )
