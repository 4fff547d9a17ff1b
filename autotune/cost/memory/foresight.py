"""What a configuration will need, before it runs: the law, corrected by what trials have shown.

The correction is one-sided. A trial that needed more than was reckoned raises what is expected of
all others by the same part; one that ran out of memory is a bound below its need. What was reckoned
from a trace is never lowered. What lies outside of torch's allocator is an assumption or a reading
of another process at first, and a reading of the trials as soon as there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.configuration import Configuration
from autotune.cost.memory.allocator_settings import UNCHANGED, AllocatorSettings
from autotune.cost.memory.estimate import FormReckoner
from autotune.cost.memory.evaluation import MOST_ROWS, EvaluationLaw, evaluation_law
from autotune.cost.memory.outside import Ranks, Target, workspaces
from autotune.cost.memory.question import Question
from autotune.cost.memory.trace import Phase, TracedWorkload
from autotune.outcome import MemoryUse

LAW_ERROR = 0.1
"""A trial that needs less than the law says by more than this part shows that it does not hold."""
LEAST_ERROR_BYTES = 64 * 1024**2
"""Less than this is no error of the law: small models stand and fall with an allocator's steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a configuration is predicted to occupy at its peak."""

    tensor_bytes: int
    """Tensors of the step, as the law has them."""
    inside_bytes: int
    """What the allocator holds, with all that trials have shown."""
    outside_bytes: int
    """What the process occupies beside it."""
    phase: Phase
    """Where the peak stands."""
    module: str
    """Path of the module it stands in; empty for the whole model."""

    @property
    def total_bytes(self) -> int:
        """What is held against the limit."""
        return self.inside_bytes + self.outside_bytes

    def to_json(self) -> dict[str, str | int]:
        """The public JSON form of a prediction."""
        return {
            "total_bytes": self.total_bytes,
            "phase": self.phase,
            "module": self.module,
            "basis": "traced",
        }


