"""Keeps one warm worker, and makes fresh ones where a result must not depend on what ran before."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.outcome import Stopped, TimedOut
from autotune.run_directory import RunDirectory
from autotune.trial.client import Worker, WorkerDiedError
from autotune.trial.protocol import Command, Progress, Ready, Reply
from autotune.trial.worker import WorkerOptions

LOAD_LIMIT_S = 600.0
"""Time limit for loading a workload; hubs and large models take minutes."""
FIRST_FORK_LIMIT_S = 120.0
"""A first forward pass in a fork that takes longer than this hangs on inherited threads."""


class WorkerPool:
    """Hands out workers that are clean.

    Args:
        run: Whose logs and scratch space they use.
        options: What they load.
        environment: The whole environment of every worker.
        should_stop: A text when workers must end, and why.
    """

    def __init__(
        self,
        run: RunDirectory,
        options: WorkerOptions,
        environment: Mapping[str, str],
        should_stop: Callable[[], str | None],
    ) -> None:
        self._run = run
        self._options = options
        self._environment = dict(environment)
        self._should_stop = should_stop
        self._warm: Worker | None = None
        self._device = "cpu"
        self.num_cold_starts = 0
        self.cold_start_s = 0.0
        """Wall time of the slowest cold start."""

    @property
    def is_on_device(self) -> bool:
        """Whether trials run on an accelerator, as the last worker that loaded has found out."""
        return self._device != "cpu"

    @property
    def options(self) -> WorkerOptions:
        """What the next worker will load."""
        return self._options

    def change(self, **changes: object) -> None:
        """Changes options of all workers to come; a warm one is ended."""
        self._options = dataclasses.replace(self._options, **changes)  # type: ignore[arg-type]
        self.close()

    def launch(self) -> Worker:
        """Starts a new worker that nothing has been asked of; the caller closes it."""
        Path(self._options.scratch).mkdir(parents=True, exist_ok=True)
        return Worker(self._options, self._environment, self._run.path / "worker.log")

    def fresh(self) -> Worker | Stopped:
        """A new worker, loaded and never used; the caller closes it.

        Raises:
            AutotuneError: The workload cannot be loaded.
        """
        return self.load(self.launch())

    def load(self, worker: Worker) -> Worker | Stopped:
        """Waits until a launched worker has loaded the workload.

        What has been loaded before and is now cut short is loaded once more by another worker.

        Raises:
            AutotuneError: The workload cannot be loaded; the worker is closed.
        """
        try:
            return self._load(worker)
        except WorkerDiedError:
            if not self.num_cold_starts:
                raise
            return self._load(self.launch())

    def _load(self, worker: Worker) -> Worker | Stopped:
        start_s = time.perf_counter()
        try:
            ready = worker.wait_ready(time_limit_s=LOAD_LIMIT_S, should_stop=self._should_stop)
        except BaseException:
            worker.close()
            raise
        if isinstance(ready, Stopped):
            return ready
        self.num_cold_starts += 1
        self.cold_start_s = max(self.cold_start_s, time.perf_counter() - start_s)
        self._device = ready.device
        return worker

    def warm(self) -> Worker | Stopped:
        """The worker for the next command, replaced if the last one left it unclean.

        Raises:
            AutotuneError: The workload cannot be loaded.
        """
        if self._warm is not None and self._warm.is_alive:
            return self._warm
        self.close()
        worker = self.fresh()
        if isinstance(worker, Stopped):
            return worker
        self._warm = worker
        return worker

    def ready(self) -> Ready | Stopped:
        """What the workload's loading found out."""
        worker = self.warm()
        if isinstance(worker, Stopped):
            return worker
        if worker.ready is None:
            raise WorkerDiedError("The worker answered nothing.")
        return worker.ready

    def ask(
        self,
        command: Command,
        *,
        log: Path,
        time_limit_s: float,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], str | None] | None = None,
    ) -> Reply | TimedOut | Stopped:
        """Gives a command to the warm worker; after a fault in the process itself it is ended."""
        worker = self.warm()
        if isinstance(worker, Stopped):
            return worker
        is_first = not worker.is_used and self._options.isolation == "fork"
        reply = worker.ask(
            command,
            log=log,
            time_limit_s=min(time_limit_s, FIRST_FORK_LIMIT_S) if is_first else time_limit_s,
            on_progress=on_progress,
            should_stop=should_stop or self._should_stop,
        )
        if is_first and isinstance(reply, TimedOut) and time_limit_s > FIRST_FORK_LIMIT_S:
            # Some library left threads behind that a fork does not inherit: start afresh instead.
            self.change(isolation="inline")
            return self.ask(
                command,
                log=log,
                time_limit_s=time_limit_s,
                on_progress=on_progress,
                should_stop=should_stop,
            )
        if self._options.isolation == "inline" and reply.kind in ("out_of_memory", "failed"):
            self.close()
        return reply

    def close(self) -> None:
        """Ends the warm worker."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None


RECORDED_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "GOMP_SPINCOUNT",
    "MALLOC_ARENA_MAX",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "LD_PRELOAD",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "CUDA_DEVICE_ORDER",
    "ACCELERATE_MIXED_PRECISION",
)
"""Variables that change speed or memory: recorded, shown and exported where they are set."""


def trial_environment(num_threads: int) -> dict[str, str]:
    """The variables that trials run under and that an exported launch command repeats.

    Args:
        num_threads: Threads to compute with where the user has not chosen a number.
    """
    recorded = {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ}
    recorded.setdefault("OMP_NUM_THREADS", str(num_threads))
    return recorded
