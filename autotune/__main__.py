"""`python -m autotune` and the `autotune` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    try:
        code = _run()
    except KeyboardInterrupt:
        # It came while the command line was still being loaded, which has words for it otherwise.
        sys.stderr.write("Interrupted.\n")
        code = 128 + signal.SIGINT
    # An impatient ^c has nothing left to stop, and must not change the exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _run() -> int:
    from autotune.cli.ahead import begun_for

    with begun_for(sys.argv[1:]) as ahead:
        from autotune.cli.app import main as run

        return run(ahead=ahead)


if __name__ == "__main__":
    main()
