"""The real command line over the fake engine: `python -m tests.testing.fake_cli ARGUMENTS`."""

from __future__ import annotations

import sys

from tests.testing import fake_engine


def main() -> int:
    """Runs one command."""
    from autotune import tuning
    from autotune.cli import app

    tuning.start_engine = fake_engine.start_engine
    return app.main()


if __name__ == "__main__":
    sys.exit(main())
