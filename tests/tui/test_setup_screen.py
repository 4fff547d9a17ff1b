"""Screen 1: a form filled in by keys, what children tell of it, and the key that starts it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from pydantic import JsonValue
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Input

from autotune.events import Document
from autotune.run_directory import DEFAULT_ROOT, RunDirectory
from tests.testing import runs
from tests.testing.shared import data_file
from tests.tui import driving, goldens, machines, stories
from tests.tui.driving import shows, text, until
from tests.tui.scripted import ScriptedChildren
from tests.tui.setup.test_checks import PLAN
from tui import children
from tui.app import AutotuneApp
from tui.children import Children
from tui.last_words import of_draft
from tui.screens import setup as setup_screen
from tui.screens.setup import SetupScreen
from tui.setup import inquiry
from tui.setup.form import Inherited, JobForm
from tui.widgets.form_field import FormField

LOOKED: Document = {
    "columns": ["text", "label"],
    "architecture": "BertForSequenceClassification",
    "task": "sequence-classification",
    "chosen": {"text": "text", "label": "label"},
}
COMPLETE = JobForm(values={"model": "minilm", "dataset": "reviews.csv", "global_batch_size": "64"})


def _use(monkeypatch: pytest.MonkeyPatch, used: Children) -> None:
    monkeypatch.setattr(setup_screen, "Children", lambda: used)
    monkeypatch.setattr(inquiry, "LOOK_DELAY_S", 0.05)
    monkeypatch.setattr(inquiry, "PLAN_DELAY_S", 0.05)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedChildren:
    """Children that answer at once, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    plan: Document = {**PLAN, "machine": machines.document(machines.machine())}
    used = ScriptedChildren(answers={"look": LOOKED, "plan": plan})
    _use(monkeypatch, used)
    return used


def _app(form: JobForm | None = None, run: RunDirectory | None = None) -> AutotuneApp:
    return AutotuneApp(run, form=form, unix_time=driving.clock)


def _screen(pilot: Pilot[int]) -> SetupScreen:
    assert isinstance(pilot.app.screen, SetupScreen)
    return pilot.app.screen


async def _type(pilot: Pilot[int], words: str) -> None:
    names = {" ": "space", "/": "slash", ".": "full_stop", "-": "minus", "_": "underscore"}
    await pilot.press(*(names.get(one, one) for one in words))


def test_pictures_of_a_form(scripted: ScriptedChildren) -> None:
    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "fit")
        goldens.hold_against("setup-80x24", text(pilot.app))
        await pilot.resize_terminal(140, 40)
        await pilot.pause()
        goldens.hold_against("setup-140x40", text(pilot.app))

    driving.drive(_app(COMPLETE), (80, 24), body)


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
    _use(monkeypatch, used)

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "· model        not named yet")
        await pilot.press("enter")
        await _type(pilot, "mini")
        await until(pilot, lambda: _suggestion(pilot) == "minilm")
        await pilot.press("right", "down", "ctrl+o")
        # The list has the directory, the one above, the model's and the file.
        await shows(pilot, "reviews-train.csv")
        await _type(pilot, "rev")
        await pilot.press("enter")
        await shows(pilot, "What the model should learn is not clear")
        assert "✗ What the model should learn" in text(pilot.app), "at the field as well"
        await shows(pilot, "columns text, label")
        assert used.num_asked("plan") == 0, "it would fail as well"
        field = pilot.app.screen.query_one("#field-task", FormField)
        field.take_focus()
        await pilot.press("enter")
        await shows(pilot, "auto, by the job")
        await _type(pilot, "sequence")
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
        await _type(pilot, "lab")
        await pilot.press("enter", "escape")
        command = (
            "autotune tune --task sequence-classification --model minilm "
            "--dataset reviews-train.csv --label-column label"
        )
        await until(pilot, lambda: command in " ".join(text(pilot.app).split()))
        await until(pilot, lambda: used.asked[-1] == ["plan", *command.split()[2:], "--json"])

    driving.drive(_app(), (100, 30), body)


def _suggestion(pilot: Pilot[int]) -> str:
    focused = pilot.app.focused
    return focused._suggestion if isinstance(focused, Input) else ""


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

    driving.drive(_app(COMPLETE), (140, 40), body)


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

    driving.drive(_app(COMPLETE), (80, 24), body)


