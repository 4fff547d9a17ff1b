"""The child process in which trials run: loads the workload once, then takes commands.

On a CPU every measurement happens in a fork of this process, which has run no forward or backward
pass itself, so that each one starts from the same weights, the same random state and an untouched
heap. On a device, where a fork is not possible, measurements happen in the process itself and the
engine replaces it when it is no longer clean.

Run as `python -m autotune.trial.worker FD OPTIONS`, where FD is the channel's file descriptor.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.trial.answers import Answers
from autotune.trial.beside import Beside
from autotune.trial.channel import Channel
from autotune.trial.failure import outcome_of, outcome_of_exit
from autotune.trial.logs import end_of, tail
from autotune.trial.options import WorkerOptions
from autotune.trial.process import descriptor_of, redirected_output
from autotune.trial.protocol import (
    AwaitBeside,
    BesideStarted,
    CannotLoad,
    Envelope,
    OpenSpeed,
    Ready,
    Reply,
    StartBeside,
)
from probes.kills import KillWatch
from probes.lifetime import die_with_parent

_ANSWERED = 86
"""Exit code of a fork that has sent its reply; a job may end its process with 0 or any other."""
LEAK_BYTES = 64 * 2**20
"""Device memory that may stay behind after a command, such as workspaces of libraries."""


class Worker:
    """Takes commands until the channel closes."""

    def __init__(self, channel: Channel, options: WorkerOptions) -> None:
        self.channel = channel
        self.options = options
        self.answers = Answers(options, channel.send)
        self._idle_bytes: int | None = None
        self._beside = Beside(channel, options.scratch)

    def load(self) -> None:
        """Imports, loads the workload and says so, or says why it cannot."""
        start_s = time.perf_counter()
        import torch

        self.answers.num_threads = torch.get_num_threads()
        # One thread keeps OpenMP from starting a pool here, which a fork would not inherit.
        torch.set_num_threads(1)
        import accelerate  # noqa: F401  (part of the level after imports)
        import datasets  # noqa: F401
        from transformers import Trainer  # noqa: F401

        from autotune.trial import stepper  # noqa: F401  (paid once, before forks)
        from autotune.trial.device import current_device, resident_bytes
        from autotune.trial.readings import checks, meter  # noqa: F401
        from autotune.workload.load import load
        from autotune.workload.spec import workload_adapter

        self.answers.level_bytes = resident_bytes()
        try:
            self.answers.workload = load(
                workload_adapter().validate_python(self.options.spec),
                Path(self.options.scratch),
                Path(self.options.working_directory),
            )
        except AutotuneError as error:
            self.channel.send(CannotLoad.of(error))
            raise SystemExit(0) from error
        except Exception as error:  # noqa: BLE001  (the engine is told, whatever it is)
            traceback.print_exc()
            self.channel.send(outcome_of(error))
            raise SystemExit(1) from None
        if self.options.isolation == "inline":
            torch.set_num_threads(self.answers.num_threads)
        self.channel.send(
            Ready(
                facts=self.answers.workload.facts,
                process=os.getpid(),
                load_s=time.perf_counter() - start_s,
                level_bytes=self.answers.level_bytes,
                device=str(current_device()),
            )
        )

    def serve(self) -> None:
        """Answers commands one after another."""
        while (envelope := self.channel.receive()) is not None:
            command = envelope.body
            log = Path(envelope.log) if envelope.log is not None else None
            is_inline = self.options.isolation == "inline"
            if isinstance(command, StartBeside):
                self.channel.send(self._start_beside(command, log))
            elif isinstance(command, AwaitBeside):
                self.channel.send(self._beside.wait(command))
            elif is_inline or self.answers.is_in_session or isinstance(command, OpenSpeed):
                with redirected_output(log):
                    reply = self.answer(envelope)
                    is_last = is_inline and self._keeps_memory()
                    self.channel.send(reply, is_last=is_last)
                if is_last:
                    return
            else:
                self._answer_in_fork(envelope, log)

    def _start_beside(self, command: StartBeside, log: Path | None) -> Reply:
        assert self.answers.workload is not None, "load() comes first"
        try:
            self._beside.start(command, self.answers.workload, log)
        except OSError as error:
            return outcome_of(error)
        return BesideStarted()

    def _answer_in_fork(self, envelope: Envelope, log: Path | None) -> None:
        parent, start, kills = os.getpid(), end_of(log), KillWatch()
        try:
            child = os.fork()
        except OSError as error:
            # No memory for another process, or no room for one: this one goes on.
            self.channel.send(outcome_of(error))
            return
        if child == 0:
            code = 1
            try:
                die_with_parent(parent)
                with redirected_output(log):
                    try:
                        import torch

                        torch.set_num_threads(self.answers.num_threads)
                        self.channel.send(self.answer(envelope))
                        code = _ANSWERED
                    except BaseException:  # noqa: BLE001  (its last words, for the log)
                        traceback.print_exc()
            finally:
                # No clean-up of what the parent still owns: exit handlers, buffers, threads.
                os._exit(code)
        status = self._wait(child)
        if status != _ANSWERED:
            self.channel.send(outcome_of_exit(status, tail(log, start), sign=kills.sign()))

    def _wait(self, child: int) -> int:
        """Waits for a child; ends it, and this process, when the engine goes away."""
        descriptor = descriptor_of(child)
        watched = [self.channel.fileno(), *([descriptor] if descriptor is not None else [])]
        try:
            while True:
                ready, _, _ = select.select(
                    watched, [], [], None if descriptor is not None else 0.05
                )
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    return os.waitstatus_to_exitcode(status)
                if self.channel.fileno() in ready:
                    if self.channel.is_closed():
                        os.kill(child, signal.SIGKILL)
                        os.waitpid(child, 0)
                        os._exit(0)
                    # The child has answered and the next command waits already.
                    watched.remove(self.channel.fileno())
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def answer(self, envelope: Envelope) -> Reply:
        """Carries a command out; a fault of the trial becomes its outcome."""
        return self.answers.to(envelope)

    def _keeps_memory(self) -> bool:
        """Whether a command has left memory behind on the device, beyond what the first one did."""
        from autotune.trial.device import allocated_bytes, current_device

        if self.answers.is_in_session:
            return False
        gc.collect()
        idle_bytes = allocated_bytes(current_device())
        if self._idle_bytes is None:
            self._idle_bytes = idle_bytes
        return idle_bytes > self._idle_bytes + LEAK_BYTES


def main() -> None:
    """Entry point of the child process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    channel = Channel(int(sys.argv[1]))
    worker = Worker(channel, WorkerOptions(**json.loads(sys.argv[2])))
    worker.load()
    worker.serve()
    channel.close()


if __name__ == "__main__":
    main()
