"""What is asked of a trace."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache

from pydantic import TypeAdapter

from autotune.configuration import NO_CHECKPOINTING, Checkpointing
from autotune.request import Driver
from autotune.space import EVERY_N_LAYERS
from autotune.workload.spec import Workload

ALL_FORMS = (NO_CHECKPOINTING, *(Checkpointing(every_n_layers=n) for n in EVERY_N_LAYERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The device that a trace stands for; it need not be here."""

    kind: str = "cpu"
    """torch's name of the kind: cpu, cuda, xpu, mps."""
    capability: tuple[int, int] | None = None
    """Of a CUDA device, such as (8, 9); None is taken to be (8, 0) or later."""
    num_threads: int = 1
    """That a CPU computes with, each of which works in memory of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """What is traced, and for which device.

    A spec that names no dataset is traced on made-up samples of `max_length` tokens (None: what
    model and task suggest), without padding; no tokenizer is needed then.
    """

    workload: Workload
    target: Target = Target()
    forms: tuple[Checkpointing, ...] = ALL_FORMS
    """Checkpointing forms to trace; one that the model does not have is reported as untraced."""
    driver: Driver = "trainer"
    repair_loss: bool = False
    """Whether loss parity needs `model_accepts_loss_kwargs = False`."""
    with_evaluation: bool = True
    folds_layers: bool = True
    """Whether equal layers are traced through a few of them, where that tells the same."""
    is_padded: bool | None = None
    """Whether batches hold padding; None asks the data."""
    working_directory: str = field(default_factory=os.getcwd)
    """What relative paths of the workload are relative to."""


@cache
def request_adapter() -> TypeAdapter[TraceRequest]:
    """The codec between requests and JSON."""
    return TypeAdapter(TraceRequest)
