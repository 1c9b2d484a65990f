"""The report in a real browser: everything is there, everything works, nothing complains, nothing leaves the file.

A copy of the report gets a script that acts as a person would and writes down what happened; Chromium runs it without a
window and prints the page. Skipped where there is no Chromium.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.plan.findings import Comparison, Largest, Sizing
from planner.plan.part import Part
from planner.report.html.page import render_html
from tests.report.reports import TABS, planned, report, stated

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=20000",
    "--window-size=1400,1000", "--dump-dom",
)  # fmt: skip
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

WATCH = """<script>
window.seen = { errors: [], violations: [] };
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => seen.violations.push(event.blockedURI));
</script>"""
ACT = f"<script>{(Path(__file__).parent / 'acting.js').read_text()}</script>"


def visited(text: str, folder: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """What the acting script saw, and what the browser wrote into its log about the page."""
    page = folder / "report.html"
    page.write_text(
        text.replace("<title>", WATCH + "<title>", 1).replace("</body>", ACT + "</body>")
    )
    command = [
        str(CHROMIUM),
        *FLAGS,
        *flags,
        f"--user-data-dir={folder / 'profile'}",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    plain = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    complaints = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(plain), complaints


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found, complaints = visited(report("pipeline"), tmp_path_factory.mktemp("browser"))
    assert not complaints
    return found


@cache
def operators() -> int:
    return sum(len(block.operators) for block in planned("pipeline").blocks)


def test_nothing_complains_and_nothing_leaves_the_file(seen: dict[str, Any]) -> None:
    assert seen["errors"] == []
    assert seen["violations"] == []
    assert seen["resources"] == []


def test_every_section_and_drawing_has_a_size(seen: dict[str, Any]) -> None:
    assert len(seen["sections"]) == 12
    assert all(height > 60 for _, height in seen["sections"])
    names = {name for name, width, height in seen["drawings"] if width > 300 and height > 20}
    assert names >= {
        f"{name}-drawing" for name in ("timeline", "mesh", "layer", "treemap", "landscape")
    }
    assert seen["wide"] <= 0


def test_the_timeline_zooms_and_moves(seen: dict[str, Any]) -> None:
    assert seen["before"][0] == seen["whole"][0] == 1
    assert seen["whole"][4] == pytest.approx(0, abs=0.01)
    assert seen["zoomed"][0] == pytest.approx(2.718281828**1.2, rel=1e-3)
    assert seen["dragged"][0] == seen["zoomed"][0]
    assert seen["dragged"][4] < seen["zoomed"][4] - 30
    assert seen["keyed"][0] == pytest.approx(1.5 * seen["zoomed"][0], rel=1e-3)
    assert re.fullmatch(
        r"stage 0, micro-batch \d+(, chunk \d+)?, (forward|backward)|", seen["says"]
    )


def test_tables_sort_and_search(seen: dict[str, Any]) -> None:
    assert seen["heads"][4] == "forward"
    assert seen["down"] == sorted(seen["values"], reverse=True) != seen["values"]
    assert seen["up"] == sorted(seen["values"])
    assert seen["names"] == sorted(seen["names"])
    assert seen["sorted"] == "operator"
    assert 0 < len(seen["found"]) < operators()
    assert all("attn" in row for row in seen["found"])
    assert seen["all"] == operators()


def test_tabs_and_copy_buttons_work(seen: dict[str, Any]) -> None:
    assert [name for name, _ in seen["tabs"]] == [*(tab.name for tab in TABS), "shardwright"]
    for (_, panels), tab in zip(seen["tabs"], TABS, strict=False):
        assert len(panels) == 1
        assert all(text.strip() in panels[0] for _, text in tab.files)
    assert seen["arrow"] == TABS[1].name
    assert seen["copied"] == TABS[0].files[0][1]
    assert seen["copyLabel"] == "Copied"
    assert seen["download"] == ["llama-3-70b-plan.json", True]


def test_light_and_dark(seen: dict[str, Any], tmp_path: Path) -> None:
    first, second, third = seen["colors"]
    assert first == third != second
    dark, complaints = visited(
        report("experts"), tmp_path, "--force-dark-mode", "--blink-settings=preferredColorScheme=0"
    )
    assert not complaints
    assert dark["errors"] == []
    assert dark["colors"][0] == second


def test_the_mesh_follows_the_pointer(seen: dict[str, Any]) -> None:
    assert seen["chip"] == planned("pipeline").degrees.chips_used - 1


@pytest.mark.parametrize(
    ("kind", "name"), [(Comparison, "comparison"), (Sizing, "sizing"), (Largest, "largest")]
)
def test_clusters_and_sizes_stand_among_the_what_ifs(
    kind: type[Part], name: str, tmp_path: Path
) -> None:
    study = kind.model_validate_json((Path(__file__).parent / f"{name}.json").read_text())
    found, complaints = visited(render_html(planned("one node"), TABS, study=study), tmp_path)
    assert not complaints
    assert found["errors"] == found["violations"] == found["resources"] == []
    rows = study.rows if isinstance(study, Comparison) else study.curve
    assert 3 <= found["study"] <= len(rows)
    drawn = [name for name, width, height in found["drawings"] if width > 300 and height > 20]
    assert ("curves-drawing" in drawn) == (kind is not Comparison)
    assert found["wide"] <= 0


def test_pages_with_less_to_show_work_too(tmp_path: Path) -> None:
    """Neither a search nor a pipeline, a narrow window."""
    found, complaints = visited(render_html(stated()), tmp_path, "--window-size=500,900")
    assert not complaints
    assert found["errors"] == []
    assert found["wide"] <= 0
    assert len(found["sections"]) == 12
