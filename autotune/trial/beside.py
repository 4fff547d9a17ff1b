"""Work on a worker's loaded workload in a fork that goes on while the worker answers commands.

The fork never measures and is never measured beside: whoever starts it waits for its end before
anything is timed.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.outcome import Failed, OutOfMemory
from autotune.trial.channel import Channel
from autotune.trial.failure import outcome_of_exit
from autotune.trial.logs import end_of, tail
from autotune.trial.process import redirected_output, scratch_directory
from autotune.trial.protocol import AwaitBeside, BesideEnded, StartBeside
from probes.kills import KillWatch
from probes.lifetime import die_with_parent

if TYPE_CHECKING:
    from autotune.workload.loaded import LoadedWorkload

_DONE = 86
"""Exit code of a fork that did its work; a job may end its process with 0 or any other."""
_POLL_S = 0.02


class Beside:
    """The one fork of a worker that works beside it.

    Args:
        channel: To the engine; the fork ends with it.
        scratch: Below it training libraries may write.
    """

    def __init__(self, channel: Channel, scratch: str) -> None:
        self._channel = channel
        self._scratch = scratch
        self._process: int | None = None
        self._log: Path | None = None
        self._log_start = 0
        self._kills = KillWatch()

    def start(self, command: StartBeside, workload: LoadedWorkload, log: Path | None) -> None:
        """Starts the work; the workload of this process stays as it is."""
        self._log, self._log_start = log, end_of(log)
        self._kills = KillWatch()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                die_with_parent(parent)
                with redirected_output(log):
                    try:
                        import torch

                        # The other cores are left to the commands beside it.
                        torch.set_num_threads(1)
                        run = importlib.import_module(command.module).run
                        with scratch_directory(self._scratch) as directory:
                            run(workload, command.document, directory)
                        code = _DONE
                    except BaseException:  # noqa: BLE001  (its last words, for the log)
                        traceback.print_exc()
            finally:
                # No clean-up of what the parent still owns: exit handlers, buffers, threads.
                os._exit(code)
        self._process = child

    def wait(self, command: AwaitBeside) -> BesideEnded | OutOfMemory | Failed:
        """Waits for the end of the work, and ends it when its time is over."""
        child = self._process
        if child is None:
            return Failed(cause="The process that was at work is gone.")
        self._process = None
        deadline_s = time.monotonic() + command.time_limit_s
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                if code == _DONE:
                    return BesideEnded()
                said = tail(self._log, self._log_start)
                return outcome_of_exit(code, said, sign=self._kills.sign())
            if time.monotonic() > deadline_s:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return Failed(cause=f"It took longer than {command.time_limit_s:g} s.")
            readable, _, _ = select.select([self._channel.fileno()], [], [], _POLL_S)
            if readable and self._channel.is_closed():
                os.kill(child, signal.SIGKILL)
                os._exit(0)
