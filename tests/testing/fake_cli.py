"""The real command line over the fake engine: `python -m tests.testing.fake_cli ARGUMENTS`."""

from __future__ import annotations

import os
import sys

from tests.testing import fake_engine


def main() -> int:
    """Runs one command."""
    from autotune import starting
    from autotune.cli import app
    from autotune.display import watch

    starting.start_engine = fake_engine.start_engine
    watch.GRACE_S = float(os.environ.get("AUTOTUNE_TEST_GRACE_S", watch.GRACE_S))
    watch.LAST_GRACE_S = float(os.environ.get("AUTOTUNE_TEST_LAST_GRACE_S", watch.LAST_GRACE_S))
    return app.main()


if __name__ == "__main__":
    sys.exit(main())
