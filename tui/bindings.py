"""The one table of keys. Footer, help, palette and the page of keys are all made from it.

A key belongs to one screen, or to all of them. Its `id` never changes, so that a keymap in a
settings file can give it another key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from textual.binding import Binding, BindingType

ScreenName: TypeAlias = Literal["setup", "probes", "search", "trial", "export"]
Needs: TypeAlias = Literal["nothing", "run", "engine", "trial"]
"""What must be there for a key to do something: a run, a living engine, a chosen trial."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key and what it does."""

    id: str
    keys: str
    """Textual's names, separated by commas; the first one is shown."""
    shown: str
    """How the first key is written for people."""
    label: str
    """One or two words, for the footer."""
    help: str
    """A whole sentence, for help, palette and page."""
    group: str
    """Under which heading help lists it."""
    verb: str
    """The action: `screen.filter` is `action_filter` of the screen, `app.go('setup')` the app's."""
    screen: ScreenName | None = None
    """None holds on every screen."""
    in_footer: bool = False
    needs: Needs = "nothing"
    priority: bool = False
    """Whether it works while a field has the keyboard."""


_GO = "Screens"
_RUN = "The run"
_VIEW = "What is shown"
_CURSOR = "The cursor"
_APP = "The program"

EVERYWHERE: tuple[Key, ...] = (
    Key(
        id="help",
        keys="question_mark,f1",
        shown="?",
        label="Help",
        help="List the keys of this screen.",
        group=_APP,
        verb="app.help",
        in_footer=True,
    ),
    Key(
        id="go.setup",
        keys="1",
        shown="1",
        label="Setup",
        help="Go to setup.",
        group=_GO,
        verb="app.go('setup')",
    ),
    Key(
        id="go.probes",
        keys="2",
        shown="2",
        label="Probes",
        help="Go to the readings of this machine.",
        group=_GO,
        verb="app.go('probes')",
    ),
    Key(
        id="go.search",
        keys="3",
        shown="3",
        label="Search",
        help="Go to the search.",
        group=_GO,
        verb="app.go('search')",
    ),
    Key(
        id="go.trial",
        keys="4",
        shown="4",
        label="Trial",
        help="Go to the chosen trial.",
        group=_GO,
        verb="app.go('trial')",
    ),
    Key(
        id="go.export",
        keys="5",
        shown="5",
        label="Recommendation",
        help="Go to the recommendation and its files.",
        group=_GO,
        verb="app.go('export')",
    ),
    Key(
        id="back",
        keys="escape",
        shown="esc",
        label="Back",
        help="Go back to the screen before this one.",
        group=_GO,
        verb="app.go_back",
    ),
    Key(
        id="hold_view",
        keys="space",
        shown="␣",
        label="Hold view",
        help="Hold what is shown still, or let it go on. The run goes on meanwhile.",
        group=_VIEW,
        verb="app.hold_view",
    ),
    Key(
        id="hold_run",
        keys="P",
        shown="P",
        label="No new trials",
        help="Start no new trial after the running one, or go on again.",
        group=_RUN,
        verb="app.hold_run",
        needs="engine",
    ),
    Key(
        id="stop_trial",
        keys="x",
        shown="x",
        label="Stop trial",
        help="End the running trial, after asking. It counts as stopped, not as failed.",
        group=_RUN,
        verb="app.stop_trial",
        needs="engine",
    ),
    Key(
        id="note",
        keys="N",
        shown="N",
        label="Note",
        help="Write a note into the run.",
        group=_RUN,
        verb="app.note",
        needs="engine",
    ),
    Key(
        id="theme",
        keys="T",
        shown="T",
        label="Light or dark",
        help="Change between the dark and the light theme.",
        group=_VIEW,
        verb="app.other_theme",
    ),
    Key(
        id="palette",
        keys="ctrl+p",
        shown="^p",
        label="Palette",
        help="Find a command by its name, or a trial by its number.",
        group=_APP,
        verb="app.command_palette",
        priority=True,
    ),
    Key(
        id="quit",
        keys="q",
        shown="q",
        label="Quit",
        help="Leave. A run that goes on asks first: finish the trial, stop now, or detach.",
        group=_APP,
        verb="app.leave",
    ),
    Key(
        id="interrupt",
        keys="ctrl+c,ctrl+q",
        shown="^c",
        label="Quit",
        help="As q; pressed again, it stops the run now. Finished trials are kept.",
        group=_APP,
        verb="app.interrupt",
        priority=True,
    ),
)

