"""Every screen in every form and size: nothing is clipped, and what matters is in sight."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.widget import Widget

from autotune.run_directory import RunDirectory
from tests.tui import driving, stories
from tests.tui.driving import SIZES, Driver, Size
from tui import bindings, screens
from tui.app import AutotuneApp
from tui.ascii import to_ascii
from tui.keys.key import ScreenName
from tui.run_now import Form
from tui.themes import LOOKS, Look
from tui.widgets.headline import Headline
from tui.widgets.key_bar import KeyBar
from tui.widgets.one_line import OneLine
from tui.widgets.trial_table import TrialTable

GOLDENS = Path(__file__).parent / "goldens"
UPDATE = "UPDATE_GOLDENS"
"""A variable that makes the goldens anew instead of comparing with them."""
GOLDEN_SIZES: tuple[Size, ...] = ((80, 24), (140, 40))
MINE: tuple[ScreenName, ...] = ("search", "trial")
TOO_SMALL: tuple[Size, ...] = ((59, 24), (80, 15), (30, 8))

GLANCES: dict[ScreenName, tuple[str, str]] = {
    "probes": (" Test processor", " memory limit 4.00 GiB"),
    "trial": (" #9 ▸ running", " 16×4"),
    "export": (" no answer yet", " best  #2"),
}
"""What a card says of a screen whose first rows are not best and now."""

STATE_WORDS = {
    "empty": "not started",
    "running": "searching",
    "failed": "the engine is gone",
    "finished": "finished",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are named as a user names them, and the goldens hold no path of a machine."""
    monkeypatch.chdir(tmp_path)
    return Path("autotune-runs")


async def go_to(pilot: Driver, app: AutotuneApp, name: ScreenName) -> None:
    app.action_go(name)
    await driving.until(pilot, lambda: app.front is not None and name == app.front.NAME)
    await pilot.pause()


async def resize(pilot: Driver, size: Size) -> None:
    await pilot.resize_terminal(*size)


def shown(app: AutotuneApp) -> list[Widget]:
    """Widgets that have a place on the screen."""
    return [
        widget
        for widget in app.screen.walk_children(Widget)
        if widget.display
        and all(node.display for node in widget.ancestors if isinstance(node, Widget))
    ]


def assert_whole(app: AutotuneApp, name: ScreenName, form: Form, size: Size) -> None:
    """Nothing is cut without an ellipsis or leaves the window; head and keys are there."""
    where = f"{name}, {form}, {size}\n" + driving.text(app)
    columns, num_rows = size
    rows = driving.rows(app)
    assert len(rows) == num_rows, where
    assert all(cell_len(row) <= columns for row in rows), where
    title = bindings.SCREEN_TITLES[name]
    assert title.split(" #")[0] in rows[0], where
    assert STATE_WORDS[form] in rows[0], where
    assert rows[-1].strip().startswith("? Help"), where
    assert rows[-1].rstrip().endswith("^p Palette"), where
    for widget in shown(app):
        region = widget.region
        inside = region.right <= columns and region.bottom <= num_rows
        # What may be cut off must be reached by scrolling.
        is_scrolled = any(
            (node.allow_vertical_scroll or node.allow_horizontal_scroll)
            for node in widget.ancestors
            if isinstance(node, Widget) and node is not app.screen
        )
        assert inside or is_scrolled, f"{widget} {region} {where}"
        if isinstance(widget, OneLine) and widget.size.width and not is_scrolled:
            row = rows[region.y]
            fits = cell_len(widget.said.rstrip()) <= widget.content_size.width
            assert fits or "…" in row, f"{widget} {where}"
            assert region.height == 1, f"{widget} {where}"
    for table in app.screen.query(TrialTable):
        if table.display and table.rows.size.width:
            assert table.rows.virtual_size.width <= table.rows.size.width, where
            assert table.rows.size.height >= 1, where


@pytest.mark.parametrize("form", stories.FORMS)
def test_every_screen_in_every_size(here: Path, form: Form) -> None:
    app = AutotuneApp(stories.make(here, form), unix_time=driving.clock)

    async def body(pilot: Driver) -> None:
        for name in screens.PLACES:
            await go_to(pilot, app, name)
            for size in SIZES:
                await resize(pilot, size)
                assert_whole(app, name, form, size)
                if name in MINE:
                    best, now = driving.rows(app)[1:3]
                    assert best.startswith(" best  "), name
                    assert now.startswith(" now   "), name

    driving.drive(app, SIZES[0], body)


def test_a_window_that_is_too_small_has_one_card(here: Path) -> None:
    app = AutotuneApp(stories.make(here, "running"), unix_time=driving.clock)

    async def body(pilot: Driver) -> None:
        for name in screens.PLACES:
            await go_to(pilot, app, name)
            for size in TOO_SMALL:
                await resize(pilot, size)
                rows = driving.rows(app)
                assert "▸ searching" in rows[1], (name, size)
                first, second = GLANCES.get(name, (" best  #2", " now   #9"))
                assert rows[2].startswith(first), (name, size)
                assert rows[3].startswith(second), (name, size)
                assert any("needs 60x16" in row for row in rows), (name, size)
                assert all(cell_len(row) <= size[0] for row in rows)
        await resize(pilot, (80, 24))
        assert app.screen.query_one(KeyBar).display

    driving.drive(app, TOO_SMALL[0], body)


