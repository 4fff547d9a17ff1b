"""Setup, probes and recommendation in every form of a run and in every window."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.tui import answers, driving, stories
from tests.tui.scripted import ScriptedChildren
from tui.app import AutotuneApp
from tui.run_now import Form
from tui.screens import export, probes, setup

HEADS = {"1": "1 setup", "2": "2 probes", "5": "5 recommendation"}
TOLD: dict[str, dict[Form, str]] = {
    "1": {
        "empty": "not named yet",
        "running": "--demo --global-batch-size 64",
        "failed": "--demo --global-batch-size 64",
        "finished": "--demo --global-batch-size 64",
    },
    "2": {
        "empty": "nothing is measured yet",
        "running": "Test processor",
        "failed": "Test processor",
        "finished": "Test processor",
    },
    "5": {
        "empty": "no answer yet: what is missing",
        "running": "leads so far",
        "failed": "The engine is gone",
        "finished": "use 32×2 instead of 8×8",
    },
}
"""What each screen must not lose, however small its window."""


@pytest.mark.parametrize("form", stories.FORMS)
def test_nothing_is_lost_or_cut(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scripted = ScriptedChildren()
    for module in (setup, probes, export):
        monkeypatch.setattr(module, "Children", lambda: scripted)
    make = answers.finished if form == "finished" else lambda root: stories.make(root, form)
    run = make(tmp_path)

    async def body(pilot: Pilot[int]) -> None:
        for key, head in HEADS.items():
            await pilot.press(key)
            for columns, rows in driving.SIZES:
                await pilot.resize_terminal(columns, rows)
                await driving.shows(pilot, TOLD[key][form])
                shown = driving.rows(pilot.app)
                assert head in shown[0]
                assert "? Help" in shown[-1]
                assert "^p" in shown[-1]
                assert len(shown) == rows
                assert all(len(row) <= columns for row in shown)

    driving.drive(AutotuneApp(run, unix_time=driving.clock), (80, 24), body)
    assert scripted.asked == [], "looking asks nobody"
