"""The child process in which trials run: loads the workload once, then takes commands.

On a CPU every measurement happens in a fork of this process, which has run no forward or backward
pass itself, so that each one starts from the same weights, the same random state and an untouched
heap. On a device, where a fork is not possible, measurements happen in the process itself and the
engine replaces it when it is no longer clean.

Run as `python -m autotune.trial.worker FD OPTIONS`, where FD is the channel's file descriptor.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autotune.errors import AutotuneError, WorkloadError
from autotune.outcome import Failed
from autotune.trial.beside import Beside
from autotune.trial.channel import Channel
from autotune.trial.failure import outcome_of_exit
from autotune.trial.logs import end_of, tail
from autotune.trial.process import (
    descriptor_of,
    redirected_output,
    scratch_directory,
)
from autotune.trial.protocol import (
    AwaitBeside,
    BesideStarted,
    CannotLoad,
    CheckParity,
    Command,
    ContinueSpeed,
    Envelope,
    GradientsMeasured,
    MeasureGradients,
    MeasureLink,
    MeasureMemory,
    MeasureSpeed,
    MemoryMeasured,
    OpenSpeed,
    Ready,
    Reply,
    SpeedMeasured,
    StartBeside,
    TryCheckpointing,
)
from autotune.trial.ranks.place import ALONE, Company, Place, joined
from autotune.units import counted
from probes.kills import KillWatch
from probes.lifetime import die_with_parent

_ANSWERED = 86
"""Exit code of a fork that has sent its reply; a job may end its process with 0 or any other."""
LEAK_BYTES = 64 * 2**20
"""Device memory that may stay behind after a command, such as workspaces of libraries."""
COLLECTIVE_LIMIT_S = 600.0
"""How long ranks wait for each other where the command has no time limit of its own."""

if TYPE_CHECKING:
    from autotune.trial.readings.meter import SpeedSession
    from autotune.trial.stepper import Stepper
    from autotune.workload.loaded import LoadedWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the engine tells a worker at its start."""

    spec: dict[str, object]
    """The resolved workload, as JSON."""
    scratch: str
    working_directory: str
    driver: Literal["trainer", "accelerate"]
    isolation: Literal["fork", "inline"]
    others_bytes: int = 0
    """Device memory that other processes hold."""
    place: dict[str, object] | None = None
    """Of one of several ranks, as JSON; None measures alone."""


