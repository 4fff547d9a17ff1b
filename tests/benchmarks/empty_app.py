"""The least that a Textual application can do: one row that changes with every key.

Run as `python -m tests.benchmarks.empty_app`; what the terminal UI takes to answer a key is set
beside what this one takes.
"""

from __future__ import annotations

from textual import events
from textual.app import App, ComposeResult
from textual.widgets import Static


class EmptyApp(App[None]):
    """Says Help first, and counts keys behind a pointer."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self) -> None:
        super().__init__()
        self._num_keys = 0

    def compose(self) -> ComposeResult:
        """One row."""
        yield Static("Help")

    def on_key(self, event: events.Key) -> None:
        """Shows that a key arrived; q ends."""
        if event.character == "q":
            self.exit()
        self._num_keys += 1
        self.query_one(Static).update(f"› {self._num_keys}")


if __name__ == "__main__":
    EmptyApp().run()
