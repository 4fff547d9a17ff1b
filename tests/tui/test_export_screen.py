"""Screen 5: the answer, what may be had instead, files shown and written by a child."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from textual.pilot import Pilot

from autotune.events import Document, RunEnded
from autotune.run_directory import RunDirectory
from tests.tui import answers, driving, goldens, stories
from tests.tui.driving import shows, text, until
from tests.tui.scripted import ScriptedChildren
from tui import children, clipboard
from tui.answer import files
from tui.app import AutotuneApp
from tui.last_words import of_writing
from tui.screens import export as export_screen


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedChildren:
    """Children that answer at once, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    used = ScriptedChildren()
    monkeypatch.setattr(export_screen, "Children", lambda: used)
    return used


def _app(run: RunDirectory) -> AutotuneApp:
    return AutotuneApp(run, unix_time=driving.clock)


def _said(words: list[str]) -> Document:
    """What `autotune export --json` prints."""
    out = words[words.index("--out") + 1]
    for name, consumer in answers.CONSUMERS.items():
        path = Path(out) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}, {consumer}\n")
    return {
        "directory": os.path.abspath(out),
        "files": [
            {"name": name, "consumer": consumer, "verified_with": "one step", "sha256": "0"}
            for name, consumer in answers.CONSUMERS.items()
        ],
    }


def test_pictures_of_an_answer(tmp_path: Path, scripted: ScriptedChildren) -> None:
    run = answers.finished(tmp_path)
    for columns, rows in ((80, 24), (140, 40)):

        async def body(pilot: Pilot[int], size: str = f"{columns}x{rows}") -> None:
            await pilot.press("5")
            await shows(pilot, "6 files in out")
            await pilot.pause(0.2)
            goldens.hold_against(f"recommendation-{size}", text(pilot.app))

        driving.drive(_app(run), (columns, rows), body)


def test_a_picture_of_a_run_in_which_nothing_fits(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    run = stories.write(tmp_path, answers.infeasible())

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "no answer: nothing feasible")
        goldens.hold_against("nothing-fits-80x24", text(pilot.app))
        await pilot.press("w")
        await shows(pilot, "There is nothing to write")
        footer = driving.rows(pilot.app)[-1]
        assert all(key not in footer for key in ("t Take", "p Preview", "w Write", "Y Copy file"))
        assert "y Copy command" in footer
        assert scripted.asked == []

    driving.drive(_app(run), (80, 24), body)


def test_files_are_looked_into_before_anything_is_written(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    run = answers.finished(tmp_path)

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "6 files in out")
        await pilot.press("end", "p")
        await shows(pilot, "preview  trainer.py")
        assert 'print("train")' in text(pilot.app)
        assert "changes to what you have" not in text(pilot.app), "it stands in the place of that"
        await pilot.press("Y")
        assert pilot.app.clipboard == answers.SCRIPT
        await pilot.press("escape")
        await shows(pilot, "use 32×2 instead of 8×8")
        await pilot.resize_terminal(140, 40)
        await pilot.press("home")
        await shows(pilot, "preview  recommendation.json")
        assert "use 32×2 instead of 8×8" in text(pilot.app), "both beside one another"

    driving.drive(_app(run), (80, 24), body)


def test_an_alternative_is_taken_and_written_by_the_child(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    scripted.answers = {"export": _said}
    run = answers.finished(tmp_path)

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "t Take other")
        await pilot.press("t")
        await shows(pilot, "taking least memory: 16×4")
        assert "files to write" in text(pilot.app)
        assert "8 → 16" in text(pilot.app)
        await pilot.press("y")
        assert pilot.app.clipboard == (
            f"autotune export {run.path} --out {run.out} --alternative least-memory"
        )
        await pilot.press("w")
        await shows(pilot, "Write the files of least memory, 16×4, to")
        assert "out-least-memory" in text(pilot.app), "the answer's own files stay"
        await pilot.press("ctrl+u", *"mine", "enter")
        await shows(pilot, "✓ 6 files written to")
        assert scripted.asked == [
            ["export", str(run.path), "--out", "mine", "--alternative", "least-memory", "--json"]
        ]
        await shows(pilot, "read by HfArgumentParser")
        await pilot.press("t", "t")
        await shows(pilot, "use 32×2 instead of 8×8")
        assert "6 files in out" in text(pilot.app)

    driving.drive(_app(run), (100, 40), body)


