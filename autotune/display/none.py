"""Shows nothing."""

from __future__ import annotations

from autotune.events import Record
from autotune.view import RunView


class NoDisplay:
    """A display for those who only want the result."""

    def open(self) -> None:
        """Does nothing."""

    def show(self, record: Record, view: RunView) -> None:
        """Does nothing."""

    def tick(self, view: RunView) -> None:
        """Does nothing."""

    def say(self, text: str) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
