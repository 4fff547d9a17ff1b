"""The table of keys: one source for footer, help, palette and page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tui
from tui import bindings, screens
from tui.app import AutotuneApp
from tui.keys.key import ScreenName
from tui.screens.base import RunScreen
from tui.screens.help import listing

PAGE = Path(tui.__file__).with_name("KEYS.md")
ON_SCREENS: tuple[ScreenName, ...] = tuple(screens.PLACES)


def made(name: ScreenName) -> RunScreen:
    screen = screens.factories()[name]
    assert callable(screen)
    made_screen = screen()
    assert isinstance(made_screen, RunScreen)
    return made_screen


def test_the_page_of_keys_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == bindings.page()


def test_ids_are_unique_and_no_screen_has_a_key_twice() -> None:
    ids = [key.id for key in bindings.TABLE]
    assert len(ids) == len(set(ids))
    for name in ON_SCREENS:
        names = [part for key in bindings.live_on(name) for part in key.keys.split(",")]
        assert len(names) == len(set(names)), name


@pytest.mark.parametrize("name", ON_SCREENS)
def test_every_verb_is_an_action(name: ScreenName) -> None:
    screen = made(name)
    for key in bindings.live_on(name):
        match = re.fullmatch(r"(app|screen)\.(\w+)(\(.*\))?", key.verb)
        assert match is not None, key.id
        owner: object = AutotuneApp if match[1] == "app" else screen
        assert hasattr(owner, f"action_{match[2]}"), key.id


@pytest.mark.parametrize("name", ON_SCREENS)
def test_footers_are_short_and_help_knows_every_key(name: ScreenName) -> None:
    shown = bindings.in_footer(name)
    assert shown[0].id == "help"
    assert 1 < len(shown) <= bindings.MAX_IN_FOOTER
    assert sum(key.in_footer for key in bindings.live_on(name)) <= bindings.MAX_IN_FOOTER
    text = listing(name, frozenset(), 80).plain
    for key in bindings.live_on(name):
        assert f"  {key.shown:<5}" in text, key.id
        assert key.help.split()[0] in text


def test_every_key_of_a_known_screen_says_what_it_does() -> None:
    for key in bindings.TABLE:
        assert key.help.endswith((".", "…")), key.id
        assert key.screen is None or key.screen in bindings.SCREEN_TITLES
