"""What a run was asked to do, as `request.json` in its directory holds it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pydantic import TypeAdapter, ValidationError

from autotune.errors import JournalError
from autotune.goal import Budget, Goal
from autotune.run_directory import RunDirectory, unwritable, write_atomically
from autotune.storage_url import without_password
from autotune.workload.spec import Workload, WorkloadSpec

Driver: TypeAlias = Literal["trainer", "accelerate"]
"""Whose training loop the trials run."""
SamplerName: TypeAlias = Literal["auto", "tpe", "gp", "random", "grid"]
"""auto is our deterministic order; the others are Optuna's samplers."""


SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything the engine needs to know from its caller."""

    workload: Workload
    goal: Goal = Goal()
    budget: Budget = Budget()
    baseline_micro_batch_size: int | None = None
    """The user's present micro-batch size; None is the default baseline."""
    sampler: SamplerName = "auto"
    driver: Driver = "trainer"
    processes: int = 1
    local_sgd: str = "auto"
    """auto, off or a number of optimizer steps."""
    total_steps: int | None = None
    """Optimizer steps of the training to come, where the user said so."""
    seed: int = 0
    """Seed of the sampler; the workload has its own."""
    storage: str | None = None
    """An Optuna storage URL, in memory with its password; None keeps the study in the run
    directory."""
    out: str | None = None
    """Where to export; None is `out` in the run directory."""
    force: bool = False
    """Overwrite exported files of another run."""
    with_one_process: bool = True
    """Whether one process alone may be recommended where several are asked for."""
    alone: bool = False
    """Whether one rank stands for all of them in the trials, since no others can be started."""
    num_nodes: int = 1
    """Machines that the ranks are spread over."""
    meeting: str | None = None
    """Where the agents of several machines wait."""
    least_device_bytes: int | None = None
    """Memory of the smallest device of several machines, which decides for every rank."""
    parent_process: int | None = None
    """A calling process without which the engine must not go on."""
    working_directory: str = field(default_factory=os.getcwd)
    """What relative paths of the workload are relative to."""

    @property
    def spec(self) -> WorkloadSpec:
        """The workload as names and options.

        Raises:
            ValueError: It is live objects.
        """
        if not isinstance(self.workload, WorkloadSpec):
            raise ValueError("the workload is live objects")
        return self.workload


@cache
def request_adapter() -> TypeAdapter[Request]:
    """The codec between requests and JSON."""
    return TypeAdapter(Request)


def public(request: Request) -> Request:
    """The request as it may be written down: its storage has no password."""
    if request.storage is None:
        return request
    return replace(request, storage=without_password(request.storage))


def save(request: Request, run: RunDirectory) -> None:
    """Writes the request into its run directory.

    Raises:
        UsageError: It cannot be written.
    """
    text = request_adapter().dump_json(public(request), indent=2).decode()
    try:
        write_atomically(run.request, text + "\n", mode=0o600)
    except OSError as error:
        raise unwritable(run.path, error) from error


def load(run: RunDirectory) -> Request:
    """Reads the request of a run.

    Raises:
        JournalError: The file is missing or damaged.
    """
    try:
        return request_adapter().validate_json(Path(run.request).read_bytes())
    except (OSError, ValidationError) as error:
        raise JournalError(
            f"{run.request} cannot be read: {type(error).__name__}.",
            "Start a new run; the journal beside it stays as it is.",
        ) from error