def test_an_answer_without_alternatives_says_so(tmp_path: Path, scripted: ScriptedChildren) -> None:
    document = answers.document()
    document["recommendation"]["alternatives"] = []  # type: ignore[index,call-overload]
    run = answers.finished(tmp_path, document)

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "use 32×2 instead of 8×8")
        footer = driving.rows(pilot.app)[-1]
        assert "t Take other" not in footer
        assert "w Write" in footer
        await pilot.press("t")
        await shows(pilot, "There is no alternative")
        assert "use 32×2 instead of 8×8" in text(pilot.app)

    driving.drive(_app(run), (100, 40), body)


def test_a_damaged_journal_is_told_above_the_answer(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    run = answers.finished(tmp_path)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(b"".join([*lines[:5], b"{ broken\n", *lines[6:]]))

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "finished, journal damaged")
        await shows(pilot, " now   Line 6 of")
        await pilot.press("5")
        await shows(pilot, "use 32×2 instead of 8×8")
        assert "Line 6 of" in text(pilot.app)

    driving.drive(_app(run), (140, 40), body)


def test_nothing_is_overwritten_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is that of the real child; only what it would write is a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    class Children(ScriptedChildren):
        async def ask(self, words, **options):  # type: ignore[no-untyped-def]
            if "--force" in words:
                return await super().ask(words, **options)
            return await children.Children.ask(self, words, **options)

    used = Children(answers={"export": _said})
    monkeypatch.setattr(export_screen, "Children", lambda: used)
    run = answers.finished(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "trainer.py").write_text("mine")

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "use 32×2")
        await pilot.press("w")
        await shows(pilot, "a directory" if "a directory" in text(pilot.app) else "to")
        await pilot.press("ctrl+u", *"taken", "enter")
        await shows(pilot, "Replace them (--force)")
        assert "holds files that autotune did not write: trainer.py" in " ".join(
            text(pilot.app).split()
        ).replace(" │ │ ", " ")
        await pilot.press("escape")
        await shows(pilot, "✗ The output directory taken holds files")
        assert (tmp_path / "taken" / "trainer.py").read_text() == "mine"
        await pilot.press("w")
        await pilot.press("ctrl+u", *"taken", "enter")
        await shows(pilot, "Replace them (--force)")
        await pilot.press("r")
        await until(pilot, lambda: used.num_asked("export") == 1)
        assert used.asked[0][-2:] == ["--force", "--json"]
        await shows(pilot, "✓ 6 files written to")

    driving.drive(_app(run), (100, 30), body)


def test_an_answer_that_comes_while_somebody_looks_is_shown(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    run = stories.make(tmp_path, "running")

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "no answer yet: what is missing")
        stories.append(run, stories.finishing(tmp_path), first_seq=stories.num_events("running"))
        await shows(pilot, "use 16×4 instead of 8×8")

    driving.drive(_app(run), (80, 24), body)


def test_a_damaged_answer_says_so(tmp_path: Path, scripted: ScriptedChildren) -> None:
    document = answers.document()
    document["recommendation"] = {"configuration": {}}
    run = answers.finished(tmp_path, document)

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "✗ The recommendation cannot be read")

    driving.drive(_app(run), (80, 24), body)


def test_a_stopped_run_tells_how_far_it_came(tmp_path: Path, scripted: ScriptedChildren) -> None:
    ended = RunEnded(reason="stopped", exit_code=130, cause="Stopped by SIGINT.")
    run = stories.write(tmp_path, [*stories.searching(), ended])

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "no answer: stopped")
        shown = text(pilot.app)
        assert "✗ Stopped by SIGINT." in shown
        command = f"autotune tune --resume --name {run.name} --run-dir {tmp_path}"
        await pilot.press("y")
        assert pilot.app.clipboard == command
        await pilot.press("t")
        await shows(pilot, "The run has no answer yet.")
        scripted.answers["tune"] = {"error": {"cause": "The disk is full.", "remedy": "Clear it."}}
        await pilot.press("g")
        await shows(pilot, "✗ The disk is full. Clear it.")
        words = ["tune", "--resume", "--name", run.name, "--run-dir", str(tmp_path), "--detach"]
        assert scripted.asked == [[*words, "--json"]]
        scripted.answers["tune"] = {"run": run.name}
        await pilot.press("g")
        await until(pilot, lambda: scripted.num_asked("tune") == 2)
        await until(pilot, lambda: "The disk is full" not in text(pilot.app))

    driving.drive(_app(run), (100, 40), body)