class Reckoner:
    """What the law alone says of configurations, each reckoned once.

    Args:
        traced: The step under the checkpointing forms that could be traced.
        target: The device, with the memory limit as its whole.
        settings: Of the job's allocator.
        process_bytes: On a CPU, a training process after its imports.
    """

    def __init__(
        self,
        traced: TracedWorkload,
        target: Target,
        *,
        settings: AllocatorSettings = UNCHANGED,
        process_bytes: int | None = None,
    ) -> None:
        self.traced = traced
        self.target = target
        self._settings = settings
        self._process_bytes = process_bytes
        self._forms: dict[Configuration, FormReckoner] = {}
        self._needs: dict[Configuration, Need | None] = {}

    def need(self, configuration: Configuration) -> Need | None:
        """What a configuration needs; None where its checkpointing form could not be traced."""
        if configuration not in self._needs:
            self._needs[configuration] = self._reckoned(configuration)
        return self._needs[configuration]

    def _reckoned(self, configuration: Configuration) -> Need | None:
        form = self._form(configuration)
        if form is None:
            return None
        size = configuration.micro_batch_size
        entry, peak = form.entry(size), form.law(size).peak(size)
        return Need(
            tensor_bytes=entry.tensor_bytes,
            inside_bytes=entry.total_bytes - form.outside_bytes,
            outside_bytes=form.outside_bytes,
            phase=peak.phase,
            module=peak.module,
        )

    def _form(self, configuration: Configuration) -> FormReckoner | None:
        """The reckoner of all configurations that differ in nothing but the micro-batch size."""
        trace = self.traced.of(configuration.checkpointing)
        if trace is None:
            return None
        alike = replace(
            configuration,
            micro_batch_size=1,
            accumulation_steps=configuration.global_batch_size // configuration.world_size,
        )
        if alike not in self._forms:
            question = Question(
                target=self.target,
                ranks=Ranks(
                    world_size=configuration.world_size,
                    averages=configuration.local_sgd_steps > 1,
                ),
                settings=self._settings,
                global_batch_size=configuration.global_batch_size,
                process_bytes=self._process_bytes,
            )
            self._forms[alike] = FormReckoner(trace, question)
        return self._forms[alike]

    @property
    def evaluation(self) -> EvaluationLaw | None:
        """The law of evaluation, where it could be traced."""
        traced = self.traced
        if traced.evaluation is None or not traced.steps:
            return None
        is_cpu = self.target.is_cpu
        return evaluation_law(
            traced.evaluation,
            traced.steps[0],
            settings=None if is_cpu else self._settings,
            blocks=[block for layer in workspaces(self.target) for block in layer.blocks],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What is predicted of every configuration. Immutable: trials make the next one."""

    reckoner: Reckoner
    raised_by: float = 1.0
    """Most that the allocator held in a trial over what was reckoned; never below 1."""
    outside_bytes: int | None = None
    """Most that lay outside of it in a trial; None before the first."""

    def need(self, configuration: Configuration) -> Need | None:
        """What a configuration is predicted to need; None where nothing is known of its form."""
        reckoned = self.reckoner.need(configuration)
        if reckoned is None:
            return None
        outside = reckoned.outside_bytes if self.outside_bytes is None else self.outside_bytes
        return replace(
            reckoned,
            inside_bytes=round(reckoned.inside_bytes * self.raised_by),
            outside_bytes=outside,
        )

    def measured(self, configuration: Configuration, memory: MemoryUse) -> Foresight:
        """What is predicted after a trial that was measured."""
        reckoned = self.reckoner.need(configuration)
        if reckoned is None:
            return self
        return replace(
            self,
            raised_by=max(self.raised_by, memory.reserved_bytes / reckoned.inside_bytes),
            outside_bytes=max(self.outside_bytes or 0, memory.outside_bytes),
        )

    def bounded(self, configuration: Configuration, needed_at_least_bytes: int) -> Foresight:
        """What is predicted after a trial that ran out of memory, and needed at least so much."""
        reckoned = self.reckoner.need(configuration)
        if reckoned is None:
            return self
        outside = reckoned.outside_bytes if self.outside_bytes is None else self.outside_bytes
        inside = needed_at_least_bytes - outside
        return replace(self, raised_by=max(self.raised_by, inside / reckoned.inside_bytes))

    def is_refuted_by(self, configuration: Configuration, memory: MemoryUse) -> bool:
        """Whether a measured trial needed so much less that the law does not hold here."""
        reckoned = self.reckoner.need(configuration)
        if reckoned is None:
            return False
        missing = reckoned.inside_bytes - memory.reserved_bytes
        return missing > max(LAW_ERROR * reckoned.inside_bytes, LEAST_ERROR_BYTES)

    def evaluation_batch_size(self, usable_bytes: int, most: int = MOST_ROWS) -> int | None:
        """The `per_device_eval_batch_size` to use; None where nothing is known, or none fits.

        Args:
            usable_bytes: What the process may occupy, the margin taken off.
            most: No larger one is worth it.
        """
        law = self.reckoner.evaluation
        if law is None:
            return None
        return law.recommended(int((usable_bytes - self._outside()) / self.raised_by), most)

    def evaluation_bytes(self, batch_size: int) -> int | None:
        """What the process occupies while it evaluates; None where that could not be traced."""
        law = self.reckoner.evaluation
        if law is None:
            return None
        return round(law.held_bytes(batch_size) * self.raised_by) + self._outside()

    def _outside(self) -> int:
        if self.outside_bytes is not None:
            return self.outside_bytes
        alone = Configuration(
            micro_batch_size=1,
            accumulation_steps=1,
            checkpointing=self.reckoner.traced.steps[0].checkpointing,
        )
        reckoned = self.reckoner.need(alone)
        return reckoned.outside_bytes if reckoned is not None else 0
