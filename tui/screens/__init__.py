"""The screens, each loaded when it is first shown: the first picture should not wait for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

from tui.bindings import ScreenName

if TYPE_CHECKING:
    from tui.screens.base import RunScreen

PLACES: Mapping[ScreenName, tuple[str, str]] = {
    "setup": ("tui.screens.setup", "SetupScreen"),
    "probes": ("tui.screens.probes", "ProbesScreen"),
    "search": ("tui.screens.search", "SearchScreen"),
    "trial": ("tui.screens.trial", "TrialScreen"),
    "export": ("tui.screens.export", "ExportScreen"),
}
"""Module and class of each screen."""


def factories() -> dict[ScreenName, Callable[[], RunScreen]]:
    """A function for every screen that makes it."""
    return {name: _factory(*place) for name, place in PLACES.items()}


def _factory(module: str, name: str) -> Callable[[], RunScreen]:
    def make() -> RunScreen:
        return cast("RunScreen", getattr(import_module(module), name)())

    return make