def test_files_of_one_run_are_never_shown_as_those_of_another(
    tmp_path: Path, scripted: ScriptedChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    one, other = answers.finished(tmp_path), answers.finished(tmp_path / "other")
    app = _app(one)

    def answer(words: list[str]) -> Document:
        # Somebody opens another run while the files are being written.
        app.attach(other)
        return _said(words)

    scripted.answers = {"export": answer}

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "6 files in out")
        await pilot.press("w")
        await shows(pilot, "Write the files of the answer")
        await pilot.press("ctrl+u", *"mine", "enter")
        await shows(pilot, "6 files written to")
        await until(pilot, lambda: app.latest.is_read)
        await shows(pilot, "6 files in out")
        assert "6 files in mine" not in text(pilot.app)

    driving.drive(app, (100, 40), body)


def test_a_whole_file_is_copied_however_long_it_is(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    run = answers.finished(tmp_path)
    long = "x" * (files.MAX_PREVIEW_BYTES + 5)
    (tmp_path / "out" / "recommendation.json").write_text(long)

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await shows(pilot, "6 files in out")
        await pilot.press("Y")
        assert clipboard.last_copy(run).read_text() == f"{long}\n"
        (tmp_path / "out" / "recommendation.json").unlink()
        await pilot.press("Y")
        await shows(pilot, "cannot be read: No such file")
        assert clipboard.last_copy(run).read_text() == f"{long}\n"

    driving.drive(_app(run), (100, 40), body)


async def _leave_while_writing(pilot: Pilot[int]) -> None:
    await pilot.press("5")
    await shows(pilot, "6 files in out")
    await pilot.press("w")
    await shows(pilot, "Write the files of the answer")
    await pilot.press("ctrl+u", *"mine", "enter")
    await shows(pilot, "autotune export: writes the files")
    await pilot.press("q")


def test_files_that_are_being_written_are_given_up_only_after_a_question(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    scripted.waits = {"export"}
    app = _app(answers.finished(tmp_path))

    async def body(pilot: Pilot[int]) -> None:
        await _leave_while_writing(pilot)
        await shows(pilot, "Files are being written. Leave all the same?")
        await pilot.press("b")
        assert scripted.given_up == []
        await pilot.press("ctrl+c")
        await shows(pilot, "Leave all the same?")
        await pilot.press("ctrl+c")

    driving.drive(app, (80, 24), body)
    assert scripted.given_up == ["export"]
    assert app.writing is not None
    told, command = of_writing(app.writing)
    assert told == f"The files for {tmp_path / 'mine'} were not written. To write them:"
    assert command.startswith("  autotune export ")
    assert command.endswith(" --out mine")
    _said(["--out", str(tmp_path / "mine")])
    assert app.writing.place == Path("mine").absolute()
    assert of_writing(app.writing) == [f"The files are in {tmp_path / 'mine'} all the same."]


def test_files_that_are_there_answer_whether_to_leave(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    ready = asyncio.Event()

    async def ask(self: ScriptedChildren, words: list[str], **options: object) -> object:
        await ready.wait()
        return await whole(self, words, **options)  # type: ignore[arg-type]

    whole = ScriptedChildren.ask
    scripted.answers = {"export": _said}
    scripted.ask = ask.__get__(scripted)  # type: ignore[method-assign]
    app = _app(answers.finished(tmp_path))

    async def body(pilot: Pilot[int]) -> None:
        await _leave_while_writing(pilot)
        await shows(pilot, "Leave all the same?")
        ready.set()
        await shows(pilot, "6 files written to")
        assert "Leave all the same?" not in text(pilot.app)
        assert app.writing is None

    driving.drive(app, (80, 24), body)
