"""Drives the UI without a terminal, and reads what it shows as plain text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from unittest.mock import patch

from rich.style import Style
from textual._compositor import LayoutUpdate
from textual._queue import Queue
from textual.app import App
from textual.message import Message
from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.strip import Strip

from tests.tui.stories import START_UNIX_S
from tui.app import AutotuneApp

Driver = Pilot[int]
"""Presses keys and waits."""
Size = tuple[int, int]
SIZES: tuple[Size, ...] = ((60, 16), (80, 24), (100, 30), (140, 40))
"""Columns and rows of the windows that every screen must fit."""
_SETTLING_S = 30.0
NOW_UNIX_S = START_UNIX_S + 95.0
"""When the tests look: what has a clock shows the same every day."""


def clock() -> float:
    """A clock that stands still."""
    return NOW_UNIX_S


def drive(app: App[int], size: Size, body: Callable[[Driver], Awaitable[None]]) -> None:
    """Runs the UI in a window of that size while `body` presses keys and looks."""

    async def idle(*seconds: float) -> None:
        await settled(app)

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            if isinstance(app, AutotuneApp):
                await until(pilot, lambda: app.is_awake)
                if app.latest.directory is not None:
                    await until(pilot, lambda: app.latest.is_read)
            await pilot.pause()
            await body(pilot)

    # Textual's own way is to sleep until the process takes little time of the processor: that is
    # slow, and beside other tests it says nothing.
    with patch("textual.app.wait_for_idle", idle), patch("textual.pilot.wait_for_idle", idle):
        asyncio.run(run())


async def settled(app: App[int]) -> None:
    """Waits until every message was handled, with all that follows from it, and all is painted."""
    deadline_s = time.monotonic() + _SETTLING_S
    num_quiet = num_busy = 0
    while num_quiet < 2 and app.is_running and app.screen_stack:
        assert time.monotonic() < deadline_s, "the UI is never done"
        screen = app.screen
        if _is_busy(app):
            num_quiet, num_busy = 0, num_busy + 1
            # What is waited for may be on a thread.
            await asyncio.sleep(0 if num_busy % 20 else 0.001)
            continue
        num_quiet = 0 if screen._callbacks or screen._layout_required else num_quiet + 1
        screen._on_timer_update()
        await asyncio.sleep(0)


def _is_busy(app: App[int]) -> bool:
    pumps: Iterable[MessagePump] = (app, *app.screen.walk_children(with_self=True))
    # A new size waits for a moment, since there may be a newer one.
    return app._resize_event is not None or any(
        pump._running and not pump._closed and not _waits(pump) for pump in pumps
    )


def _waits(pump: MessagePump) -> bool:
    """Whether it has nothing to do but wait for its next message."""
    # Reaches into Textual, which has no public way to this.
    queue: Queue[Message | None] = pump._message_queue
    return (
        queue.empty()
        and pump._pending_message is None
        and not pump._next_callbacks
        and any(not waiter.done() for waiter in queue.ready_event._waiters)
    )


async def until(pilot: Driver, condition: Callable[[], bool], limit_s: float = 90.0) -> None:
    """Waits until something holds; a slow machine has time."""
    deadline_s = time.monotonic() + limit_s
    await settled(pilot.app)
    while not condition():
        if pilot.app._exception is not None:
            raise pilot.app._exception
        assert time.monotonic() < deadline_s, "\n".join(rows(pilot.app))
        await asyncio.sleep(0.01)
        await settled(pilot.app)


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
