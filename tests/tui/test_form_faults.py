"""Whatever is wrong with a job is marked where it stands, as soon as a child tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import JsonValue
from textual.pilot import Pilot

from autotune.events import Document
from tests.testing.shared import data_file
from tests.tui import driving, forms
from tests.tui.driving import shows, text, until
from tests.tui.scripted import ScriptedChildren
from tests.tui.setup.test_checks import PLAN
from tui.children import Children
from tui.setup import inquiry
from tui.setup.form import JobForm
from tui.widgets.form_field import FormField


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedChildren:
    """Children that answer at once, in an empty directory."""
    return forms.scripted(monkeypatch, tmp_path)


def test_only_the_last_of_many_changes_is_asked_about(
    scripted: ScriptedChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.waits = {"plan"}

    async def body(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: scripted.num_asked("plan") == 1)
        await shows(pilot, "autotune plan: loads model and data")
        monkeypatch.setattr(inquiry, "LOOK_DELAY_S", 0.3)
        pilot.app.screen.query_one("#field-global-batch-size", FormField).take_focus()
        await pilot.press("end", "0", "0", "backspace")
        await until(pilot, lambda: scripted.given_up == ["plan"])
        scripted.waits = set()
        await until(pilot, lambda: scripted.num_asked("plan") == 2)
        assert scripted.asked[-1][-3:] == ["--global-batch-size", "640", "--json"]
        assert scripted.num_asked("look") == 2, "each letter did not ask by itself"
        await shows(pilot, "3 configurations")
        pilot.app.screen.query_one("#field-trials", FormField).take_focus()
        await pilot.press("9")
        await until(pilot, lambda: scripted.num_asked("look") == 3)
        await pilot.pause(0.3)
        assert scripted.num_asked("plan") == 2, "the budget changes no plan"
        assert "3 configurations" in text(pilot.app)
        await pilot.press("escape", "c")
        await until(pilot, lambda: scripted.num_asked("plan") == 3)

    driving.drive(forms.app_of(forms.COMPLETE), (140, 40), body)


def test_an_error_of_the_plan_stands_at_its_field_and_keeps_it_from_starting(
    scripted: ScriptedChildren,
) -> None:
    error = {
        "cause": "The global batch size 63 cannot be shared by 2 ranks.",
        "remedy": "Use --global-batch-size 64.",
    }
    scripted.answers["plan"] = {"error": error}  # type: ignore[dict-item]

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ The global batch size 63 cannot be shared")
        await pilot.press("r")
        await shows(pilot, "not started: something is wrong at global batch")
        field = pilot.app.screen.query_one("#field-global-batch-size", FormField)
        assert pilot.app.focused is field.control
        assert scripted.num_asked("tune") == 0
        scripted.answers["plan"] = PLAN
        await pilot.press("end", "backspace", "4")
        await shows(pilot, "3 configurations")
        assert "cannot be shared" not in text(pilot.app)

    driving.drive(forms.app_of(forms.COMPLETE), (80, 24), body)


def test_all_wrong_fields_are_marked_at_once_each_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real child."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    forms.use(monkeypatch, Children())
    wrong = {
        "model": "./nowhere",
        "dataset": "none.csv",
        "processes": "few",
        "memory_limit": "2G",
        "trials": "0",
    }
    reasons = {
        "model": "The model ./nowhere does not exist.",
        "dataset": "The dataset none.csv does not exist.",
        "processes": "--processes takes a whole number, not 'few'.",
        "memory_limit": "--memory-limit: '2G' has half a unit.",
        "trials": "--trials must be at least 1, not 0.",
    }

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ 5 ─")
        fields = {field.field.name: field for field in pilot.app.screen.query(FormField)}
        assert {name for name, field in fields.items() if field.has_class("-wrong")} == set(wrong)
        told = " ".join(text(pilot.app).split())
        for name, reason in reasons.items():
            # Once at the field, once among the checks.
            assert told.count(f"✗ {reason}") == 1, name
            assert told.count(reason.split("'")[0]) == 2, name
        assert "What the model should learn" not in told
        await pilot.press("r")
        await shows(pilot, "something is wrong at model, dataset, ")
        fields["trials"].take_focus()
        await pilot.press("end", "backspace", "9")
        await shows(pilot, "✗ 4 ─")
        assert not fields["trials"].has_class("-wrong")

    driving.drive(forms.app_of(JobForm(values=wrong)), (140, 60), body)


def test_what_is_filled_in_is_looked_at_before_all_of_it_is_there(
    scripted: ScriptedChildren,
) -> None:
    scripted.answers["look"] = {
        "errors": [
            {"cause": "There is no data to train on.", "remedy": "Name it with --dataset."},
            {"cause": "--trials must be at least 1, not 0.", "remedy": "Give a larger number."},
        ],
        "error": {"cause": "There is no data to train on.", "remedy": "Name it with --dataset."},
    }

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ --trials must be at least 1")
        fields = {field.field.name: field for field in pilot.app.screen.query(FormField)}
        assert fields["trials"].has_class("-wrong")
        assert not fields["dataset"].has_class("-wrong"), "nobody has reached it yet"
        assert "· dataset      not named yet" in text(pilot.app)
        await pilot.press("r")
        await shows(pilot, "something is wrong at dataset, trials")
        assert fields["dataset"].has_class("-wrong")
        assert scripted.num_asked("plan") == 0

    driving.drive(forms.app_of(JobForm(values={"model": "m", "trials": "0"})), (100, 40), body)


def test_a_field_that_is_missing_is_wrong_only_when_somebody_starts(
    scripted: ScriptedChildren,
) -> None:
    async def body(pilot: Pilot[int]) -> None:
        assert "✗ There is no model" not in text(pilot.app)
        await pilot.press("r")
        await shows(pilot, "✗ There is no model to train.")
        assert "✗ There is no data to train on." in text(pilot.app)
        await shows(pilot, "✓ 0 · ▲ 0 · ✗ 2")
        # The keyboard belongs to the first of them now.
        await shows(pilot, " typing · esc leaves the field  F1 Help  ^r Run  ^o Browse ")
        assert "d Demo" not in text(pilot.app)
        await pilot.press("escape")
        await shows(pilot, "d Demo")
        assert "typing" not in text(pilot.app)
        await pilot.press("d")
        await shows(pilot, "autotune tune --demo")
        await shows(pilot, "3 configurations")
        await pilot.press("d")
        await shows(pilot, "not named yet")

    driving.drive(forms.app_of(), (80, 24), body)


def test_what_belongs_to_no_field_is_named_as_well(scripted: ScriptedChildren) -> None:
    scripted.answers["look"] = {
        "errors": [
            {"cause": "There is no data to train on.", "remedy": "Name it with --dataset."},
            {"cause": "Nothing is at 'c.json'.", "remedy": "Give --model-config another path."},
            {"cause": "No words are split at 'w'.", "remedy": None},
            {"cause": "--split makes no sense.", "remedy": None},
        ],
    }

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ job")
        assert "✗ 3" in text(pilot.app)
        await pilot.press("r")
        await shows(pilot, "something is wrong at dataset, model, job")
        await shows(pilot, "✓ 0 · ▲ 0 · ✗ 4")
        assert "--split makes no sense" in text(pilot.app), "beside what is missing anyway"

    more = "--model-config c.json --tokenizer w"
    driving.drive(forms.app_of(JobForm(values={"more": more})), (140, 40), body)


def test_a_conflict_and_a_wrong_column_are_marked_though_there_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real child."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    forms.use(monkeypatch, Children())
    values = {
        "model": "./nowhere",
        "dataset": str(data_file("reviews-train.csv")),
        "text_column": "txt",
        "more": "--model-config c.json",
    }

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ 3 ─")
        fields = {field.field.name: field for field in pilot.app.screen.query(FormField)}
        wrong = {name for name, field in fields.items() if field.has_class("-wrong")}
        assert wrong == {"model", "text_column"}
        told = " ".join(text(pilot.app).split())
        conflict = "--model and --model-config exclude each other. Leave one of them out."
        assert told.count(f"✗ {conflict}") == 1, "at the field"
        assert told.count(conflict) == 2, "and among the checks"
        assert "✗ The dataset has no column 'txt'" in told
        await pilot.press("r")
        await shows(pilot, "something is wrong at model, text")
        assert pilot.app.focused is fields["model"].control

    driving.drive(forms.app_of(JobForm(values=values)), (80, 60), body)


def test_a_fault_of_a_field_on_the_right_is_shown_whole(scripted: ScriptedChildren) -> None:
    fault: Document = {
        "cause": "--processes must be at least 1, not -2.",
        "remedy": "Give a larger number.",
    }
    scripted.answers["look"] = {**forms.LOOKED, "errors": [fault]}

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ --processes must be at least 1, not -2. Give a larger number.")
        field = pilot.app.screen.query_one("#field-processes", FormField)
        left = pilot.app.screen.query_one("#field-memory-limit", FormField)
        assert (field.region.x, field.region.width) == (left.region.x, left.region.width)
        scripted.answers["look"] = forms.LOOKED
        field.take_focus()
        await pilot.press("end", "backspace", "backspace", "2")
        await shows(pilot, "local SGD")
        await until(pilot, lambda: field.region.x > left.region.x)

    driving.drive(forms.app_of(forms.COMPLETE.with_value("processes", "-2")), (100, 50), body)


def test_a_word_that_is_no_choice_is_shown_and_can_be_taken_out(scripted: ScriptedChildren) -> None:
    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "fp8")
        field = pilot.app.screen.query_one("#field-precision", FormField)
        assert field.value == "fp8"
        field.take_focus()
        await pilot.press("enter")
        await shows(pilot, "type to narrow down")
        await pilot.press("enter")
        await until(pilot, lambda: field.value == "")
        assert "--precision" not in forms.screen_of(pilot)._form.words()

    driving.drive(forms.app_of(JobForm(values={"precision": "fp8"})), (80, 24), body)


def test_the_title_of_the_checks_stays_while_they_scroll(scripted: ScriptedChildren) -> None:
    errors: list[JsonValue] = [
        {
            "cause": f"{flag} cannot be read, whatever is tried with it, here or anywhere else.",
            "remedy": "Change it.",
        }
        for flag in ("--model", "--dataset", "--trials", "--budget", "--processes", "--precision")
    ]
    scripted.answers["look"] = {"error": errors[0], "errors": errors}
    app = forms.app_of(forms.COMPLETE)

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ 6 ─")
        before = driving.rows(app)
        (title,) = [n for n, row in enumerate(before) if row.startswith(" ─ checks ")]
        await pilot.press("pagedown")
        await until(pilot, lambda: driving.rows(app)[title + 1] != before[title + 1])
        assert driving.rows(app)[title] == before[title]
        await pilot.press("pagedown", "pagedown")
        rows = driving.rows(app)
        command = next(n for n, row in enumerate(rows) if row.startswith(" ─ command "))
        last = " ".join(" ".join(rows[command - 2 : command]).split())
        assert "precision" in last, "the last one is reached, and whole"
        assert "Change it." in last
        await pilot.press(*["pageup"] * 4)
        assert driving.rows(app)[title : title + 3] == before[title : title + 3]

    driving.drive(app, (80, 24), body)
