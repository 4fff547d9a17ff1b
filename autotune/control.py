"""What is asked of a running engine: small files in the run directory, taken one by one."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from autotune.run_directory import write_atomically

Verb: TypeAlias = Literal["hold", "resume", "stop_trial", "stop", "stop_now", "note"]
"""hold: no new trial. stop_trial: end the running one. stop: end after it. stop_now: end now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """One request."""

    verb: Verb
    text: str = ""
    """The note's text, or who asked."""


def send(control: Path, verb: Verb, text: str = "") -> None:
    """Leaves a request for the engine of a run.

    Args:
        control: `RunDirectory.control`.
        verb: What is asked for.
        text: The note's text, or who asks.

    Raises:
        OSError: The run directory is gone, which is never made anew for this, or cannot be written.
    """
    control.mkdir(exist_ok=True)
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
    document = json.dumps({"verb": verb, "text": text})
    write_atomically(control / name, document, make_directory=False)


def take(control: Path) -> list[ControlRequest]:
    """Takes all waiting requests away, oldest first; what is not a request is thrown away."""
    requests = []
    for path in sorted(control.glob("*.json")) if control.is_dir() else []:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            document = None
        path.unlink(missing_ok=True)
        if isinstance(document, dict) and document.get("verb") in get_args(Verb):
            requests.append(
                ControlRequest(verb=document["verb"], text=str(document.get("text", "")))
            )
    return requests
