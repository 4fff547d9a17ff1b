"""What screens and widgets need of the application, so that they need not know it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autotune.control import Verb
from autotune.run_directory import RunDirectory
from tui.keys.key import ScreenName

if TYPE_CHECKING:
    # Loaded behind the first picture, which does not need them.
    from tui.answer.writing import Writing
    from tui.run_now import RunNow
    from tui.setup.form import JobForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer to a question."""

    id: str
    key: str
    """A letter that chooses it at once."""
    text: str


class Clock(Protocol):
    """Who knows the time, and whether what is shown stands still."""

    @property
    def now_unix_s(self) -> Callable[[], float]:
        """The wall clock."""

    @property
    def is_view_held(self) -> bool:
        """Whether what is shown stands still."""

    @property
    def num_held_back(self) -> int:
        """Events that a held view does not show yet."""


class Owner(Clock, Protocol):
    """The application, as a screen sees it."""

    chosen_trial: int | None
    """Number of the trial that is looked at."""
    run_root: Path
    """Where runs are kept."""
    form: JobForm | None
    """What setup begins with; None is an empty form."""
    draft: JobForm | None
    """What somebody filled in since, and nobody has started."""
    is_starting: bool
    """Whether that is being started now."""
    writing: Writing | None
    """Files that are being written now."""

    @property
    def latest(self) -> RunNow:
        """The run as the bridge read it last."""

    @property
    def shown(self) -> RunNow:
        """The run as screens show it: the latest, or what was there when the view was held."""

    def attach(self, directory: RunDirectory) -> None:
        """Follows another run from now on."""

    def ask(self, verb: Verb, text: str = "") -> bool:
        """Leaves a request for the engine, and says whether it could."""

    def say(self, text: str, *, is_warning: bool = False) -> None:
        """Tells something for a moment, in a corner."""

    def copy(self, text: str, what: str) -> None:
        """Copies a text through the terminal, and into the run's `last-copy.txt`."""

    def open_trial(self, number: int, *, log: bool = False) -> None:
        """Goes to the screen of a trial, and to its log where that is wanted."""

    def action_go(self, name: ScreenName) -> None:
        """Goes to a screen."""

    def ask_user(
        self,
        title: str,
        explanation: str,
        choices: Sequence[Choice],
        answered: Callable[[str], None],
    ) -> None:
        """Asks a question in a box; `answered` gets the id of the answer, if there is one."""
