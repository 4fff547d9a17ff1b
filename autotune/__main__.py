"""`python -m autotune` and the `autotune` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    from autotune.cli.ahead import begun_for

    with begun_for(sys.argv[1:]) as ahead:
        from autotune.cli.app import main as run

        code = run(ahead=ahead)
    # An impatient ^c has nothing left to stop, and must not change the exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()
