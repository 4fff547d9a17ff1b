"""The engine's side of several ranks: started by PyTorch's launcher, asked as if they were one."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from autotune.errors import ExitCode
from autotune.outcome import Failed, OutOfMemory, Stopped, TimedOut
from autotune.trial.client import POLL_S, Worker, WorkerDiedError
from autotune.trial.failure import outcome_of_exit
from autotune.trial.logs import tail
from autotune.trial.options import WorkerOptions
from autotune.trial.protocol import Command, Progress, Ready, Reply
from autotune.trial.ranks.agreement import is_reading
from autotune.trial.ranks.supervisor import LOAD_LIMIT_S
from probes.errors import NODES_FAILED, NOT_FOR_MEMORY, RANK_KILLED
from probes.kills import MemorySign
from probes.ranks.calling import REMEDY
from probes.ranks.launch import Ranks, rank_command

GRACE_S = 30.0
"""What the ranks get beyond a command's time limit to agree on what came out."""


class RanksMissingError(WorkerDiedError):
    """The ranks could not be brought together."""

    exit_code = ExitCode.DEVICE


class NodeLostError(RanksMissingError):
    """A machine that ranks ran on is gone."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"A node of this run is gone. {what}",
            "Start the same command with --resume again on every node: finished trials are kept.",
        )


class RankGroup(Worker):
    """Worker processes on several ranks behind one channel, that of rank 0.

    Args:
        options: What every rank loads and how it isolates measurements.
        environment: The whole environment of every rank.
        log: File for what the ranks of this machine print outside of trials.
        ranks: How many, and where.
        on_node_lost: Is told in words that a machine was lost which ranks ran on.

    A rank that reaches a command's time limit is ended by its own supervisor, and the group lives
    on: what was ended loads the workload again before the next command's time begins.
    """

    grace_s = GRACE_S

    def __init__(
        self,
        options: WorkerOptions,
        environment: Mapping[str, str],
        log: Path,
        ranks: Ranks,
        on_node_lost: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._ranks = ranks
        self._on_node_lost = on_node_lost
        # Short, since the name of such a socket must be; nobody else may enter.
        self._directory = Path(tempfile.mkdtemp(prefix="autotune-"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._is_connected = False
        try:
            super().__init__(options, environment, log)
        except BaseException:
            self._remove()
            raise

    def _start(
        self, options: WorkerOptions, environment: Mapping[str, str], output: BinaryIO
    ) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        address = self._directory / "channel"
        self._listener.bind(str(address))
        self._listener.listen(1)
        process = subprocess.Popen(
            rank_command(
                "autotune.trial.ranks.supervisor",
                [str(address), json.dumps(asdict(options)), str(Path(output.name).absolute())],
                self._ranks,
            ),
            env=dict(environment),
            cwd=options.working_directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        return self._listener, process

    def wait_ready(
        self, *, time_limit_s: float, should_stop: Callable[[], str | None] = lambda: None
    ) -> Ready | Stopped:
        """Waits until the ranks have found each other and all have loaded the workload.

        Raises:
            AutotuneError: They cannot load it, or loaded different jobs.
            WorkerDiedError: A rank ended, or they did not meet in time.
        """
        deadline_s = time.monotonic() + time_limit_s
        while not self._is_connected:
            reason = should_stop()
            if reason is not None:
                self.close()
                return Stopped(cause=reason)
            if not self.is_alive:
                failed = self._death()
                raise RanksMissingError(
                    f"The {self._ranks.num_processes} ranks could not be started. {failed.cause}",
                    f"Their log is {self._log}.",
                )
            if time.monotonic() > deadline_s:
                self.close()
                raise RanksMissingError(
                    f"The {self._ranks.num_processes} ranks did not meet within "
                    f"{time_limit_s:.0f} s.",
                    f"Their log is {self._log}.",
                )
            with contextlib.suppress(BlockingIOError):
                self._socket, _ = self._listener.accept()
                self._socket.setblocking(False)
                self._is_connected = True
                break
            time.sleep(POLL_S)
        return super().wait_ready(
            time_limit_s=max(1.0, deadline_s - time.monotonic()), should_stop=should_stop
        )

    def ask(
        self,
        command: Command,
        *,
        log: Path | None,
        time_limit_s: float,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], str | None] = lambda: None,
        meeting: str | None = None,
    ) -> Reply | TimedOut | Stopped:
        """Gives a command to all ranks and waits for what they agree on."""
        reply = super().ask(
            command,
            log=log,
            time_limit_s=time_limit_s,
            on_progress=on_progress,
            should_stop=should_stop,
            meeting=meeting,
        )
        # Where something went wrong, workers were ended and have to load again.
        self.grace_s = GRACE_S + (0.0 if is_reading(reply) else LOAD_LIMIT_S)
        return reply

    def _death(self) -> OutOfMemory | Failed:
        ended = super()._death()
        if self._process.returncode == NODES_FAILED and self._is_connected and self._is_spread:
            # The launcher's own word comes last: what ranks say is that they lost each other.
            what = self._last_line().removesuffix(REMEDY).strip()
            self._on_node_lost(what)
            return Failed(cause=what, remedy=REMEDY)
        if self._process.returncode == RANK_KILLED:
            # Told by the launcher on the machine where it happened.
            sign: MemorySign = "none" if NOT_FOR_MEMORY in self._last_line() else "unknown"
            return outcome_of_exit(-signal.SIGKILL, sign=sign)
        return ended

    def _last_line(self) -> str:
        lines = tail(*self._printed[0]).strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def _is_spread(self) -> bool:
        return self._ranks.num_nodes > 1

    def close(self) -> None:
        """Ends every rank and reaps the launcher."""
        super().close()
        self._remove()

    def _remove(self) -> None:
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)