class Worker:
    """Takes commands until the channel closes."""

    def __init__(self, channel: Channel, options: WorkerOptions) -> None:
        self.channel = channel
        self.options = options
        self.workload: LoadedWorkload | None = None
        self.level_bytes = 0
        self.num_threads = 1
        self._place = Place(**options.place) if options.place is not None else None  # type: ignore[arg-type]
        self._session: SpeedSession | None = None
        self._idle_bytes: int | None = None
        self._beside = Beside(channel, options.scratch)

    def load(self) -> None:
        """Imports, loads the workload and says so, or says why it cannot."""
        start_s = time.perf_counter()
        import torch

        self.num_threads = torch.get_num_threads()
        # One thread keeps OpenMP from starting a pool here, which a fork would not inherit.
        torch.set_num_threads(1)
        import accelerate  # noqa: F401  (part of the level after imports)
        import datasets  # noqa: F401
        from transformers import Trainer  # noqa: F401

        from autotune.trial import stepper  # noqa: F401  (paid once, before forks)
        from autotune.trial.device import current_device, resident_bytes
        from autotune.trial.failure import outcome_of
        from autotune.trial.readings import checks, meter  # noqa: F401
        from autotune.workload.load import load
        from autotune.workload.spec import workload_adapter

        self.level_bytes = resident_bytes()
        try:
            self.workload = load(
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
            torch.set_num_threads(self.num_threads)
        self.channel.send(
            Ready(
                facts=self.workload.facts,
                process=os.getpid(),
                load_s=time.perf_counter() - start_s,
                level_bytes=self.level_bytes,
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
                assert self.workload is not None, "load() comes first"
                self._beside.start(command, self.workload, log)
                self.channel.send(BesideStarted())
            elif isinstance(command, AwaitBeside):
                self.channel.send(self._beside.wait(command))
            elif is_inline or self._session is not None or isinstance(command, OpenSpeed):
                with redirected_output(log):
                    reply = self.answer(envelope)
                    is_last = is_inline and self._keeps_memory()
                    self.channel.send(reply, is_last=is_last)
                if is_last:
                    return
            else:
                self._answer_in_fork(envelope, log)

    def _answer_in_fork(self, envelope: Envelope, log: Path | None) -> None:
        parent, start, kills = os.getpid(), end_of(log), KillWatch()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                die_with_parent(parent)
                with redirected_output(log):
                    try:
                        import torch

                        torch.set_num_threads(self.num_threads)
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
        from autotune.trial.failure import outcome_of

        command: Command = envelope.body  # type: ignore[assignment]
        kills = KillWatch()
        try:
            with self._company(envelope) as company:
                return self._answer(command, company)
        except SystemExit as end:
            return Failed(cause=f"The job ended its own process (sys.exit({end.code!r})).")
        except Exception as error:  # noqa: BLE001  (whatever the user's code raises is an outcome)
            traceback.print_exc()
            limit = command.limit_bytes if isinstance(command, MeasureMemory) else None
            return outcome_of(error, limit_bytes=limit, sign=kills.sign())

    def _company(self, envelope: Envelope) -> AbstractContextManager[Company]:
        """The other ranks, where there are any, for one command or for an open session."""
        if self._place is None or self._session is not None:
            return nullcontext(ALONE)
        assert envelope.meeting is not None, "the ranks of a command have a place to meet"
        return joined(
            self._place,
            envelope.meeting,
            envelope.time_limit_s or COLLECTIVE_LIMIT_S,
            # The end of a fork takes the group with it, and an open session needs it.
            stays=lambda: self.options.isolation == "fork" or self._session is not None,
        )

    def _answer(self, command: Command, company: Company) -> Reply:
        from autotune.trial.device import high_water_bytes
        from autotune.trial.readings.checks import check_parity, try_checkpointing
        from autotune.trial.readings.exchange import measure_exchange
        from autotune.trial.readings.gradients import measure_gradients
        from autotune.trial.readings.interlude import try_interlude
        from autotune.trial.readings.link import measure_link
        from autotune.trial.readings.meter import SpeedSession, measure_memory

        driver = self.options.driver
        if isinstance(command, ContinueSpeed):
            return self._continue(command)
        if self._session is not None:
            raise RuntimeError("A worker with an open speed session takes nothing but its blocks.")
        workload = self._untouched()
        with scratch_directory(self.options.scratch) as output_dir:
            match command:
                case TryCheckpointing():
                    return try_checkpointing(
                        workload, command.every_n_layers, driver=driver, output_dir=output_dir
                    )
                case CheckParity():
                    try:
                        return check_parity(
                            workload,
                            num_rows=command.num_rows,
                            accumulation_steps=command.accumulation_steps,
                            driver=driver,
                            output_dir=output_dir,
                        )
                    except WorkloadError as error:
                        return CannotLoad.of(error)
                case MeasureMemory():
                    self._fence(command.memory_fence_bytes)
                    stepper = self._stepper(workload, command, output_dir)
                    memory, steps_s = measure_memory(
                        stepper,
                        limit_bytes=command.limit_bytes,
                        level_bytes=self.level_bytes,
                        others_bytes=self.options.others_bytes,
                        report=self.channel.send,
                    )
                    interlude = None
                    if command.evaluation_batch_size is not None:
                        interlude = try_interlude(
                            stepper,
                            command.evaluation_batch_size,
                            limit_bytes=command.limit_bytes,
                            level_bytes=self.level_bytes,
                            others_bytes=self.options.others_bytes,
                            directory=output_dir,
                        )
                    return MemoryMeasured(memory=memory, steps_s=steps_s, interlude=interlude)
                case MeasureSpeed():
                    self._fence(command.memory_fence_bytes)
                    stepper = self._stepper(workload, command, output_dir)
                    session = SpeedSession(stepper, self.channel.send, company, watches_drift=True)
                    session.pass_over(command.num_skipped_steps)
                    session.warm_up(command.num_warmup_steps)
                    speed = session.block(
                        min_steps=command.min_steps,
                        max_steps=command.max_steps,
                        max_seconds=command.max_seconds,
                        precision=command.precision,
                    )
                    phases = session.phases() if command.with_phases else None
                    exchange, exchange_s = None, 0.0
                    if command.with_exchange and company.num_ranks > 1:
                        exchange, exchange_s = measure_exchange(stepper, company, self.channel.send)
                    return SpeedMeasured(
                        speed=speed,
                        phases=phases,
                        steps_s=session.steps_s + exchange_s,
                        high_water_bytes=high_water_bytes(),
                        exchange=exchange,
                        distances=session.distances,
                    )
                case MeasureGradients():
                    gradients = measure_gradients(
                        self._stepper(workload, command, output_dir),
                        command.num_windows,
                        report=self.channel.send,
                        num_warmup_steps=command.num_warmup_steps,
                    )
                    return GradientsMeasured(gradients=gradients)
                case MeasureLink():
                    return measure_link(command, company)
                case StartBeside() | AwaitBeside():
                    raise RuntimeError("Work beside is answered by the worker itself.")
                case OpenSpeed():
                    import torch

                    torch.set_num_threads(self.num_threads)
                    stepper = self._stepper(workload, command, output_dir)
                    self._session = SpeedSession(stepper, self.channel.send, company)
                    self._session.warm_up(command.num_warmup_steps)
                    return SpeedMeasured(speed=None, phases=None, steps_s=self._session.steps_s)

    def _fence(self, additional_bytes: int | None) -> None:
        """Fences the memory of a fork, which takes the fence with it when it ends."""
        from autotune.trial.device import fence_data

        if additional_bytes is not None and self.options.isolation == "fork":
            fence_data(additional_bytes)

    def _keeps_memory(self) -> bool:
        """Whether a command has left memory behind on the device, beyond what the first one did."""
        from autotune.trial.device import allocated_bytes, current_device

        if self._session is not None:
            return False
        gc.collect()
        idle_bytes = allocated_bytes(current_device())
        if self._idle_bytes is None:
            self._idle_bytes = idle_bytes
        return idle_bytes > self._idle_bytes + LEAK_BYTES

    def _continue(self, command: ContinueSpeed) -> SpeedMeasured:
        if self._session is None:
            raise RuntimeError("A speed session must be opened before its blocks are timed.")
        before_s = self._session.steps_s
        speed = self._session.block(min_steps=command.num_steps, max_steps=command.num_steps)
        return SpeedMeasured(speed=speed, phases=None, steps_s=self._session.steps_s - before_s)

    def _stepper(
        self,
        workload: LoadedWorkload,
        command: MeasureMemory | MeasureSpeed | MeasureGradients | OpenSpeed,
        output_dir: str,
    ) -> Stepper:
        from autotune.trial.stepper import make_stepper

        stepper = make_stepper(
            workload,
            command.configuration,
            driver=self.options.driver,
            output_dir=output_dir,
            repair_loss=command.repair_loss,
            find_unused=command.find_unused,
        )
        num_ranks = self._place.world_size if self._place is not None else 1
        if stepper.accelerator.num_processes != num_ranks:
            raise AutotuneError(
                "Accelerate trains on "
                f"{counted(stepper.accelerator.num_processes, 'process', 'processes')} where "
                f"{num_ranks} were started.",
                "See that nothing in the job switches its distributed training off.",
            )
        return stepper

    def _untouched(self) -> LoadedWorkload:
        """The workload for one command. Without a fork, it gets a model of its own.

        Weights, hooks and wrappers of earlier commands go with the model that they were made on.
        """
        assert self.workload is not None, "load() comes first"
        if self.options.isolation != "inline":
            return self.workload
        from accelerate.state import AcceleratorState, GradientState

        gc.collect()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        import torch

        if torch.accelerator.is_available() and hasattr(torch.accelerator, "empty_cache"):
            torch.accelerator.empty_cache()
        # An optimizer of the user's own holds the parameters of the model that it came with.
        model, optimizers = copy.deepcopy((self.workload.model, self.workload.optimizers))
        return replace(self.workload, model=model, optimizers=optimizers)


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