SEARCH: tuple[Key, ...] = (
    Key(
        id="search.filter",
        keys="slash",
        shown="/",
        label="Filter",
        help="Show only trials that match words, state:oom, mbs>=8 or !word. Esc clears.",
        group=_VIEW,
        verb="screen.filter",
        screen="search",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="search.sort",
        keys="s",
        shown="s",
        label="Sort",
        help="Sort the trials by the next column.",
        group=_VIEW,
        verb="screen.sort",
        screen="search",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="search.reverse",
        keys="S",
        shown="S",
        label="Reverse",
        help="Sort the other way round.",
        group=_VIEW,
        verb="screen.reverse",
        screen="search",
        needs="run",
    ),
    Key(
        id="search.picture",
        keys="v",
        shown="v",
        label="Picture",
        help="Show the next picture: events, speed against memory, best so far, heat map.",
        group=_VIEW,
        verb="screen.next_picture",
        screen="search",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="search.down",
        keys="down,j",
        shown="↓",
        label="Down",
        help="Move the cursor down.",
        group=_CURSOR,
        verb="screen.move(1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.up",
        keys="up,k",
        shown="↑",
        label="Up",
        help="Move the cursor up.",
        group=_CURSOR,
        verb="screen.move(-1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.page_down",
        keys="pagedown",
        shown="PgDn",
        label="Page down",
        help="Move the cursor down by a page.",
        group=_CURSOR,
        verb="screen.move_page(1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.page_up",
        keys="pageup",
        shown="PgUp",
        label="Page up",
        help="Move the cursor up by a page.",
        group=_CURSOR,
        verb="screen.move_page(-1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.first",
        keys="home,g",
        shown="home",
        label="First",
        help="Move the cursor to the first row.",
        group=_CURSOR,
        verb="screen.move_end(-1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.last",
        keys="end,G",
        shown="end",
        label="Last",
        help="Move the cursor to the last row.",
        group=_CURSOR,
        verb="screen.move_end(1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.next_tab",
        keys="right_square_bracket",
        shown="]",
        label="Tabs",
        help="Show the next tab of the trial on the right of a wide window; [ the one before.",
        group=_VIEW,
        verb="screen.turn(1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.previous_tab",
        keys="left_square_bracket",
        shown="[",
        label="Tab before",
        help="Show the tab before this one.",
        group=_VIEW,
        verb="screen.turn(-1)",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.open",
        keys="enter",
        shown="⏎",
        label="Open",
        help="Open the trial under the cursor.",
        group=_VIEW,
        verb="screen.open",
        screen="search",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="search.log",
        keys="l",
        shown="l",
        label="Log",
        help="Show what the trial under the cursor printed.",
        group=_VIEW,
        verb="screen.log",
        screen="search",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="search.copy",
        keys="y",
        shown="y",
        label="Copy command",
        help="Copy the command that runs the trial under the cursor again.",
        group="Copy",
        verb="screen.copy_command",
        screen="search",
        needs="trial",
    ),
    Key(
        id="search.copy_other",
        keys="Y",
        shown="Y",
        label="Copy …",
        help="Copy the configuration, the row or the outcome of the trial under the cursor.",
        group="Copy",
        verb="screen.copy_other",
        screen="search",
        needs="trial",
    ),
)

TRIAL: tuple[Key, ...] = (
    Key(
        id="trial.next_tab",
        keys="right_square_bracket",
        shown="]",
        label="Tabs",
        help="Show the next tab: summary, configuration, log.",
        group=_VIEW,
        verb="screen.turn(1)",
        screen="trial",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="trial.previous_tab",
        keys="left_square_bracket",
        shown="[",
        label="Tab before",
        help="Show the tab before this one.",
        group=_VIEW,
        verb="screen.turn(-1)",
        screen="trial",
        needs="trial",
    ),
    Key(
        id="trial.next",
        keys="n,greater_than_sign",
        shown="n",
        label="Next",
        help="Show the next trial.",
        group=_VIEW,
        verb="screen.other(1)",
        screen="trial",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="trial.previous",
        keys="p,less_than_sign",
        shown="p",
        label="Previous",
        help="Show the trial before this one.",
        group=_VIEW,
        verb="screen.other(-1)",
        screen="trial",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="trial.log",
        keys="l",
        shown="l",
        label="Log",
        help="Show what the trial printed.",
        group=_VIEW,
        verb="screen.log",
        screen="trial",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="trial.find",
        keys="slash",
        shown="/",
        label="Find in log",
        help="Find words in the log.",
        group=_VIEW,
        verb="screen.find",
        screen="trial",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="trial.follow",
        keys="end,G",
        shown="end",
        label="Follow log",
        help="Go to the end of the log and follow it.",
        group=_VIEW,
        verb="screen.follow_log",
        screen="trial",
        needs="trial",
    ),
    Key(
        id="trial.copy",
        keys="y",
        shown="y",
        label="Copy command",
        help="Copy the command that runs this trial again.",
        group="Copy",
        verb="screen.copy_command",
        screen="trial",
        in_footer=True,
        needs="trial",
    ),
    Key(
        id="trial.copy_other",
        keys="Y",
        shown="Y",
        label="Copy …",
        help="Copy the configuration, the outcome or the whole log.",
        group="Copy",
        verb="screen.copy_other",
        screen="trial",
        needs="trial",
    ),
)