def test_the_first_row_is_chosen_at_once_even_while_the_screen_rests(here: Path) -> None:
    speed = stories.progress(stage="speed", step=1)
    run = stories.write(
        here, [*stories.searching(), *stories.running_trial()], latest=speed, alive=True
    )
    app = AutotuneApp(run, unix_time=driving.clock)

    async def body(pilot: Driver) -> None:
        assert "the screen rests" in driving.text(app)
        await driving.until(pilot, lambda: app.chosen_trial is not None)
        assert "No trial is chosen" not in driving.text(app)
        assert f"#{app.chosen_trial} " in "\n".join(row[80:] for row in driving.rows(app)), (
            "the trial beside the table"
        )

    driving.drive(app, (144, 34), body)


def compare(name: str, text: str) -> None:
    """Compares with a golden, or makes it anew."""
    path = GOLDENS / f"{name}.txt"
    if os.environ.get(UPDATE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8"), f"{name}: {UPDATE}=1 takes this over"


@pytest.mark.parametrize("form", stories.FORMS)
def test_goldens(here: Path, form: Form) -> None:
    app = AutotuneApp(stories.make(here, form), unix_time=driving.clock)

    async def body(pilot: Driver) -> None:
        for size in GOLDEN_SIZES:
            await resize(pilot, size)
            for name in MINE:
                await go_to(pilot, app, name)
                compare(f"{name}-{form}-{size[0]}x{size[1]}", driving.text(app))

    driving.drive(app, GOLDEN_SIZES[0], body)


def test_ascii_is_the_same_picture_without_any_other_character(here: Path) -> None:
    run = stories.make(here, "running")
    app = AutotuneApp(run, unix_time=driving.clock, ascii_only=True)

    async def body(pilot: Driver) -> None:
        for size in GOLDEN_SIZES:
            await resize(pilot, size)
            for name in screens.PLACES:
                await go_to(pilot, app, name)
                text = driving.text(app)
                assert text.isascii(), name
                if name in MINE:
                    golden = GOLDENS / f"{name}-running-{size[0]}x{size[1]}.txt"
                    expected = to_ascii(golden.read_text(encoding="utf-8"))
                    # The footer spells its keys out.
                    assert text.splitlines()[:-1] == expected.splitlines()[:-1]
        await go_to(pilot, app, "search")
        for glyph, word in (
            ("+", "measured"),
            ("x", "failed"),
            ("!", "out of memory"),
            (">", "running"),
        ):
            assert f"{glyph} {word}" in driving.text(app)
        assert "enter Open" in driving.rows(app)[-1]

    with bindings.in_force(bindings.spelled_out(bindings.TABLE)):
        driving.drive(app, GOLDEN_SIZES[0], body)


@pytest.mark.parametrize("look", LOOKS)
def test_without_colour_the_text_is_the_same_and_no_colour_is_sent(
    here: Path, monkeypatch: pytest.MonkeyPatch, look: Look
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = AutotuneApp(stories.make(here, "running"), unix_time=driving.clock, look=look)

    def assert_colourless() -> None:
        sent = [style for row in driving.styles(app) for style in row]
        assert [style for style in sent if style.color or style.bgcolor] == []

    async def body(pilot: Driver) -> None:
        for name in screens.PLACES:
            await go_to(pilot, app, name)
            if name in MINE:
                golden = GOLDENS / f"{name}-running-80x24.txt"
                assert driving.text(app) + "\n" == golden.read_text(encoding="utf-8")
            assert_colourless()
        await go_to(pilot, app, "search")
        at = next(i for i, row in enumerate(driving.rows(app)) if row.startswith("›"))
        told = driving.styles(app)
        assert any(style.reverse for style in told[at]), "the cursor"
        assert not any(style.reverse for style in told[at + 1] + told[0] + told[-1])
        for key in ("question_mark", "ctrl+p", "q"):
            await pilot.press(key)
            await pilot.pause()
            assert_colourless()
            await pilot.press("escape")

    driving.drive(app, (80, 24), body)


def test_a_run_that_cannot_be_read_says_so(here: Path) -> None:
    run = RunDirectory(here / "broken")
    run.create()
    run.request.write_text("{}")
    run.journal.mkdir()
    app = AutotuneApp(run, unix_time=driving.clock)

    async def body(pilot: Driver) -> None:
        await driving.shows(pilot, "cannot be read: Is a directory.")
        assert app.screen.query_one(Headline).said

    driving.drive(app, (80, 24), body)


@pytest.mark.parametrize("form", ["running", "failed", "finished"])
def test_a_tall_window_has_room_for_trials_picture_and_events(here: Path, form: Form) -> None:
    app = AutotuneApp(stories.make(here, form), unix_time=driving.clock)

    async def body(pilot: Driver) -> None:
        for size in ((100, 30), (58, 12), (100, 30), (100, 34)):
            await resize(pilot, size)
            if size[1] < 30:
                continue
            heights = [
                app.screen.query_one(f"#{part}").region.height
                for part in ("trials", "plot", "events")
            ]
            assert heights[0] >= 6, size
            assert heights[1] >= 8, size
            assert heights[2] == 5, size
            assert app.screen.query_one("#events").region.bottom == size[1] - 1, size

    driving.drive(app, (80, 24), body)
