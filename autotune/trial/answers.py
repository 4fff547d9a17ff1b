"""Carries commands out on a loaded workload, in the process that measures: a worker or its fork.

A fault of the trial is an answer too; nothing that the user's code raises leaves here.
"""

from __future__ import annotations

import copy
import gc
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.errors import AutotuneError, WorkloadError
from autotune.outcome import Failed
from autotune.trial.failure import outcome_of
from autotune.trial.options import WorkerOptions
from autotune.trial.process import scratch_directory
from autotune.trial.protocol import (
    AwaitBeside,
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
    Progress,
    Reply,
    SpeedMeasured,
    StartBeside,
    TryCheckpointing,
)
from autotune.trial.ranks.place import ALONE, Company, Place, joined
from autotune.units import counted
from probes.kills import KillWatch

if TYPE_CHECKING:
    from autotune.trial.readings.meter import SpeedSession
    from autotune.trial.stepper import Stepper
    from autotune.workload.loaded import LoadedWorkload

COLLECTIVE_LIMIT_S = 600.0
"""How long ranks wait for each other where the command has no time limit of its own."""


class Answers:
    """What a worker answers to the commands that run its workload.

    Args:
        options: The worker's.
        report: Is told where a command stands.
    """

    def __init__(self, options: WorkerOptions, report: Callable[[Progress], None]) -> None:
        self.workload: LoadedWorkload | None = None
        """Set once it is loaded."""
        self.level_bytes = 0
        """Resident memory of the process after its imports."""
        self.num_threads = 1
        """Threads that the user computes with."""
        self._options = options
        self._report = report
        self._place = Place(**options.place) if options.place is not None else None  # type: ignore[arg-type]
        self._session: SpeedSession | None = None

    @property
    def is_in_session(self) -> bool:
        """Whether a speed session is open, whose blocks alone are taken from then on."""
        return self._session is not None

    def to(self, envelope: Envelope) -> Reply:
        """Carries a command out; a fault of the trial becomes its outcome."""
        command: Command = envelope.body  # type: ignore[assignment]
        kills = KillWatch()
        try:
            with self._company(envelope) as company:
                return self._carry_out(command, company)
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
            stays=lambda: self._options.isolation == "fork" or self._session is not None,
        )

    def _carry_out(self, command: Command, company: Company) -> Reply:
        from autotune.trial.device import high_water_bytes
        from autotune.trial.readings.checks import check_parity, try_checkpointing
        from autotune.trial.readings.exchange import measure_exchange
        from autotune.trial.readings.gradients import measure_gradients
        from autotune.trial.readings.interlude import try_interlude
        from autotune.trial.readings.link import measure_link
        from autotune.trial.readings.meter import SpeedSession, measure_memory

        driver = self._options.driver
        if isinstance(command, ContinueSpeed):
            return self._continue(command)
        if self._session is not None:
            raise RuntimeError("A worker with an open speed session takes nothing but its blocks.")
        workload = self._untouched()
        with scratch_directory(self._options.scratch) as output_dir:
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
                        others_bytes=self._options.others_bytes,
                        report=self._report,
                    )
                    interlude = None
                    if command.evaluation_batch_size is not None:
                        interlude = try_interlude(
                            stepper,
                            command.evaluation_batch_size,
                            limit_bytes=command.limit_bytes,
                            level_bytes=self.level_bytes,
                            others_bytes=self._options.others_bytes,
                            directory=output_dir,
                        )
                    return MemoryMeasured(memory=memory, steps_s=steps_s, interlude=interlude)
                case MeasureSpeed():
                    self._fence(command.memory_fence_bytes)
                    stepper = self._stepper(workload, command, output_dir)
                    session = SpeedSession(stepper, self._report, company, watches_drift=True)
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
                        exchange, exchange_s = measure_exchange(stepper, company, self._report)
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
                        report=self._report,
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
                    self._session = SpeedSession(stepper, self._report, company)
                    self._session.warm_up(command.num_warmup_steps)
                    return SpeedMeasured(speed=None, phases=None, steps_s=self._session.steps_s)

    def _fence(self, additional_bytes: int | None) -> None:
        """Fences the memory of a fork, which takes the fence with it when it ends."""
        from autotune.trial.device import fence_data

        if additional_bytes is not None and self._options.isolation == "fork":
            fence_data(additional_bytes)

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
            driver=self._options.driver,
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
        if self._options.isolation != "inline":
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
