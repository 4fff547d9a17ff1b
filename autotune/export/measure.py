"""The child process in which a script is run again and timed.

Run as `python -m autotune.export.measure DESCRIPTOR` by `autotune.export.rerun`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import JsonValue

from autotune.export.child import Channel
from autotune.export.observe import run_script, watching
from autotune.export.script_check import accelerator_flags, trainer_flags


def run(request: dict[str, JsonValue]) -> JsonValue:
    """Runs the script and returns its steps, or `{"failure": message}`."""
    flags = trainer_flags if request["driver"] == "trainer" else accelerator_flags
    num_steps = int(str(request["num_steps"]))
    arguments = flags(num_steps, Path(str(request["output"])))
    try:
        with _hook(request["hook"]) as extra, watching() as observed:
            run_script(Path(str(request["script"])), arguments)
    except Exception as error:  # noqa: BLE001  whatever a script raises is an answer
        traceback.print_exc()
        return {"failure": str(error).strip() or type(error).__name__}
    if len(observed.steps) != num_steps:
        return {"failure": f"it made {len(observed.steps)} optimizer steps and not {num_steps}"}
    return {
        "step_times_s": list(observed.step_times_s()),
        "step_rows": [sum(step.rows) for step in observed.steps],
        "losses": [step.loss for step in observed.steps],
        "extra": extra if isinstance(extra, dict) else {},
    }


def _hook(name: JsonValue) -> AbstractContextManager[object]:
    if name is None:
        return contextlib.nullcontext()
    module, _, function = str(name).partition(":")
    made: AbstractContextManager[object] = getattr(importlib.import_module(module), function)()
    return made


def main() -> None:
    """Answers the one request on the channel."""
    channel = Channel(int(sys.argv[1]))
    assert isinstance(channel.request, dict)
    channel.stage(f"running {Path(str(channel.request['script'])).name}")
    channel.result(run(channel.request))


if __name__ == "__main__":
    main()
