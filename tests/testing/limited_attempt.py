"""A child that limits its data, then tries an allocation as if it had 4 GiB."""

from __future__ import annotations

import json
import resource
from dataclasses import asdict
from typing import TextIO

from probes.allocation import attempt
from probes.machine import Device


def main(arguments: list[str], out: TextIO) -> int:
    """Tries under the limit that the first argument gives in bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(arguments[0]), hard))
    device = Device(
        kind="cpu",
        index=0,
        name="CPU",
        total_bytes=8 * 2**30,
        free_bytes=4 * 2**30,
        memory_from="host",
    )
    tried = attempt(device, time_limit_s=30)
    assert tried is not None
    out.write(json.dumps(asdict(tried)) + "\n")
    return 0
