"""Work beside a worker that never ends by itself."""

from __future__ import annotations

import time


def run(workload: object, document: dict[str, object], scratch: str) -> None:
    time.sleep(600.0)
