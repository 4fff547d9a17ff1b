"""Keeps one warm worker, and makes fresh ones where a result must not depend on what ran before."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.outcome import Stopped, TimedOut
from autotune.run_directory import RunDirectory
from autotune.trial.client import Worker, WorkerDiedError
from autotune.trial.environment import shared
from autotune.trial.options import WorkerOptions
from autotune.trial.protocol import (
    AwaitBeside,
    Command,
    MeasureGradients,
    MeasureLink,
    MeasureMemory,
    MeasureSpeed,
    OpenSpeed,
    Progress,
    Ready,
    Reply,
    StartBeside,
)
from autotune.trial.ranks.group import NodeLostError, RankGroup, RanksMissingError
from probes.ranks.launch import Ranks

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
        num_nodes: Machines that several ranks are spread over.
        meeting: Where their agents wait, if there is more than one.
        alone: One rank stands for all, whatever a configuration says.
    """

    def __init__(
        self,
        run: RunDirectory,
        options: WorkerOptions,
        environment: Mapping[str, str],
        should_stop: Callable[[], str | None],
        *,
        num_nodes: int = 1,
        meeting: str | None = None,
        alone: bool = False,
    ) -> None:
        self._run = run
        self._options = options
        self._environment = dict(environment)
        self._should_stop = should_stop
        self._num_nodes = num_nodes
        self._meeting = meeting
        self._alone = alone
        self._warm: Worker | None = None
        self._warm_ranks = 1
        self._lost_node: str | None = None
        """What was said of a machine that is gone."""
        self._device = "cpu"
        self._forks_work = False
        """Whether a fork has got as far as an answer or a fault of its own."""
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

    def num_local_ranks(self, num_ranks: int) -> int:
        """How many of so many ranks share a machine."""
        return max(1, num_ranks // self._num_nodes)

    def check_nodes(self) -> None:
        """Checks that no machine was lost on which ranks ran.

        Raises:
            NodeLostError: One was; its agent is gone, so that no ranks can be started there.
        """
        if self._lost_node is not None:
            raise NodeLostError(self._lost_node)

    def _note_lost_node(self, what: str) -> None:
        self._lost_node = what

    def launch(self, num_ranks: int = 1) -> Worker:
        """Starts a new worker that nothing has been asked of; the caller closes it.

        Raises:
            NodeLostError: A machine is gone that it would need.
        """
        Path(self._options.scratch).mkdir(parents=True, exist_ok=True)
        log = self._run.path / "worker.log"
        if num_ranks == 1 or self._alone:
            return Worker(self._options, self._environment, log)
        self.check_nodes()
        ranks = Ranks(num_processes=num_ranks, num_nodes=self._num_nodes, meeting=self._meeting)
        environment = shared(self._environment, self.num_local_ranks(num_ranks))
        return RankGroup(self._options, environment, log, ranks, self._note_lost_node)

    def fresh(self, num_ranks: int = 1) -> Worker | Stopped:
        """A new worker, loaded and never used; the caller closes it.

        Raises:
            AutotuneError: The workload cannot be loaded.
        """
        return self.load(self.launch(num_ranks), num_ranks)

    def load(self, worker: Worker, num_ranks: int = 1) -> Worker | Stopped:
        """Waits until a launched worker has loaded the workload.

        What has been loaded before and is now cut short is loaded once more by another worker.

        Raises:
            AutotuneError: The workload cannot be loaded; the worker is closed.
        """
        try:
            return self._load(worker)
        except WorkerDiedError as error:
            # Machines that did not come together were waited for long enough.
            is_apart = isinstance(error, RanksMissingError) and self._num_nodes > 1
            if is_apart or not self.num_cold_starts:
                raise
            return self._load(self.launch(num_ranks))

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

    def warm(self, num_ranks: int = 1) -> Worker | Stopped:
        """The worker for the next command, replaced if the last one left it unclean.

        One for another number of ranks is ended first: it holds memory that is needed now.

        Raises:
            AutotuneError: The workload cannot be loaded.
        """
        if self._warm is not None and self._warm.is_alive and self._warm_ranks == num_ranks:
            return self._warm
        self.close()
        worker = self.fresh(num_ranks)
        if isinstance(worker, Stopped):
            return worker
        self._warm, self._warm_ranks = worker, num_ranks
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
        worker = self.warm(1 if self._alone else ranks_of(command))
        if isinstance(worker, Stopped):
            return worker
        is_beside = isinstance(command, StartBeside | AwaitBeside)
        is_fork = self._options.isolation == "fork" and not is_beside
        is_first = is_fork and not worker.is_used and not self._forks_work
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
        if is_fork and not isinstance(reply, TimedOut | Stopped):
            self._forks_work = True
        is_unclean = self._options.isolation == "inline" and not is_beside
        if is_unclean and reply.kind in ("out_of_memory", "failed"):
            self.close()
        return reply

    def close(self) -> None:
        """Ends the warm worker."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None


def ranks_of(command: Command) -> int:
    """How many ranks a command is for; what is not a measurement is asked of one."""
    if isinstance(command, MeasureMemory | MeasureSpeed | MeasureGradients | OpenSpeed):
        return command.configuration.world_size
    return command.num_ranks if isinstance(command, MeasureLink) else 1
