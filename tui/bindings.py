"""The one table of keys. Footer, help, palette and the page of keys are all made from it.

A key belongs to one screen, or to all of them. Its `id` never changes, so that a keymap in a
settings file can give it another key.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding, BindingType

from tui.keys.everywhere import EVERYWHERE
from tui.keys.export import EXPORT
from tui.keys.key import Key, ScreenName
from tui.keys.probes import PROBES
from tui.keys.search import SEARCH
from tui.keys.setup import SETUP
from tui.keys.trial import TRIAL

SCREEN_TITLES: dict[ScreenName, str] = {
    "setup": "1 setup",
    "probes": "2 probes",
    "search": "3 search",
    "trial": "4 trial",
    "export": "5 recommendation",
}
"""As the header shows them; the digit is the key that leads there."""

MAX_IN_FOOTER = 8
"""Keys that fit into a footer of 80 columns, the one for help included."""

TABLE: tuple[Key, ...] = (*EVERYWHERE, *SETUP, *PROBES, *SEARCH, *TRIAL, *EXPORT)
"""Every key there is, those of one screen beside those of all."""


def keys_of(screen: ScreenName | None) -> tuple[Key, ...]:
    """The keys of one screen alone; None gives those that hold everywhere."""
    return tuple(key for key in TABLE if key.screen == screen)


def live_on(screen: ScreenName) -> tuple[Key, ...]:
    """Every key that does something on a screen, its own ones first."""
    return (*keys_of(screen), *keys_of(None))


def of(screen: ScreenName | None) -> list[BindingType]:
    """The keys of a screen in Textual's form, for `BINDINGS`."""
    return [
        Binding(key.keys, key.verb, key.label, show=False, id=key.id, priority=key.priority)
        for key in keys_of(screen)
    ]


def in_footer(screen: ScreenName) -> tuple[Key, ...]:
    """What the footer of a screen shows, help first; the palette stands apart on the right."""
    shown = [key for key in (*EVERYWHERE, *keys_of(screen)) if key.in_footer]
    return tuple(shown[:MAX_IN_FOOTER])


def by_verb(verb: str, keys: Iterable[Key] = TABLE) -> Key | None:
    """The key of an action, or None."""
    return next((key for key in keys if key.verb == verb), None)


def page() -> str:
    """All keys as a Markdown page."""
    lines = [
        "# Keys of the terminal UI",
        "",
        "Made from `tui/bindings.py` by `python -m tui --keys`. The id is what a settings file may",
        "give another key.",
    ]
    for screen, title in ((None, "everywhere"), *SCREEN_TITLES.items()):
        keys = keys_of(screen)
        if not keys:
            continue
        lines += ["", f"## {title[0].upper()}{title[1:]}", ""]
        lines += ["| key | what it does | id |", "|---|---|---|"]
        lines += [f"| `{_all_shown(key)}` | {key.help} | `{key.id}` |" for key in keys]
    return "\n".join(lines) + "\n"


def _all_shown(key: Key) -> str:
    others = [_written(name) for name in key.keys.split(",")[1:]]
    return " ".join([key.shown, *others]).replace("|", "\\|")


_WRITTEN = {
    "right_square_bracket": "]",
    "left_square_bracket": "[",
    "greater_than_sign": ">",
    "less_than_sign": "<",
    "slash": "/",
    "question_mark": "?",
    "escape": "esc",
}


def _written(name: str) -> str:
    return _WRITTEN.get(name, name.replace("ctrl+", "^").replace("f1", "F1"))
