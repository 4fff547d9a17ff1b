"""Drives the UI without a terminal, and reads what it shows as plain text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from rich.style import Style
from textual._compositor import LayoutUpdate
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

from tests.tui.stories import START_UNIX_S
from tui.app import AutotuneApp

Driver = Pilot[int]
"""Presses keys and waits."""
Size = tuple[int, int]
SIZES: tuple[Size, ...] = ((60, 16), (80, 24), (100, 30), (140, 40))
"""Columns and rows of the windows that every screen must fit."""
NOW_UNIX_S = START_UNIX_S + 95.0
"""When the tests look: what has a clock shows the same every day."""


def clock() -> float:
    """A clock that stands still."""
    return NOW_UNIX_S


def drive(app: App[int], size: Size, body: Callable[[Driver], Awaitable[None]]) -> None:
    """Runs the UI in a window of that size while `body` presses keys and looks."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            if isinstance(app, AutotuneApp):
                await until(pilot, lambda: app.is_awake)
                if app.latest.directory is not None:
                    await until(pilot, lambda: app.latest.is_read)
            await pilot.pause()
            await body(pilot)

    asyncio.run(run())


async def until(pilot: Driver, condition: Callable[[], bool], limit_s: float = 90.0) -> None:
    """Waits until something holds; a slow machine has time."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "\n".join(rows(pilot.app))
        await pilot.pause(0.02)
    await pilot.pause()


async def shows(pilot: Driver, text: str) -> None:
    """Waits until a text is on the screen."""
    await until(pilot, lambda: text in "\n".join(rows(pilot.app)))


def rows(app: App[int]) -> list[str]:
    """What the screen shows, row by row, trailing blanks left out."""
    return ["".join(part.text for part in strips).rstrip() for strips in _strips(app)]


def styles(app: App[int]) -> list[list[Style]]:
    """The styles of every row, as they are sent."""
    return [
        [segment.style for part in strips for segment in part if segment.style is not None]
        for strips in _strips(app)
    ]


def _strips(app: App[int]) -> list[Iterable[Strip]]:
    # The only place that reaches into Textual's compositor, which has no public way to this.
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    assert isinstance(update, LayoutUpdate)
    return update.strips


def text(app: App[int]) -> str:
    """All rows as one text."""
    return "\n".join(rows(app))
