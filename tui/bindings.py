"""The one table of keys. Footer, help, palette and the page of keys are all made from it.

A key belongs to one screen, or to all of them. Its `id` never changes, so that a settings file can
give it another key (`tui.keymap`); whatever names a key asks here, and so names the one in force.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from textual.binding import Binding, BindingType
from textual.keys import KEY_NAME_REPLACEMENTS, key_to_character

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
"""Every key there is by default, those of one screen beside those of all."""

_IN_FORCE: ContextVar[tuple[Key, ...]] = ContextVar("keys", default=TABLE)
"""Of this application: tasks and threads of it inherit the context."""


@contextmanager
def in_force(table: tuple[Key, ...]) -> Iterator[None]:
    """Puts other keys in force, for an application that runs meanwhile."""
    token = _IN_FORCE.set(table)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def spelled_out(table: tuple[Key, ...]) -> tuple[Key, ...]:
    """The same keys, written in ASCII: a key with a glyph by its name."""
    return tuple(replace(key, shown=_in_words(key)) for key in table)


def _in_words(key: Key) -> str:
    return key.shown if key.shown.isascii() else key.keys.partition(",")[0]


def keymap() -> dict[str, str]:
    """The keys in force that are not the usual ones, by id, as Textual takes them."""
    usual = {key.id: key.keys for key in TABLE}
    return {key.id: key.keys for key in _IN_FORCE.get() if key.keys != usual[key.id]}


def shown(id: str) -> str:
    """How the key of that id is written, for sentences that name it."""
    return next(key.shown for key in _IN_FORCE.get() if key.id == id)


def keys_of(screen: ScreenName | None) -> tuple[Key, ...]:
    """The keys of one screen alone; None gives those that hold everywhere."""
    return tuple(key for key in _IN_FORCE.get() if key.screen == screen)


def live_on(screen: ScreenName) -> tuple[Key, ...]:
    """Every key that does something on a screen, its own ones first."""
    return (*keys_of(screen), *keys_of(None))


def of(screen: ScreenName | None) -> list[BindingType]:
    """The usual keys of a screen in Textual's form, for `BINDINGS`."""
    return [
        Binding(key.keys, key.verb, key.label, show=False, id=key.id, priority=key.priority)
        for key in TABLE
        if key.screen == screen
    ]


def in_footer(screen: ScreenName) -> tuple[Key, ...]:
    """What the footer of a screen shows, help first; the palette stands apart on the right."""
    found = [key for key in (*keys_of(None), *keys_of(screen)) if key.in_footer]
    return tuple(found[:MAX_IN_FOOTER])


def while_typing(screen: ScreenName) -> tuple[Key, ...]:
    """The keys of the footer that work while a field takes letters, written as they work then."""
    return tuple(
        replace(key, shown=written(name))
        for key in in_footer(screen)
        for name in [next(filter(_is_no_text, key.keys.split(",")), None)]
        if name is not None
    )


def _is_no_text(name: str) -> bool:
    """Whether a field leaves a key alone: it neither types something nor moves about in there."""
    return name.startswith("ctrl+") or (name[0] == "f" and name[1:].isdigit())


def palette() -> Key:
    """The key of the palette."""
    return next(key for key in _IN_FORCE.get() if key.id == "palette")


def page() -> str:
    """All keys as a Markdown page."""
    lines = [
        "# Keys of the terminal UI",
        "",
        "Made from `tui/bindings.py` by `python -m tui --keys`. A settings file gives other keys",
        "by these ids: in the table `[keys]` of `autotune.toml`, or `[tool.autotune.keys]` of",
        '`pyproject.toml`, for example `"search.sort" = "o"` or `help = "f1,h"`.',
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
    others = [written(name) for name in key.keys.split(",")[1:]]
    return " ".join([key.shown, *others]).replace("|", "\\|")


_WRITTEN = {
    "right_square_bracket": "]",
    "left_square_bracket": "[",
    "greater_than_sign": ">",
    "less_than_sign": "<",
    "slash": "/",
    "question_mark": "?",
    "escape": "esc",
    "space": "␣",
    "enter": "⏎",
    "down": "↓",
    "up": "↑",
    "pagedown": "PgDn",
    "pageup": "PgUp",
}


def written(name: str) -> str:
    """How a key is written for people, by Textual's name of it."""
    if name in _WRITTEN:
        return _WRITTEN[name]
    if name.startswith("ctrl+"):
        return f"^{written(name.removeprefix('ctrl+'))}"
    if len(name) > 1 and name[0] == "f" and name[1:].isdigit():
        return name.upper()
    return character(name) or name


def character(name: str) -> str | None:
    """What a key types, by Textual's name of it; None where it types nothing."""
    known = {other: one for one, other in KEY_NAME_REPLACEMENTS.items()}
    return key_to_character(known.get(name, name))
