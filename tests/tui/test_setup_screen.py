"""Screen 1: a form filled in by keys, what children tell of it, and how it is shown."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Input

from tests.testing import runs
from tests.testing.shared import data_file
from tests.tui import driving, forms, goldens
from tests.tui.driving import shows, text, until
from tests.tui.scripted import ScriptedChildren
from tests.tui.setup.test_checks import PLAN
from tui import children
from tui.setup.form import Inherited, JobForm
from tui.widgets.form_field import FormField


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedChildren:
    """Children that answer at once, in an empty directory."""
    return forms.scripted(monkeypatch, tmp_path)


def _field(pilot: Pilot[int], name: str) -> FormField:
    return forms.screen_of(pilot).query_one(f"#field-{name}", FormField)


def test_pictures_of_a_form(scripted: ScriptedChildren) -> None:
    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "fit")
        goldens.hold_against("setup-80x24", text(pilot.app))
        await pilot.resize_terminal(140, 40)
        await pilot.pause()
        goldens.hold_against("setup-140x40", text(pilot.app))

    driving.drive(forms.app_of(forms.COMPLETE), (80, 24), body)


def test_a_form_is_filled_in_by_keys_on_real_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look is a real child; the plan is a script, since it loads torch."""
    shutil.copy(data_file("reviews-train.csv"), tmp_path / "reviews-train.csv")
    model = tmp_path / "minilm"
    model.mkdir()
    config = {"architectures": ["BertModel"]}
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)

    class Children(ScriptedChildren):
        async def ask(self, words, **options):  # type: ignore[no-untyped-def]
            if options.get("module") == "autotune.cli.look":
                return await children.Children.ask(self, words, **options)
            return await super().ask(words, **options)

    used = Children(answers={"plan": PLAN})
    forms.use(monkeypatch, used)

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "· model        not named yet")
        await pilot.press("enter")
        await forms.type_in(pilot, "mini")
        await until(pilot, lambda: _suggestion(pilot) == "minilm")
        await pilot.press("right", "down", "ctrl+o")
        # The list has the directory, the one above, the model's and the file.
        await shows(pilot, "reviews-train.csv")
        await forms.type_in(pilot, "rev")
        await pilot.press("enter")
        await shows(pilot, "What the model should learn is not clear")
        assert "✗ What the model should learn" in text(pilot.app), "at the field as well"
        await shows(pilot, "columns text, label")
        assert used.num_asked("plan") == 0, "it would fail as well"
        field = pilot.app.screen.query_one("#field-task", FormField)
        field.take_focus()
        await pilot.press("enter")
        await shows(pilot, "auto, by the job")
        await forms.type_in(pilot, "sequence")
        await pilot.press("enter")
        await until(pilot, lambda: field.value != "")
        assert field.value == "sequence-classification"
        await shows(pilot, "label (found)")
        assert "What the model should learn" not in text(pilot.app)
        await shows(pilot, "3 configurations to choose from")
        pilot.app.screen.query_one("#field-label-column", FormField).take_focus()
        await pilot.press("t")
        await until(pilot, lambda: _suggestion(pilot) == "text")
        await pilot.press("ctrl+o")
        await shows(pilot, "type to narrow down")
        await forms.type_in(pilot, "lab")
        await pilot.press("enter", "escape")
        command = (
            "autotune tune --task sequence-classification --model minilm "
            "--dataset reviews-train.csv --label-column label"
        )
        await until(pilot, lambda: command in " ".join(text(pilot.app).split()))
        await until(pilot, lambda: used.asked[-1] == ["plan", *command.split()[2:], "--json"])

    driving.drive(forms.app_of(), (100, 30), body)


def _suggestion(pilot: Pilot[int]) -> str:
    focused = pilot.app.focused
    return focused._suggestion if isinstance(focused, Input) else ""


def test_what_holds_by_a_file_is_shown_and_not_repeated(scripted: ScriptedChildren) -> None:
    form = JobForm(
        values={"model": "m"}, inherited={"dataset": Inherited("d.csv", "autotune.toml")}
    )

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "d.csv (autotune.toml)")
        await shows(pilot, "3 configurations")
        assert scripted.asked[-1] == ["plan", "--model", "m", "--json"]

    driving.drive(forms.app_of(form), (80, 24), body)


