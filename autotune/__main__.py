"""`python -m autotune` and the `autotune` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    from autotune.cli.app import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
