"""Runs an exported script again, unchanged and in fresh processes, and times its steps."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from autotune.errors import DeviceError, ExportError
from autotune.export.child import ask, log_at
from autotune.request import Driver

_CHILD = "autotune.export.running.measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTiming:
    """What was seen of a script from outside."""

    step_times_s: tuple[float, ...]
    """Wall time of each optimizer step, data loading included, on the rank that took longest; the
    first is a warm-up, counted from its first forward pass."""
    step_rows: tuple[int, ...]
    """Samples that each step trained on, over all ranks."""
    losses: tuple[float, ...]
    """Loss of each step, the mean over the ranks."""
    extra: dict[str, JsonValue]
    """What the hook found on the first rank; empty without one."""
    world_size: int = 1
    """Ranks that trained together."""


def measure_script(
    script: Path,
    *,
    num_steps: int,
    environment: Mapping[str, str],
    driver: Driver,
    time_limit_s: float,
    num_ranks: int = 1,
    device_type: str = "cpu",
    log: Path | None = None,
    hook: str | None = None,
) -> ScriptTiming:
    """Runs a script for some optimizer steps and returns what each took.

    Model and checkpoints go to a temporary directory that is gone afterwards.

    Args:
        script: `trainer.py` or `accelerator.py`, wherever it stands.
        num_steps: Optimizer steps, warm-up included.
        environment: Variables on top of this process's own: those of the launch command.
        driver: Whose loop the script is, which decides its flags.
        time_limit_s: After this the processes are ended.
        num_ranks: Ranks to start, by PyTorch's launcher where they are several; the script has to
            train on all of them.
        device_type: torch's name of the kind of device that each rank needs one of.
        log: Takes what the script prints; None is a temporary file, kept where it fails.
        hook: `module:function` of a context manager that is entered on every rank before the
            script runs; a dictionary that it yields comes back as `extra`.

    Raises:
        ExportError: The script is not there, failed, trained on another number of ranks, or did
            not end in time.
        DeviceError: This machine has fewer devices than ranks.
    """
    if not script.is_file():
        raise ExportError(f"There is no {script}.", "Export the run again: autotune export RUN.")
    with (
        log_at(log, f"{script.stem}.log") as kept,
        # What the child started may still be writing when it is ended.
        tempfile.TemporaryDirectory(
            prefix="autotune-script-", ignore_cleanup_errors=True
        ) as output,
    ):
        request: JsonValue = {
            "script": str(script.absolute()),
            "num_steps": num_steps,
            "driver": driver,
            "output": output,
            "hook": hook,
            "num_ranks": num_ranks,
            "device_type": device_type,
        }
        answer = ask(_CHILD, request, environment=environment, log=kept, time_limit_s=time_limit_s)
        assert isinstance(answer, dict)
        if "num_devices" in answer:
            raise DeviceError(
                f"{script.name} trains on {num_ranks} {device_type} devices, and this machine has "
                f"{answer['num_devices']}.",
                "Run it where it was tuned.",
            )
        if "failure" in answer:
            raise ExportError(f"{script.name} failed: {answer['failure']}", f"Its log is {kept}.")
    return _timing().validate_python(answer)


def _timing() -> TypeAdapter[ScriptTiming]:
    return TypeAdapter(ScriptTiming)


def whole_rounds(num_steps: int, local_sgd_steps: int) -> int:
    """So many steps, rounded up to whole rounds of local SGD, so that averaging counts in full."""
    return -(-num_steps // local_sgd_steps) * local_sgd_steps


def spread_averaging(
    step_times_s: Sequence[float], local_sgd_steps: int, *, num_before: int
) -> tuple[float, ...]:
    """Times of steps with what averaging took spread over the steps of its round.

    Averaging after a step falls into the time of the next one. Left there, a few long steps would
    pass for noise.

    Args:
        step_times_s: Whole rounds, in their order.
        local_sgd_steps: Steps of a round; 1 changes nothing.
        num_before: Steps of the training before the first of these.
    """
    if local_sgd_steps == 1:
        return tuple(step_times_s)
    spread: list[float] = []
    for begin in range(0, len(step_times_s), local_sgd_steps):
        times_s = list(step_times_s[begin : begin + local_sgd_steps])
        after_averaging = -(num_before + begin) % local_sgd_steps
        others_s = times_s[:after_averaging] + times_s[after_averaging + 1 :]
        averaging_s = max(0.0, times_s[after_averaging] - statistics.median(others_s))
        times_s[after_averaging] -= averaging_s
        spread += [time_s + averaging_s / local_sgd_steps for time_s in times_s]
    return tuple(spread)