def test_earlier_runs_are_opened_and_the_command_is_copied(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("o")
        await shows(pilot, "There is no run in autotune-runs yet.")
        events = [*runs.searching("early"), *runs.ending("early", tmp_path / "out")]
        for number, name in enumerate(("early", "late")):
            run = runs.write_run(tmp_path / "autotune-runs", name, events)
            os.utime(run.request, (number, number))
        await pilot.press("o")
        await shows(pilot, "Runs in autotune-runs, newest first")
        assert text(pilot.app).index("late") < text(pilot.app).index("early")
        await forms.type_in(pilot, "early")
        await pilot.press("enter")
        await shows(pilot, "3 search  early")
        await pilot.press("1", "y")
        assert pilot.app.clipboard.startswith("autotune tune --demo")

    driving.drive(forms.app_of(), (80, 24), body)


def test_the_picker_goes_up_and_completes(tmp_path: Path, scripted: ScriptedChildren) -> None:
    for name in ("a/minilm", "b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "minilm" / "config.json").write_text("{}")

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("ctrl+o")
        await shows(pilot, "../  the directory above")
        await pilot.press("tab")
        await shows(pilot, "minilm/")
        await pilot.press("up", "enter")
        await shows(pilot, "b/")
        await forms.type_in(pilot, "a")
        await pilot.press("enter")
        await shows(pilot, "minilm/")
        await pilot.press("enter")
        await until(pilot, lambda: _field(pilot, "model").value != "")
        assert _field(pilot, "model").value == "a/minilm"
        await pilot.press("ctrl+o", "escape")
        assert _field(pilot, "model").value == "a/minilm"

    driving.drive(forms.app_of(), (80, 24), body)


def test_a_path_that_is_half_typed_ends_nothing(scripted: ScriptedChildren) -> None:
    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("enter", "tilde", *"nobody")
        await pilot.pause(0.2)
        await pilot.press("ctrl+o")
        await shows(pilot, "../  the directory above")
        await pilot.press("escape")
        assert _field(pilot, "model").value == "~nobody"

    driving.drive(forms.app_of(), (80, 24), body)


def test_columns_of_the_same_name_are_one_entry(scripted: ScriptedChildren) -> None:
    scripted.answers["look"] = {**forms.LOOKED, "columns": ["text", "label", "text"]}

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "label (found)")
        pilot.app.screen.query_one("#field-label-column", FormField).take_focus()
        await pilot.press("ctrl+o")
        await shows(pilot, "type to narrow down")
        await pilot.press("down", "enter")
        await until(
            pilot,
            lambda: _field(pilot, "label-column").value == "label",
        )

    driving.drive(forms.app_of(forms.COMPLETE), (100, 30), body)


def test_the_footer_names_no_key_that_does_nothing(scripted: ScriptedChildren) -> None:
    async def body(pilot: Pilot[int]) -> None:
        assert " c Check " not in driving.rows(pilot.app)[-1], "nothing is filled in"
        await pilot.press("c")
        await shows(pilot, "There is nothing to check yet")
        await pilot.press("d")
        await until(pilot, lambda: " c Check " in driving.rows(pilot.app)[-1])
        assert " ^o Browse " in driving.rows(pilot.app)[-1]
        pilot.app.screen.query_one("#field-trials", FormField).take_focus()
        await until(pilot, lambda: "^o Browse" not in driving.rows(pilot.app)[-1])

    driving.drive(forms.app_of(), (100, 24), body)


def test_a_pasted_text_is_one_line_that_could_be_typed(scripted: ScriptedChildren) -> None:
    async def body(pilot: Pilot[int]) -> None:
        field = pilot.app.screen.query_one("#field-model", FormField)
        field.take_focus()
        await pilot.press(*"m/")
        field.control.post_message(Paste("\n  mini lm\x1b[0m\t \nsecond\n"))
        await until(pilot, lambda: field.value == "m/mini lm[0m")
        field.control.post_message(Paste("\n"))
        await pilot.press("x")
        await until(pilot, lambda: field.value == "m/mini lm[0mx")

    driving.drive(forms.app_of(), (80, 24), body)


def test_the_command_is_shown_whole_or_ends_in_an_ellipsis(scripted: ScriptedChildren) -> None:
    long = "/".join(["a-long-name-of-a-directory"] * 8)
    values = {**forms.COMPLETE.values, "model": long, "budget": "20m", "trials": "12"}
    app = forms.app_of(JobForm(values=values))
    command = JobForm(values=values).command()

    def shown() -> str:
        found = driving.rows(app)
        at = next(n for n, row in enumerate(found) if row.startswith(" ─ command "))
        return "".join("".join(found[at + 1 : -1]).split())

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "fit")
        for size in ((80, 24), (100, 30), (140, 40)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: shown() == command.replace(" ", ""))
        await pilot.resize_terminal(60, 16)
        await until(pilot, lambda: shown().endswith("…"))
        assert command.replace(" ", "").startswith(shown()[:-1])
        assert len(shown()) > 40

    driving.drive(app, (80, 24), body)


@pytest.mark.parametrize("small", [(59, 24), (80, 15), (30, 8)])
def test_a_field_keeps_the_keyboard_through_a_window_that_is_too_small(
    scripted: ScriptedChildren, small: tuple[int, int]
) -> None:
    async def body(pilot: Pilot[int]) -> None:
        field = pilot.app.screen.query_one("#field-model", FormField)
        field.take_focus()
        await pilot.press("end", "a")
        await pilot.resize_terminal(*small)
        await shows(pilot, "needs 60x16")
        await pilot.resize_terminal(small[0] - 1, small[1] - 1)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: isinstance(pilot.app.focused, Input))
        await pilot.press("b")
        assert field.value == "minilmab"

    driving.drive(forms.app_of(forms.COMPLETE), (80, 24), body)
