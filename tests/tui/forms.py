"""Forms that are filled in, and the children that look at them."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from autotune.events import Document
from autotune.run_directory import RunDirectory
from tests.tui import driving, machines
from tests.tui.scripted import ScriptedChildren
from tests.tui.setup.test_checks import PLAN
from tui.app import AutotuneApp
from tui.children import Children
from tui.screens import setup as setup_screen
from tui.screens.setup import SetupScreen
from tui.setup import inquiry
from tui.setup.form import JobForm

LOOKED: Document = {
    "columns": ["text", "label"],
    "architecture": "BertForSequenceClassification",
    "task": "sequence-classification",
    "chosen": {"text": "text", "label": "label"},
}
COMPLETE = JobForm(values={"model": "minilm", "dataset": "reviews.csv", "global_batch_size": "64"})


def use(monkeypatch: pytest.MonkeyPatch, used: Children) -> None:
    """Has the form ask these children, nearly at once."""
    monkeypatch.setattr(setup_screen, "Children", lambda: used)
    monkeypatch.setattr(inquiry, "LOOK_DELAY_S", 0.05)
    monkeypatch.setattr(inquiry, "PLAN_DELAY_S", 0.05)


def scripted(monkeypatch: pytest.MonkeyPatch, directory: Path) -> ScriptedChildren:
    """Children that answer at once, in an empty directory."""
    monkeypatch.chdir(directory)
    plan: Document = {**PLAN, "machine": machines.document(machines.machine())}
    used = ScriptedChildren(answers={"look": LOOKED, "plan": plan})
    use(monkeypatch, used)
    return used


def app_of(form: JobForm | None = None, run: RunDirectory | None = None) -> AutotuneApp:
    """The UI with a form to begin with."""
    return AutotuneApp(run, form=form, unix_time=driving.clock)


def screen_of(pilot: Pilot[int]) -> SetupScreen:
    """The form that is in front."""
    assert isinstance(pilot.app.screen, SetupScreen)
    return pilot.app.screen


async def type_in(pilot: Pilot[int], words: str) -> None:
    """Presses the keys of a text."""
    names = {" ": "space", "/": "slash", ".": "full_stop", "-": "minus", "_": "underscore"}
    await pilot.press(*(names.get(one, one) for one in words))
