"""A form is left, or its run is started: each after a question where something would be lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.pilot import Pilot

from autotune.events import Document
from autotune.run_directory import DEFAULT_ROOT
from tests.tui import driving, forms, stories
from tests.tui.driving import shows, text, until
from tests.tui.scripted import ScriptedChildren
from tests.tui.setup.test_checks import PLAN
from tui import children
from tui.app import AutotuneApp
from tui.last_words import of_draft
from tui.setup.form import JobForm
from tui.widgets.form_field import FormField


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedChildren:
    """Children that answer at once, in an empty directory."""
    return forms.scripted(monkeypatch, tmp_path)


def test_the_run_is_started_by_the_command_line_and_then_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real `autotune tune --detach`, whose engine tells a story and measures nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    class Children(ScriptedChildren):
        async def ask(self, words, **options):  # type: ignore[no-untyped-def]
            if words and words[0] == "tune":
                self.asked.append(list(words))
                options["module"] = "tests.testing.fake_cli"
                return await children.Children.ask(self, words, **options)
            return await super().ask(words, **options)

    used = Children(answers={"look": forms.LOOKED, "plan": PLAN})
    forms.use(monkeypatch, used)
    form = JobForm(values={"demo": "on", "name": "one"})

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "3 configurations")
        await pilot.press("r")
        app = pilot.app
        assert isinstance(app, AutotuneApp)
        await until(pilot, lambda: app.latest.state == "finished")
        await shows(pilot, "3 search  one")
        assert used.asked[-1] == ["tune", "--demo", "--name", "one", "--detach", "--json"]
        # The same name again: the remedy's switches are offered, nothing is overwritten unasked.
        await pilot.press("1")
        await until(pilot, lambda: app.front is not None and app.front.NAME == "setup")
        await pilot.press("r")
        await shows(pilot, "There is a run 'one' already.")
        await pilot.press("f")
        await until(pilot, lambda: len(used.asked) > 1 and "--fresh" in used.asked[-1])
        await until(pilot, lambda: app.front is not None and app.front.NAME == "search")
        await until(pilot, lambda: app.latest.state == "finished")

    driving.drive(forms.app_of(form), (80, 24), body)
    journals = [path.name for path in (tmp_path / "autotune-runs" / "one").glob("journal.jsonl*")]
    assert len(journals) == 2, "the earlier story was moved aside"


def test_a_run_that_goes_on_is_not_disturbed(tmp_path: Path, scripted: ScriptedChildren) -> None:
    run = stories.make(tmp_path, "running")

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("1", "c")
        await shows(pilot, "not asked, so that the run")
        await until(pilot, lambda: scripted.num_asked("look") == 1)
        await pilot.press("r")
        await shows(pilot, "A run goes on. Start another one beside it?")
        await pilot.press("b")
        await pilot.pause(0.2)
        assert [asked[0] for asked in scripted.asked] == ["look"]

    driving.drive(forms.app_of(run=run), (140, 40), body)


def test_the_form_of_a_run_keeps_its_successor_beside_it(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    run = stories.make(tmp_path / "my runs", "finished")

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("1", "y")
        assert f"--run-dir '{run.path.parent}'" in pilot.app.clipboard

    driving.drive(forms.app_of(run=run), (80, 24), body)


def test_a_run_that_is_being_started_is_not_started_twice(scripted: ScriptedChildren) -> None:
    scripted.waits = {"tune"}

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "3 configurations")
        await pilot.press("r")
        await until(pilot, lambda: scripted.num_asked("tune") == 1)
        await pilot.press("r")
        await shows(pilot, "The run is being started.")
        assert (scripted.num_asked("tune"), scripted.given_up) == (1, [])

    driving.drive(forms.app_of(forms.COMPLETE), (80, 24), body)


def test_a_filled_form_is_left_only_after_a_question(scripted: ScriptedChildren) -> None:
    app = forms.app_of()

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        await forms.type_in(pilot, "minilm")
        await pilot.press("ctrl+c")
        await shows(pilot, "Leave the form that is filled in?")
        await pilot.press("escape")
        assert forms.screen_of(pilot).query_one("#field-model", FormField).value == "minilm"
        await pilot.press("escape", "2", "q")
        await shows(pilot, "Leave the form that is filled in?")
        await pilot.press("b", "1", "q", "l")

    driving.drive(app, (80, 24), body)
    assert app.return_value == 0
    assert app.draft == JobForm(values={"model": "minilm"})
    assert of_draft(app.draft, run_root=app.run_root)[-1] == "  autotune tui --model minilm"


def test_control_c_again_leaves_a_filled_form_at_once(scripted: ScriptedChildren) -> None:
    app = forms.app_of(forms.COMPLETE)

    async def body(pilot: Pilot[int]) -> None:
        pilot.app.screen.query_one("#field-trials", FormField).take_focus()
        await pilot.press("9", "ctrl+o", "ctrl+c")
        await shows(pilot, "Leave the form that is filled in?")
        await pilot.press("ctrl+c")

    driving.drive(app, (60, 16), body)
    assert app.return_value == 130


@pytest.mark.parametrize("form", [None, forms.COMPLETE])
def test_a_form_that_nobody_changed_is_left_at_once(
    scripted: ScriptedChildren, form: JobForm | None
) -> None:
    for key, code in (("q", 0), ("ctrl+c", 130)):
        app = forms.app_of(form)

        async def body(pilot: Pilot[int], key: str = key) -> None:
            pilot.app.screen.query_one("#field-trials", FormField).take_focus()
            await pilot.press("9", "backspace", "escape", key)

        driving.drive(app, (80, 24), body)
        assert (app.return_value, app.draft) == (code, None)


def test_what_was_started_is_no_draft_any_more(scripted: ScriptedChildren, tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    scripted.answers["tune"] = {"path": str(run.path)}
    app = forms.app_of(forms.COMPLETE)

    async def body(pilot: Pilot[int]) -> None:
        pilot.app.screen.query_one("#field-trials", FormField).take_focus()
        await pilot.press("9", "escape")
        assert [app.draft] == [forms.COMPLETE.with_value("trials", "9")]
        await shows(pilot, "3 configurations")
        await pilot.press("r")
        await shows(pilot, "3 search")
        assert app.draft is None
        await until(pilot, lambda: app.latest.is_read)
        await pilot.press("q")

    driving.drive(app, (140, 40), body)
    assert app.return_value == 0


class _SlowToEnd(ScriptedChildren):
    """A plan that takes a while to end when nobody wants it any more, as a real one does."""

    async def ask(self, words, **options):  # type: ignore[no-untyped-def]
        try:
            return await super().ask(words, **options)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
            self.given_up.append("after all")
            raise


def test_a_start_is_told_of_until_its_run_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    used = _SlowToEnd(answers={"look": forms.LOOKED, "plan": PLAN}, waits={"plan", "tune"})
    forms.use(monkeypatch, used)

    async def body(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: used.num_asked("plan") == 1)
        await pilot.press("r")
        assert "autotune tune: starts the run" in text(pilot.app), "from the first moment"
        await until(pilot, lambda: used.given_up == ["plan", "after all"])
        await pilot.pause(0.1)
        assert "autotune tune: starts the run" in text(pilot.app)
        assert "not asked for yet" not in text(pilot.app)
        assert used.num_asked("tune") == 1
        # Nothing is asked beside it.
        await pilot.press("c")
        await shows(pilot, "The run is being started.")
        assert used.num_asked("look") == 1

    driving.drive(forms.app_of(forms.COMPLETE), (80, 24), body)


def test_a_start_is_given_up_only_after_a_question_and_that_is_told(
    scripted: ScriptedChildren,
) -> None:
    scripted.waits = {"tune"}
    app = forms.app_of(forms.COMPLETE)

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "3 configurations")
        await pilot.press("r")
        await until(pilot, lambda: scripted.num_asked("tune") == 1)
        await pilot.press("ctrl+c")
        await shows(pilot, "A run is being started. Leave all the same?")
        await pilot.press("b")
        assert scripted.given_up == []
        await pilot.press("ctrl+c", "ctrl+c")

    driving.drive(app, (80, 24), body)
    assert app.return_value == 130
    assert app.draft == forms.COMPLETE
    told, command = of_draft(app.draft, run_root=Path(DEFAULT_ROOT), is_starting=app.is_starting)
    assert told.startswith("The start was given up; `autotune runs` tells whether the run goes on")
    assert command.startswith("  autotune tui --model minilm")
    elsewhere = app.draft.with_value("run_dir", "kept runs")
    told, _ = of_draft(elsewhere, run_root=Path(DEFAULT_ROOT), is_starting=True)
    assert "`autotune runs --run-dir 'kept runs'`" in told


def test_a_run_that_is_there_answers_whether_to_leave_its_start(
    scripted: ScriptedChildren, tmp_path: Path
) -> None:
    run = stories.make(tmp_path, "finished")
    ready = asyncio.Event()

    async def ask(self: ScriptedChildren, words: list[str], **options: object) -> object:
        if words[0] == "tune":
            await ready.wait()
        return await whole(self, words, **options)  # type: ignore[arg-type]

    whole = ScriptedChildren.ask
    scripted.answers["tune"] = {"path": str(run.path)}
    app = forms.app_of(forms.COMPLETE)

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "3 configurations")
        scripted.ask = ask.__get__(scripted)  # type: ignore[method-assign]
        await pilot.press("r", "ctrl+c")
        await shows(pilot, "Leave all the same?")
        ready.set()
        await shows(pilot, "3 search")
        assert "Leave all the same?" not in text(pilot.app)
        assert (app.draft, app.is_starting) == (None, False)

    driving.drive(app, (140, 40), body)


def test_what_has_just_failed_is_not_offered_again(scripted: ScriptedChildren) -> None:
    taken = {
        "cause": "There is a run 'one' already.",
        "remedy": "Go on with it by --resume, replace it by --fresh, or choose another --name.",
    }
    other = {
        "cause": "The run 'one' was started with another --trials.",
        "remedy": "Resume it (`autotune tune --resume`), or replace it by --fresh.",
    }
    last = {"cause": "The disk is full.", "remedy": None}

    def tune(words: list[str]) -> Document:
        if "--fresh" in words:
            return {"error": last}  # type: ignore[dict-item]
        return {"error": other if "--resume" in words else taken}  # type: ignore[dict-item]

    scripted.answers["tune"] = tune

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "3 configurations")
        await pilot.press("r")
        await shows(pilot, "There is a run 'one' already.")
        await shows(pilot, "g  Go on with that run")
        await pilot.press("g")
        await shows(pilot, "another --trials")
        await shows(pilot, "f  Start over")
        assert "g  Go on" not in text(pilot.app)
        await pilot.press("f")
        await shows(pilot, "✗ not started: The disk is full.")
        assert "--resume" not in scripted.asked[-1]
        assert scripted.asked[-1].count("--fresh") == 1

    driving.drive(forms.app_of(forms.COMPLETE), (100, 40), body)
