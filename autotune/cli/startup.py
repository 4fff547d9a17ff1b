"""A check that the packages beside this one are ours.

Other projects own the names `probes` and `tui` too. Whichever comes first on the search path wins,
and a stranger's package fails much later, in a way that explains nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from autotune.errors import AutotuneError

_HOME = Path(__file__).resolve().parents[2]
"""The directory that holds our packages."""
_SIBLINGS = ("probes", "tui")


def check_installation(home: Path = _HOME) -> None:
    """Compares where Python finds our sibling packages with where they are.

    Raises:
        AutotuneError: Another package is found under the name, or none at all.
    """
    for name in _SIBLINGS:
        ours = home / name / "__init__.py"
        if not ours.is_file():
            # Not every installation has every floor; Python itself names one that is missing.
            continue
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if found != ours:
            raise AutotuneError(
                f"Another package called {name!r} hides ours: Python finds {found}, "
                f"where {ours} is needed.",
                f"Start autotune from another directory, or install it into a virtual environment "
                f"of its own without the package that brings {name!r}.",
            )
