"""What a child found out about a workload when it loaded it: plain data for the engine."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.configuration import Configuration
from autotune.workload.spec import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingForm:
    """One way of checkpointing, tried on this model with one small batch."""

    every_n_layers: int
    offload: bool
    is_available: bool
    saved_bytes: int | None
    """Bytes kept for the backward pass under this form; None where it is not available."""
    reason: str | None = None
    """Why it is not available, or why it is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """The settings of a job that go with its batches; None where one is not known."""

    learning_rate: float | None = None
    max_steps: int | None = None
    warmup_steps: int | None = None
    adam_beta2: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    """Length above which gradients are shortened; 0 where they never are."""


NOTHING_KNOWN = Hyperparameters()
"""No setting is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """The loaded workload in figures."""

    name: str
    task: str
    model_class: str
    num_parameters: int
    num_trainable_parameters: int
    parameter_bytes: int
    num_rows: int | None
    """Training samples; None for a stream, which has no length."""
    tokens_median: int | None
    tokens_max: int | None
    """Longest sample, in tokens; for a stream, the longest that was seen or may be made."""
    precision: str
    optim: str
    has_batch_norm: bool
    batch_dependent_loss: str | None
    """Why the loss of a sample depends on its batch, or None where it does not."""
    hyperparameters: Hyperparameters = NOTHING_KNOWN
    notes: tuple[str, ...] = ()
    """What the loader chose by itself, in whole sentences."""
    versions: tuple[tuple[str, str], ...] = ()
    """Names and versions of the libraries that train."""
    weights_from: str = ""
    """Why the weights are held in their number format, as the end of a sentence."""
    digest: str = ""
    """Changes whenever model, data or training choices change."""
    chosen: WorkloadSpec | None = None
    """The declarative spec with everything filled in that the loader chose: columns, maximum
    length, optimizer; None where the workload did not come as a spec."""
    baseline: Configuration | None = None
    """The configuration that live objects came with; None where the workload came as a spec."""

    @property
    def clips_gradients(self) -> bool:
        """Whether training shortens gradients above a norm, as it does unless it is told not to."""
        norm = self.hyperparameters.max_grad_norm
        return norm is None or norm > 0
