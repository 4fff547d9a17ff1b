"""How a run is shown where the call was made: in a notebook, on a terminal, or in a log."""

from __future__ import annotations

import importlib.util
import sys

from autotune.display import DisplayName
from autotune.display.base import Display
from autotune.display.base import choose as choose_for_terminal


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows what is displayed."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or "google.colab" in str(type(shell))


def choose(wanted: DisplayName) -> Display:
    """The display that was asked for, in the form that suits the place.

    A panel in a notebook needs ipywidgets; without it, lines are printed.
    """
    if not is_notebook() or wanted == "none":
        return choose_for_terminal(wanted)
    if wanted in ("auto", "rich") and importlib.util.find_spec("ipywidgets") is not None:
        from autotune.display.rich import RichDisplay

        return RichDisplay(in_notebook=True)
    from autotune.display.plain import PlainDisplay

    return PlainDisplay(write=lambda line: print(line, flush=True))  # noqa: T201
