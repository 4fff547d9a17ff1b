"""What a key is, and under which headings help lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ScreenName: TypeAlias = Literal["setup", "probes", "search", "trial", "export"]
Needs: TypeAlias = Literal[
    "nothing", "run", "engine", "trial", "answer", "several", "rest", "form", "choices"
]
"""What must be there for a key to be of use: a run, a living engine, a chosen trial, a
recommendation, more than one thing to turn to, a run that ended early, something that is filled
in, a field that takes one of several things."""

GO = "Screens"
RUN = "The run"
VIEW = "What is shown"
CURSOR = "The cursor"
APP = "The program"


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
    """Without it the key is dead."""
    wants: Needs = "nothing"
    """Without it the key only says why it does nothing; no footer names it then."""
    priority: bool = False
    """Whether it works while a field has the keyboard."""
