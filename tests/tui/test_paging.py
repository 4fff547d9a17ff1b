"""PgDn and PgUp scroll every screen that is longer than its window, whatever has the keyboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from tests.tui import answers, driving, machines, stories
from tests.tui.driving import Driver, shows, text, until
from tests.tui.scripted import ScriptedChildren
from tui.app import AutotuneApp
from tui.screens import export as export_screen
from tui.screens import setup as setup_screen
from tui.setup.form import JobForm


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (setup_screen, export_screen):
        monkeypatch.setattr(module, "Children", lambda: ScriptedChildren(waits={"look"}))


async def assert_pages(pilot: Driver, key: str, holder: str) -> None:
    await pilot.press(key)
    await pilot.pause()
    place = pilot.app.screen.query_one(holder)
    assert place.max_scroll_y > 0, f"{holder} is not long enough for this test"
    before = text(pilot.app)
    await pilot.press("pagedown")
    await until(pilot, lambda: place.scroll_offset.y > 0)
    assert text(pilot.app) != before
    await pilot.press("pageup")
    await until(pilot, lambda: place.scroll_offset.y == 0)


def test_every_screen_scrolls_by_pages(tmp_path: Path) -> None:
    app = AutotuneApp(answers.finished(tmp_path), unix_time=driving.clock)

    async def body(pilot: Driver) -> None:
        for key, holder in (("4", "#text"), ("5", "#answer")):
            await assert_pages(pilot, key, holder)
        assert pilot.app.focused is not None
        assert pilot.app.focused.id == "files", "the list keeps the keyboard"

    driving.drive(app, (80, 24), body)


def test_readings_scroll_by_pages(tmp_path: Path) -> None:
    machine = machines.machine(num_ranks=4, from_store=True)
    run = stories.write(tmp_path, machines.on(machine, stories.searching()))

    async def body(pilot: Driver) -> None:
        await assert_pages(pilot, "2", "#probes")
        await assert_pages(pilot, "1", "#form")

    driving.drive(AutotuneApp(run, unix_time=driving.clock), (60, 16), body)


def test_the_form_scrolls_while_a_field_has_the_keyboard() -> None:
    app = AutotuneApp(None, unix_time=driving.clock, form=JobForm(values={"model": "m"}))

    async def body(pilot: Driver) -> None:
        await pilot.press("enter")
        assert isinstance(pilot.app.focused, Input)
        place = pilot.app.screen.query_one("#form")
        await pilot.press("pagedown")
        await until(pilot, lambda: place.scroll_offset.y > 0)

    driving.drive(app, (60, 16), body)


def test_a_preview_in_the_place_of_the_answer_is_what_scrolls(tmp_path: Path) -> None:
    run = answers.finished(tmp_path)
    out = tmp_path / "out"
    (out / "recommendation.json").write_text("\n".join(f"line {n}" for n in range(99)))

    async def body(pilot: Driver) -> None:
        await pilot.press("5", "p")
        await shows(pilot, "line 1")
        await pilot.press("pagedown")
        place = pilot.app.screen.query_one("#preview")
        await until(pilot, lambda: place.scroll_offset.y > 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        driving.drive(AutotuneApp(run, unix_time=driving.clock), (80, 24), body)


def test_boxes_name_their_keys(tmp_path: Path) -> None:
    run = answers.finished(tmp_path)

    async def body(pilot: Driver) -> None:
        await pilot.press("5", "w")
        await shows(pilot, "enter writes them there · esc writes nothing")
        await pilot.press("escape", "3", "Y")
        await shows(pilot, "a letter or enter answers · esc goes back")
        await pilot.press("escape", "question_mark")
        await shows(pilot, "esc closes, PgDn shows more")

    driving.drive(AutotuneApp(run, unix_time=driving.clock), (80, 24), body)
