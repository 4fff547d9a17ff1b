"""The screens, each loaded when it is first shown: the first picture should not wait for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tui.bindings import ScreenName

if TYPE_CHECKING:
    from textual.screen import Screen

    from tui.screens.base import RunScreen

PLACES: Mapping[ScreenName, tuple[str, str]] = {
    "setup": ("tui.screens.setup", "SetupScreen"),
    "probes": ("tui.screens.probes", "ProbesScreen"),
    "search": ("tui.screens.search", "SearchScreen"),
    "trial": ("tui.screens.trial", "TrialScreen"),
    "export": ("tui.screens.export", "ExportScreen"),
}
"""Module and class of each screen."""


def factories() -> dict[str, str | Callable[[], Screen[Any]]]:
    """A function for every screen that makes it, in the form of Textual's `MODES`."""
    return {name: _factory(*place) for name, place in PLACES.items()}


def stylesheets() -> list[str]:
    """The sheets beside the screens' modules, relative to the app's.

    All are read at once: reading one more when its screen is first shown would style all anew.
    """
    return sorted(f"screens/{path.name}" for path in Path(__file__).parent.glob("*.tcss"))


def _factory(module: str, name: str) -> Callable[[], RunScreen]:
    def make() -> RunScreen:
        return cast("RunScreen", getattr(import_module(module), name)())

    return make
