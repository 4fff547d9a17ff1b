"""Asks for a trace: from the cache, or of a child process that comes and goes with the call."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from autotune.cost.memory import codec
from autotune.cost.memory.trace import TracedWorkload
from autotune.errors import ERRORS_BY_NAME, AutotuneError
from autotune.tracing import store
from autotune.tracing.child import TRACED
from autotune.tracing.request import TraceRequest, request_adapter
from autotune.workload.resolve import resolve, resolve_model
from autotune.workload.spec import WorkloadSpec
from probes.child import run_module

TIME_LIMIT_S = 300.0


class TracingFailedError(AutotuneError):
    """The process that traced a step ended without an answer."""


def trace_workload(
    request: TraceRequest,
    *,
    scratch: Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    cache: Path | None = None,
) -> TracedWorkload:
    """What a training step of the workload holds in memory, without running it.

    What cannot be traced stands in `untraced` of the result, with the reason.

    Args:
        request: What to trace, and for which device.
        scratch: A directory of the run for prepared data; None takes one that is gone afterwards.
        time_limit_s: After this the child is ended.
        cache: Where traces are kept; None is the user's cache.

    Raises:
        UsageError: A choice that no model could follow.
        WorkloadError: The model, the data or a column is missing, or does not fit the task.
        TracingFailedError: The child was ended or broke.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-trace-") as directory:
        place = (scratch or Path(directory)).absolute()
        request = _resolved(request, place)
        cache = cache or store.default_directory()
        key = store.key_of(request)
        traced = store.load(key, cache)
        if traced is None:
            text = _ask(request, place, time_limit_s)
            traced = codec.from_json(json.loads(text))
            store.save(key, text, cache)
        return traced


def _resolved(request: TraceRequest, scratch: Path) -> TraceRequest:
    workload, place = request.workload, Path(request.working_directory)
    if isinstance(workload, WorkloadSpec) and workload.dataset is None and not workload.demo:
        return replace(request, workload=resolve_model(workload, place))
    return replace(request, workload=resolve(workload, scratch, place))


def _ask(request: TraceRequest, scratch: Path, time_limit_s: float) -> str:
    """The trace as the text of its JSON document."""
    result = run_module(
        "autotune.tracing.child",
        [request_adapter().dump_json(request).decode(), str(scratch)],
        time_limit_s=time_limit_s,
    )
    if result.is_timed_out:
        raise TracingFailedError(
            f"Tracing a training step took longer than {time_limit_s:.0f} s.",
            "Trace fewer checkpointing forms, or measure: autotune tune.",
        )
    if result.lines[:1] == (TRACED,) and len(result.lines) > 1:
        return result.lines[1]
    if result.lines and result.lines[0] != TRACED:
        answer = json.loads(result.lines[0])
        raise ERRORS_BY_NAME.get(answer["error"], AutotuneError)(answer["cause"], answer["remedy"])
    how = "was killed" if result.was_killed else f"ended with code {result.returncode}"
    said = f" It last said: {result.last_error}" if result.last_error else ""
    raise TracingFailedError(
        f"The process that traces a training step {how}.{said}",
        "Free memory on this machine, or measure instead: autotune tune.",
    )
