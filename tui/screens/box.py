"""What every box over a screen has in common."""

from __future__ import annotations

from textual.screen import ModalScreen, ScreenResultType


class Box(ModalScreen[ScreenResultType]):
    """A box that stands over a screen."""

    def on_mount(self) -> None:
        """What was told in a corner before would cover rows of the box."""
        self.app.clear_notifications()