def test_all_wrong_fields_are_marked_at_once_each_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real child."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    _use(monkeypatch, Children())
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

    driving.drive(_app(JobForm(values=wrong)), (140, 60), body)


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

    driving.drive(_app(JobForm(values={"model": "m", "trials": "0"})), (100, 40), body)


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

    driving.drive(_app(), (80, 24), body)


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
    driving.drive(_app(JobForm(values={"more": more})), (140, 40), body)


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

    used = Children(answers={"look": LOOKED, "plan": PLAN})
    _use(monkeypatch, used)
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

    driving.drive(_app(form), (80, 24), body)
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

    driving.drive(_app(run=run), (140, 40), body)


def test_what_holds_by_a_file_is_shown_and_not_repeated(scripted: ScriptedChildren) -> None:
    form = JobForm(
        values={"model": "m"}, inherited={"dataset": Inherited("d.csv", "autotune.toml")}
    )

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "d.csv (autotune.toml)")
        await shows(pilot, "3 configurations")
        assert scripted.asked[-1] == ["plan", "--model", "m", "--json"]

    driving.drive(_app(form), (80, 24), body)


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
        await _type(pilot, "early")
        await pilot.press("enter")
        await shows(pilot, "3 search  early")
        await pilot.press("1", "y")
        assert pilot.app.clipboard.startswith("autotune tune --demo")

    driving.drive(_app(), (80, 24), body)


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
        await _type(pilot, "a")
        await pilot.press("enter")
        await shows(pilot, "minilm/")
        await pilot.press("enter")
        await until(pilot, lambda: _screen(pilot).query_one("#field-model", FormField).value != "")
        assert _screen(pilot).query_one("#field-model", FormField).value == "a/minilm"
        await pilot.press("ctrl+o", "escape")
        assert _screen(pilot).query_one("#field-model", FormField).value == "a/minilm"

    driving.drive(_app(), (80, 24), body)


def test_a_path_that_is_half_typed_ends_nothing(scripted: ScriptedChildren) -> None:
    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("enter", "tilde", *"nobody")
        await pilot.pause(0.2)
        await pilot.press("ctrl+o")
        await shows(pilot, "../  the directory above")
        await pilot.press("escape")
        assert _screen(pilot).query_one("#field-model", FormField).value == "~nobody"

    driving.drive(_app(), (80, 24), body)


def test_columns_of_the_same_name_are_one_entry(scripted: ScriptedChildren) -> None:
    scripted.answers["look"] = {**LOOKED, "columns": ["text", "label", "text"]}

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "label (found)")
        pilot.app.screen.query_one("#field-label-column", FormField).take_focus()
        await pilot.press("ctrl+o")
        await shows(pilot, "type to narrow down")
        await pilot.press("down", "enter")
        await until(
            pilot,
            lambda: _screen(pilot).query_one("#field-label-column", FormField).value == "label",
        )

    driving.drive(_app(COMPLETE), (100, 30), body)


def test_the_form_of_a_run_keeps_its_successor_beside_it(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    run = stories.make(tmp_path / "my runs", "finished")

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("1", "y")
        assert f"--run-dir '{run.path.parent}'" in pilot.app.clipboard

    driving.drive(_app(run=run), (80, 24), body)


def test_a_run_that_is_being_started_is_not_started_twice(scripted: ScriptedChildren) -> None:
    scripted.waits = {"tune"}

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "3 configurations")
        await pilot.press("r")
        await until(pilot, lambda: scripted.num_asked("tune") == 1)
        await pilot.press("r")
        await shows(pilot, "The run is being started.")
        assert (scripted.num_asked("tune"), scripted.given_up) == (1, [])

    driving.drive(_app(COMPLETE), (80, 24), body)


def test_a_conflict_and_a_wrong_column_are_marked_though_there_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real child."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    _use(monkeypatch, Children())
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

    driving.drive(_app(JobForm(values=values)), (80, 60), body)


def test_a_filled_form_is_left_only_after_a_question(scripted: ScriptedChildren) -> None:
    app = _app()

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        await _type(pilot, "minilm")
        await pilot.press("ctrl+c")
        await shows(pilot, "Leave the form that is filled in?")
        await pilot.press("escape")
        assert _screen(pilot).query_one("#field-model", FormField).value == "minilm"
        await pilot.press("escape", "2", "q")
        await shows(pilot, "Leave the form that is filled in?")
        await pilot.press("b", "1", "q", "l")

    driving.drive(app, (80, 24), body)
    assert app.return_value == 0
    assert app.draft == JobForm(values={"model": "minilm"})
    assert of_draft(app.draft, run_root=app.run_root)[-1] == "  autotune tui --model minilm"


