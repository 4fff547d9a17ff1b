"""What happened in a run, as facts in the past tense.

Every event goes to the journal, flushed to disk, before anybody acts on it; only `TrialProgressed`
is coalesced and may be dropped. `autotune.folding.fold` turns a list of events into what is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue, TypeAdapter

from autotune.outcome import MemoryUse, Outcome, Purpose
from probes.link import Link

SCHEMA = 1

Document: TypeAlias = dict[str, JsonValue]
"""A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """An engine took up the run, for the first time or again (`resumed`)."""

    run: str
    created_unix_s: float
    request: Document
    """The request, as `request.json` holds it."""
    versions: dict[str, str]
    process: int
    host: str
    resumed: bool = False
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A probe of the machine begins; none does where stored readings of it are taken."""

    probe: str
    number: int
    """Counts from 1."""
    num_probes: int
    readings: tuple[Document, ...]
    """What the probes before it measured, in the JSON form of `probes.reading.Reading`."""
    kind: Literal["probe_started"] = "probe_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProbed:
    """The probes ended, or stored readings of the unchanged machine were taken."""

    machine: Document
    from_store: bool
    memory_limit_bytes: int
    """What the training process may occupy: the user's limit or what the machine has free."""
    usable_bytes: int
    """The limit less the margin."""
    limit_source: str
    """Where the limit comes from, in words."""
    kind: Literal["machine_probed"] = "machine_probed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbed:
    """What exchanges between the ranks cost was measured, on the ranks of the trials."""

    link: Link
    kind: Literal["link_probed"] = "link_probed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadLoaded:
    """The worker loaded model and data."""

    facts: Document
    load_s: float
    environment: dict[str, str]
    """Variables that the trials run under, and that the exported launch command sets."""
    device: str = "cpu"
    """torch's name of the kind of device that the trials run on."""
    kind: Literal["workload_loaded"] = "workload_loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityChecked:
    """The same rows were trained on whole and in micro-batches (design: loss parity)."""

    holds: bool | None
    """None where it could not be checked."""
    repaired: bool
    """It fails as the library stands, and holds with `model_accepts_loss_kwargs = False`."""
    loss_difference: float | None
    """Largest relative difference of the loss."""
    gradient_difference: float | None
    """Largest relative difference of the gradient norm."""
    detail: str
    unused_parameters: tuple[str, ...] = ()
    """Trained parameters that got no gradient in the check: the wrapper that exchanges gradients
    has to look for them."""
    kind: Literal["parity_checked"] = "parity_checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpacePlanned:
    """The finite list of candidates, and why every other one is out."""

    candidates: tuple[Document, ...]
    ruled_out: tuple[Document, ...]
    """Objects with `what`, `reason` and `num_removed`."""
    baseline: Document
    digest: str
    local_sgd_steps: tuple[int, ...] = ()
    """Optimizer steps between two averagings that may be chosen on several ranks."""
    kind: Literal["space_planned"] = "space_planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForeseen:
    """A training step was traced on tensors without data, or could not be; nothing was run."""

    candidates: tuple[Document, ...]
    """Objects with `configuration` and `predicted`, one for each candidate that something is
    predicted of."""
    untraced: tuple[Document, ...]
    """Objects with `what` and `reason`: what could not be traced, and is left to trials."""
    trace_s: float
    """What tracing took, when it was done."""
    from_store: bool
    """Whether it was traced by an earlier run."""
    kind: Literal["memory_foreseen"] = "memory_foreseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOpened:
    """The run works on a study that engines of other runs may share."""

    study: str
    """Its name; engines that differ in machine, libraries or limits have studies of other names."""
    storage: str
    """Its URL, without a password."""
    num_trials: int
    """Finished trials of other runs that were found in it."""
    num_running: int
    """Trials of other runs that go on."""
    hosts: tuple[str, ...]
    """Where these were run."""
    again: bool
    """It was lost before, and the run was alone meanwhile."""
    kind: Literal["study_opened"] = "study_opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A configuration was given to a worker."""

    number: int
    purpose: Purpose
    configuration: Document
    why: str
    """Why this one is tried now."""
    predicted: Document | None = None
    """What is expected of it; None where only the trial can tell."""
    kind: Literal["trial_started"] = "trial_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProgressed:
    """Where the running trial stands. The only event that may be dropped or replaced."""

    number: int
    stage: str
    """starting, memory, warm-up, speed, phases."""
    step: int | None = None
    num_steps: int | None = None
    samples_per_s: float | None = None
    memory_bytes: int | None = None
    kind: Literal["trial_progressed"] = "trial_progressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial ended, in any of the five ways."""

    number: int
    purpose: Purpose
    configuration: Document
    outcome: Annotated[Outcome, Field(discriminator="kind")]
    wall_s: float
    overhead_s: float
    """Wall time that was not spent in the trial's own steps."""
    predicted: Document | None = None
    """What was expected of it when it started."""
    kind: Literal["trial_finished"] = "trial_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The engine that ran a trial of a shared study."""

    host: str
    run: str
    run_id: str
    """Tells apart runs of the same name."""
    number: int
    """The trial's number in that run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReceived:
    """A trial that another engine of a shared study ran became known: nothing was measured here."""

    number: int
    """Its number in this run."""
    purpose: Purpose
    configuration: Document
    outcome: Annotated[Outcome, Field(discriminator="kind")]
    origin: Origin
    kind: Literal["trial_received"] = "trial_received"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsAwaited:
    """Nothing was left to try but what other engines of a shared study try at the moment."""

    configurations: tuple[Document, ...]
    hosts: tuple[str, ...]
    kind: Literal["trials_awaited"] = "trials_awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionClosed:
    """Candidates were ruled out by what a trial showed."""

    what: str
    reason: str
    num_removed: int
    trial: int | None
    kind: Literal["region_closed"] = "region_closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestChanged:
    """Another trial leads."""

    number: int
    samples_per_s: float
    speedup: float | None
    """Over the baseline's search trial; None where the baseline was not measured."""
    kind: Literal["best_changed"] = "best_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGDPredicted:
    """What averaging every so many steps would give, by what a trial on several ranks measured."""

    trial: int
    """Number of that trial."""
    local_sgd_steps: int
    """The steps that promise most; 1 where the exchange of gradients stays."""
    rows: tuple[Document, ...]
    """Objects with `local_sgd_steps`, `step_s`, `samples_per_s`, `sample_efficiency`,
    `useful_samples_per_s` and `is_measured`, which holds for the exchange of gradients alone."""
    sentence: str
    kind: Literal["local_sgd_predicted"] = "local_sgd_predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScaleMeasured:
    """How many rows a gradient needs before more of them stop helping."""

    value: float | None
    """Rows; None where the mean gradient did not stand out from the noise."""
    interval: tuple[float, float | None]
    num_windows: int
    num_micro_batches: int
    rows_per_micro_batch: int
    is_preconditioned: bool
    note: str
    plain_interval: tuple[float, float | None] | None = None
    """That of the plain gradient, which clipping looks at; None where it was not told."""
    kind: Literal["noise_scale_measured"] = "noise_scale_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnded:
    """No further candidate is tried."""

    reason: str
    num_untried: int
    is_budget_spent: bool = False
    """Whether a larger budget would have tried more."""
    kind: Literal["search_ended"] = "search_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationContinued:
    """Some rounds of confirmation are done, and the ratio is not settled yet."""

    num_rounds: int
    most_rounds: int
    speedup: float
    """Of the one that leads now, against the baseline; where that leads, of the next best."""
    speedup_ci95: tuple[float, float]
    kind: Literal["confirmation_continued"] = "confirmation_continued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """Best and baseline were measured again, interleaved, in fresh processes."""

    number: int
    """The confirmed trial."""
    baseline_number: int | None
    speedup: float
    speedup_ci95: tuple[float, float]
    num_pairs: int
    is_tie: bool
    settled: bool
    """False where the budget ended before the interval was narrow enough."""
    samples_per_s: float
    samples_per_s_ci95: tuple[float, float]
    baseline_samples_per_s: float
    baseline_samples_per_s_ci95: tuple[float, float]
    memory: MemoryUse
    baseline_memory: MemoryUse | None
    useful_speedup: float | None = None
    """Of samples per second times sample efficiency; None where a sample of both teaches alike."""
    useful_speedup_ci95: tuple[float, float] | None = None
    kind: Literal["confirmed"] = "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationMade:
    """The answer, in the public JSON form, and the files that hold it."""

    document: Document
    kind: Literal["recommendation_made"] = "recommendation_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesExported:
    """Files were written and read back by their consumers."""

    directory: str
    files: tuple[Document, ...]
    """Objects with `name`, `consumer`, `verified_with` and `sha256`."""
    kind: Literal["files_exported"] = "files_exported"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningRaised:
    """Something the user should know; the run goes on."""

    cause: str
    remedy: str | None = None
    kind: Literal["warning_raised"] = "warning_raised"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldChanged:
    """Whether new trials are held back was changed."""

    held: bool
    kind: Literal["hold_changed"] = "hold_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAdded:
    """Somebody wrote a note into the run."""

    text: str
    kind: Literal["note_added"] = "note_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The engine is done; `exit_code` is what the command ends with."""

    reason: str
    exit_code: int
    cause: str | None = None
    remedy: str | None = None
    kind: Literal["run_ended"] = "run_ended"


Event: TypeAlias = (
    RunStarted
    | ProbeStarted
    | MachineProbed
    | LinkProbed
    | WorkloadLoaded
    | ParityChecked
    | SpacePlanned
    | MemoryForeseen
    | StudyOpened
    | TrialStarted
    | TrialProgressed
    | TrialFinished
    | TrialReceived
    | TrialsAwaited
    | RegionClosed
    | BestChanged
    | LocalSGDPredicted
    | NoiseScaleMeasured
    | SearchEnded
    | ConfirmationContinued
    | Confirmed
    | RecommendationMade
    | FilesExported
    | WarningRaised
    | HoldChanged
    | NoteAdded
    | RunEnded
)
"""Anything that happens in a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An event with its place in the story."""

    seq: int
    """Counts up from 0 over all engines of the run."""
    t_s: float
    """Seconds since the run was first started, by the wall clock."""
    event: Annotated[Event, Field(discriminator="kind")]
    schema_version: int = SCHEMA


@cache
def record_adapter() -> TypeAdapter[Record]:
    """The codec between records and JSON."""
    return TypeAdapter(Record)
