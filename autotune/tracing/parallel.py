"""Traces half of the checkpointing forms in a fork, where there are processors for both halves."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.configuration import Checkpointing
from autotune.cost.memory.trace import TracedWorkload, Untraced
from autotune.tracing.request import TraceRequest
from autotune.tracing.trace import trace
from autotune.workload.loaded import LoadedWorkload
from probes.lifetime import die_with_parent
from probes.memory import read_num_cores


def trace_in_halves(
    workload: LoadedWorkload, request: TraceRequest, scratch: Path, mode: FakeTensorMode
) -> TracedWorkload:
    """As `trace`; this process has run no backward pass, so that a fork of it may.

    Args:
        workload: Loaded, on real or on fake weights; not usable afterwards.
        request: What to trace.
        scratch: A directory for what training libraries insist on writing.
        mode: Of the fake tensors.
    """
    forms = request.forms
    if len(forms) < 2 or read_num_cores() < 2 or not sys.platform.startswith("linux"):
        return trace(workload, request, scratch, mode)
    mine = replace(request, forms=forms[::2])
    others = replace(request, forms=forms[1::2], with_evaluation=False)
    with tempfile.TemporaryDirectory(prefix="half-", dir=scratch) as directory:
        file = Path(directory) / "trace"
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                die_with_parent(parent)
                file.write_bytes(pickle.dumps(trace(workload, others, Path(directory), mode)))
                code = 0
            except BaseException:  # noqa: BLE001  (its last words; the parent does its part)
                traceback.print_exc()
            finally:
                os._exit(code)
        found = trace(workload, mine, scratch, mode)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            return replace(found, untraced=(*found.untraced, *map(_lost, others.forms)))
        rest: TracedWorkload = pickle.loads(file.read_bytes())
    return _joined(found, rest, forms)


def _lost(form: Checkpointing) -> Untraced:
    return Untraced(
        what=str(form), checkpointing=form, reason="the process that traced it was ended"
    )


def _joined(
    found: TracedWorkload, rest: TracedWorkload, forms: tuple[Checkpointing, ...]
) -> TracedWorkload:
    facts, others = found.facts, rest.facts
    attention = tuple(sorted({*facts.attention, *others.attention}))
    steps = (*found.steps, *rest.steps)
    return TracedWorkload(
        facts=replace(
            facts if found.steps else others,
            attention=attention,
            seconds=max(facts.seconds, others.seconds),
        ),
        steps=tuple(sorted(steps, key=lambda step: forms.index(step.checkpointing))),
        evaluation=found.evaluation,
        untraced=(*found.untraced, *rest.untraced),
    )