def test_control_c_again_leaves_a_filled_form_at_once(scripted: ScriptedChildren) -> None:
    app = _app(COMPLETE)

    async def body(pilot: Pilot[int]) -> None:
        pilot.app.screen.query_one("#field-trials", FormField).take_focus()
        await pilot.press("9", "ctrl+o", "ctrl+c")
        await shows(pilot, "Leave the form that is filled in?")
        await pilot.press("ctrl+c")

    driving.drive(app, (60, 16), body)
    assert app.return_value == 130


@pytest.mark.parametrize("form", [None, COMPLETE])
def test_a_form_that_nobody_changed_is_left_at_once(
    scripted: ScriptedChildren, form: JobForm | None
) -> None:
    for key, code in (("q", 0), ("ctrl+c", 130)):
        app = _app(form)

        async def body(pilot: Pilot[int], key: str = key) -> None:
            pilot.app.screen.query_one("#field-trials", FormField).take_focus()
            await pilot.press("9", "backspace", "escape", key)

        driving.drive(app, (80, 24), body)
        assert (app.return_value, app.draft) == (code, None)


def test_what_was_started_is_no_draft_any_more(scripted: ScriptedChildren, tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    scripted.answers["tune"] = {"path": str(run.path)}
    app = _app(COMPLETE)

    async def body(pilot: Pilot[int]) -> None:
        pilot.app.screen.query_one("#field-trials", FormField).take_focus()
        await pilot.press("9", "escape")
        assert [app.draft] == [COMPLETE.with_value("trials", "9")]
        await shows(pilot, "3 configurations")
        await pilot.press("r")
        await shows(pilot, "3 search")
        assert app.draft is None
        await until(pilot, lambda: app.latest.is_read)
        await pilot.press("q")

    driving.drive(app, (140, 40), body)
    assert app.return_value == 0


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

    driving.drive(_app(), (100, 24), body)


def test_a_fault_of_a_field_on_the_right_is_shown_whole(scripted: ScriptedChildren) -> None:
    fault: Document = {
        "cause": "--processes must be at least 1, not -2.",
        "remedy": "Give a larger number.",
    }
    scripted.answers["look"] = {**LOOKED, "errors": [fault]}

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "✗ --processes must be at least 1, not -2. Give a larger number.")
        field = pilot.app.screen.query_one("#field-processes", FormField)
        left = pilot.app.screen.query_one("#field-memory-limit", FormField)
        assert (field.region.x, field.region.width) == (left.region.x, left.region.width)
        scripted.answers["look"] = LOOKED
        field.take_focus()
        await pilot.press("end", "backspace", "backspace", "2")
        await shows(pilot, "local SGD")
        await until(pilot, lambda: field.region.x > left.region.x)

    driving.drive(_app(COMPLETE.with_value("processes", "-2")), (100, 50), body)


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

    driving.drive(_app(), (80, 24), body)


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
        assert "--precision" not in _screen(pilot)._form.words()

    driving.drive(_app(JobForm(values={"precision": "fp8"})), (80, 24), body)


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
    used = _SlowToEnd(answers={"look": LOOKED, "plan": PLAN}, waits={"plan", "tune"})
    _use(monkeypatch, used)

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

    driving.drive(_app(COMPLETE), (80, 24), body)


def test_a_start_is_given_up_only_after_a_question_and_that_is_told(
    scripted: ScriptedChildren,
) -> None:
    scripted.waits = {"tune"}
    app = _app(COMPLETE)

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
    assert app.draft == COMPLETE
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
    app = _app(COMPLETE)

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

    driving.drive(_app(COMPLETE), (100, 40), body)


def test_the_command_is_shown_whole_or_ends_in_an_ellipsis(scripted: ScriptedChildren) -> None:
    long = "/".join(["a-long-name-of-a-directory"] * 8)
    values = {**COMPLETE.values, "model": long, "budget": "20m", "trials": "12"}
    app = _app(JobForm(values=values))
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

    driving.drive(_app(COMPLETE), (80, 24), body)


def test_the_title_of_the_checks_stays_while_they_scroll(scripted: ScriptedChildren) -> None:
    errors: list[JsonValue] = [
        {
            "cause": f"{flag} cannot be read, whatever is tried with it, here or anywhere else.",
            "remedy": "Change it.",
        }
        for flag in ("--model", "--dataset", "--trials", "--budget", "--processes", "--precision")
    ]
    scripted.answers["look"] = {"error": errors[0], "errors": errors}
    app = _app(COMPLETE)

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
