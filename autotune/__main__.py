"""`python -m autotune` and the `autotune` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    from autotune.cli.ahead import begun_for

    with begun_for(sys.argv[1:]) as ahead:
        from autotune.cli.app import main as run

        code = run(ahead=ahead)
    sys.exit(code)


if __name__ == "__main__":
    main()