SETUP: tuple[Key, ...] = (
    Key(
        id="setup.fill",
        keys="enter",
        shown="⏎",
        label="Fill in",
        help="Go to the first field that lacks something. Esc makes the letters keys again.",
        group="The form",
        verb="screen.fill_in",
        screen="setup",
        in_footer=True,
    ),
    Key(
        id="setup.run",
        keys="r,ctrl+r",
        shown="r",
        label="Run",
        help="Start the job, if nothing is wrong with it. ^r does so while a field has the keys.",
        group=_RUN,
        verb="screen.run",
        screen="setup",
        in_footer=True,
    ),
    Key(
        id="setup.demo",
        keys="d",
        shown="d",
        label="Demo",
        help="Fill the form in with the built-in job, or take it out again.",
        group="The form",
        verb="screen.demo",
        screen="setup",
        in_footer=True,
    ),
    Key(
        id="setup.open",
        keys="o",
        shown="o",
        label="Open run",
        help="Choose one of the runs there are and look at it.",
        group=_GO,
        verb="screen.open_run",
        screen="setup",
        in_footer=True,
    ),
    Key(
        id="setup.browse",
        keys="ctrl+o",
        shown="^o",
        label="Browse",
        help="Choose what the field takes: a file, a directory or a column.",
        group="The form",
        verb="screen.browse",
        screen="setup",
        in_footer=True,
    ),
    Key(
        id="setup.check",
        keys="c",
        shown="c",
        label="Check",
        help="Load the job and plan the search now, without waiting for a rest.",
        group="The form",
        verb="screen.check",
        screen="setup",
        in_footer=True,
    ),
    Key(
        id="setup.copy",
        keys="y",
        shown="y",
        label="Copy command",
        help="Copy the command line that does the same.",
        group="Copy",
        verb="screen.copy_command",
        screen="setup",
        in_footer=True,
    ),
)

PROBES: tuple[Key, ...] = (
    Key(
        id="probes.measure",
        keys="m",
        shown="m",
        label="Measure",
        help="Measure this machine now, and the links between ranks where there are several.",
        group=_RUN,
        verb="screen.measure",
        screen="probes",
        in_footer=True,
    ),
    Key(
        id="probes.copy",
        keys="y",
        shown="y",
        label="Copy command",
        help="Copy the command that prints these readings.",
        group="Copy",
        verb="screen.copy_command",
        screen="probes",
        in_footer=True,
    ),
)

EXPORT: tuple[Key, ...] = (
    Key(
        id="export.preview",
        keys="p",
        shown="p",
        label="Preview",
        help="Look into the file under the cursor, or go back to the answer.",
        group=_VIEW,
        verb="screen.preview",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.take",
        keys="t",
        shown="t",
        label="Take other",
        help="Take the next alternative instead of the recommendation.",
        group="The files",
        verb="screen.take_other",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.write",
        keys="w",
        shown="w",
        label="Write",
        help="Write the files of what is taken, after asking where to.",
        group="The files",
        verb="screen.write",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.copy",
        keys="y",
        shown="y",
        label="Copy command",
        help="Copy the command that writes these files.",
        group="Copy",
        verb="screen.copy_command",
        screen="export",
        in_footer=True,
        needs="run",
    ),
    Key(
        id="export.copy_file",
        keys="Y",
        shown="Y",
        label="Copy file",
        help="Copy the whole file under the cursor.",
        group="Copy",
        verb="screen.copy_file",
        screen="export",
        in_footer=True,
        needs="run",
    ),
)

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
