"""Traces the workload that a worker has loaded, in a fork beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cost.memory import codec
from autotune.run_directory import write_atomically
from autotune.tracing.child import DEVICES
from autotune.tracing.request import request_adapter

if TYPE_CHECKING:
    from autotune.workload.loaded import LoadedWorkload


def run(workload: LoadedWorkload, document: dict[str, object], scratch: str) -> None:
    """Writes the trace to the file that the document names; nothing of the workload is kept.

    Args:
        workload: Of the worker. This is a fork, so that it may be changed.
        document: `request`, as JSON, and `file`.
        scratch: A directory for what training libraries insist on writing.
    """
    from autotune.tracing.trace import fake_mode, trace

    for name in DEVICES:
        # Nothing here may touch a device, not even to look whether there is one.
        os.environ[name] = ""
    request = request_adapter().validate_python(document["request"])
    traced = trace(workload, request, Path(scratch), fake_mode())
    text = json.dumps(codec.to_json(traced), separators=(",", ":"))
    write_atomically(Path(str(document["file"])), text, mode=0o600)
