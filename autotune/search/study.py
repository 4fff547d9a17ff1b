"""The Optuna study of a run: an index of its trials that samplers learn from and dashboards show.

The journal is the truth: an outcome is there before it is told here, and a study that is damaged,
locked or lost is built again from the history. In a shared storage each trial also carries its
whole outcome, so that another run can read it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Annotated, TypeVar

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import Field, TypeAdapter, ValidationError

from autotune import lease
from autotune.configuration import Configuration
from autotune.errors import UsageError
from autotune.outcome import Measured, Outcome, OutOfMemory, Stopped
from autotune.request import SamplerName
from autotune.search.closing import with_trial
from autotune.search.finished import FinishedTrial
from autotune.search.history import History
from autotune.search.outlook import likely_candidates
from autotune.search.sampler import (
    CONSTRAINT_ATTRIBUTE,
    Axes,
    has_set_constraint,
    make_sampler,
)
from autotune.search.storage import (
    LOCK_TIMEOUT_S,
    OPENING_ERRORS,
    STORAGE_ERRORS,
    StudyIdentity,
    in_one_line,
    is_locked,
    move_aside,
    sqlite_storage,
    without_password,
)

LEASE = "lease"
"""User attribute of a trial: which process runs it."""
TRIAL = "trial"
"""User attribute of a finished trial: its run, number, purpose, configuration and outcome."""
LEASE_GRACE = timedelta(hours=1)
"""A running trial of a shared storage that never got a lease is given up after this."""
SMALLEST_VIOLATION = 0.01
WHOLE_VIOLATION = 1.0
"""Violation of a trial that ran out of memory where its need is not known."""

Warn = Callable[[str, str | None], None]
"""Tells the user a cause and a remedy."""
T = TypeVar("T")


class Study:
    """An open study, brought up to date with the run's history. Only the engine's thread calls it.

    Args:
        identity: Names the study.
        history: What the journal knows of this run.
        sampler: Who proposes.
        seed: Of the sampler.
        run: Name of the run, written to its trials.
        warn: Told once of everything the user should know.
        path: Where the study is kept if `storage` is None.
        storage: An Optuna storage URL, possibly shared with other runs.
        lock_timeout_s: How long to wait for another process that holds the file.

    Raises:
        UsageError: The given storage cannot be opened, or the sampler needs a missing package.
    """

    def __init__(
        self,
        identity: StudyIdentity,
        history: History,
        *,
        sampler: SamplerName,
        seed: int,
        run: str,
        warn: Warn,
        path: Path,
        storage: str | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        self._identity = identity
        self._history = history
        self._axes = Axes(history.space)
        self._new_sampler = partial(make_sampler, sampler, history.space, self._axes, seed)
        self._sampler = self._new_sampler()
        self._ignores_pruned = sampler == "gp"
        self._run = run
        self._warn = warn
        self._is_private = storage is None
        self._lease = lease.mine()
        self._asked: Trial | None = None
        self._told_of_fault = False
        self._storage: BaseStorage = InMemoryStorage()
        with _quietly():
            if storage is None:
                self._study = self._open_private(path, lock_timeout_s)
            else:
                self._study = self._open_url(storage)
        self._guarded(self._catch_up)

    @property
    def name(self) -> str:
        """The study's name in its storage."""
        return self._identity.name

    def ask(self, history: History, candidate: Configuration | None = None) -> Configuration | None:
        """Opens a trial and returns its configuration; None where no candidate is open.

        Args:
            history: What is known; nothing that it holds is proposed again.
            candidate: What to run; None lets the sampler propose. Somebody who enqueued an open
                candidate in the study, for example from a dashboard, is served first.
        """
        self._history = history
        if candidate is None and not history.open_candidates:
            return None
        return self._guarded(lambda: self._ask(history, candidate))

    def tell(self, trial: FinishedTrial) -> None:
        """Ends the trial that was asked for last. Trials beyond the search are not told."""
        self._history = with_trial(self._history, trial)
        if trial.is_search:
            self._guarded(lambda: self._tell(trial))

    def outcomes_of_other_runs(self) -> dict[Configuration, Outcome]:
        """What other runs of a shared storage found out about the candidates."""
        return self._guarded(self._read_others)

    def close(self) -> None:
        """Gives the storage's connections back."""
        if isinstance(self._storage, RDBStorage):
            self._storage.remove_session()
            self._storage.engine.dispose()

    def _guarded(self, action: Callable[[], T]) -> T:
        """Runs an action; where the storage fails it is done again on a study in memory."""
        with _quietly():
            try:
                return action()
            except STORAGE_ERRORS as error:
                if isinstance(self._storage, InMemoryStorage):
                    raise
                self._warn(
                    f"The Optuna study cannot be used any more ({in_one_line(error)}).",
                    "The run goes on with a study in memory; its journal keeps every trial.",
                )
                self.close()
                self._asked = None
                # Samplers remember the study that they have seen.
                self._sampler = self._new_sampler()
                self._study = self._create(InMemoryStorage())
                self._catch_up()
                return action()

    def _create(self, storage: BaseStorage) -> optuna.Study:
        self._storage = storage
        return optuna.create_study(
            study_name=self.name,
            storage=storage,
            sampler=self._sampler,
            pruner=optuna.pruners.NopPruner(),
            direction="maximize",
            load_if_exists=True,
        )

    def _open_private(self, path: Path, lock_timeout_s: float) -> optuna.Study:
        try:
            return self._open(sqlite_storage(path, lock_timeout_s))
        except OPENING_ERRORS as error:
            self.close()
            if is_locked(error):
                cause = f"The study {path} is locked by another process."
                remedy = (
                    "The run goes on with a study in memory; the file is brought up to date when "
                    "the run is resumed without the other process."
                )
            elif (aside := move_aside(path)) is None:
                cause = f"The study {path} cannot be used ({in_one_line(error)})."
                remedy = "The run goes on with a study in memory; its journal keeps every trial."
            else:
                cause = f"The study {path} was damaged ({in_one_line(error)})."
                remedy = f"It was moved to {aside.name} and built again from the journal."
                with suppress(*OPENING_ERRORS):
                    study = self._open(sqlite_storage(path, lock_timeout_s))
                    self._warn(cause, remedy)
                    return study
        self._warn(cause, remedy)
        return self._create(InMemoryStorage())

    def _open_url(self, storage: str) -> optuna.Study:
        try:
            return self._open(RDBStorage(storage))
        except OPENING_ERRORS as error:
            self.close()
            raise UsageError(
                f"The storage {without_password(storage)} cannot be opened ({in_one_line(error)}).",
                "Give a database URL that Optuna can open, such as sqlite:///studies.db, or leave "
                "--storage out.",
            ) from error

    def _open(self, storage: BaseStorage) -> optuna.Study:
        self._storage = storage
        earlier = {
            summary.study_name: summary.user_attrs
            for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)
        }
        study = self._create(storage)
        if self.name not in earlier:
            for part, value in self._identity.parts.items():
                study.set_user_attr(part, value)
            self._tell_of_changes(earlier)
        # Reading everything once finds damage now and not in the middle of the run.
        study.get_trials(deepcopy=False)
        return study

    def _tell_of_changes(self, earlier: Mapping[str, Mapping[str, object]]) -> None:
        """Says why a study of the same workload is not gone on with."""
        stem = f"{self._identity.readable_stem}-"
        alike = [(n, attrs) for n, attrs in earlier.items() if re.fullmatch(stem + r"\w{12}", n)]
        if not alike:
            return
        name, attributes = alike[-1]
        parts = self._identity.parts
        changed = [part for part in parts if attributes.get(part) != parts[part]] or ["version"]
        self._warn(
            f"The study {name} is of another {' and '.join(changed)}, so this run starts the "
            f"study {self.name}.",
            "The earlier one stays in the storage as it is.",
        )

    def _ask(self, history: History, candidate: Configuration | None) -> Configuration:
        self._sampler.offer(likely_candidates(history), fixed=candidate)
        while True:
            trial = self._begin(self._study.ask(self._axes.distributions))
            configuration = self._axes.configuration(trial.params)
            if configuration is not None and (
                configuration == candidate or history.is_open(configuration)
            ):
                break
            # Somebody enqueued what is no candidate, or known already.
            self._study.tell(trial, state=TrialState.FAIL)
        self._asked = trial
        if self._sampler.fault is not None and not self._told_of_fault:
            self._told_of_fault = True
            self._warn(
                f"The sampler could not propose ({self._sampler.fault}).",
                "The next candidate of the list was taken instead.",
            )
        return configuration

    def _tell(self, finished: FinishedTrial) -> None:
        trial, self._asked = self._asked, None
        if trial is None or self._axes.configuration(trial.params) != finished.configuration:
            return
        # Somebody may have ended the trial from a dashboard; the journal has its true end.
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            self._write_end(trial, finished)

    def _write_end(self, trial: Trial, finished: FinishedTrial) -> None:
        outcome = finished.outcome
        trial.set_user_attr(
            TRIAL,
            {
                "run": self._run,
                "number": finished.number,
                "purpose": finished.purpose,
                "configuration": finished.configuration.to_json(),
                "outcome": _outcome_adapter().dump_python(outcome, mode="json"),
            },
        )
        violation = _violation(outcome, self._history.usable_bytes)
        if violation is not None:
            if has_set_constraint():
                trial.set_constraint("memory", violation)
            else:
                trial.set_user_attr(CONSTRAINT_ATTRIBUTE, violation)
        value: float | None = None
        state = TrialState.FAIL
        if isinstance(outcome, Measured):
            state, value = TrialState.COMPLETE, outcome.samples_per_s
        elif isinstance(outcome, OutOfMemory):
            # A sampler that ignores pruned trials learns of it from a bad value.
            value = self._worst_value() if self._ignores_pruned else None
            state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self._study.tell(trial, value, state)

    def _worst_value(self) -> float | None:
        complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return min((t.value for t in complete if t.value is not None), default=None)

    def _catch_up(self) -> None:
        """Closes trials whose engine is dead, and adds finished ones that are missing."""
        self._close_orphans()
        known = {
            written.get("number")
            for t in self._study.get_trials(deepcopy=False)
            if t.state.is_finished() and (written := _written(t)).get("run") == self._run
        }
        for trial in self._history.trials:
            is_candidate = trial.configuration in self._history.space.candidates
            if trial.is_search and is_candidate and trial.number not in known:
                self._sampler.offer((trial.configuration,), fixed=trial.configuration)
                self._asked = self._begin(self._study.ask(self._axes.distributions))
                self._tell(trial)

    def _begin(self, trial: Trial) -> Trial:
        """Writes to a trial who runs it."""
        trial.set_user_attr(LEASE, asdict(self._lease))
        return trial

    def _close_orphans(self) -> None:
        """Fails running trials whose engine is gone: nobody will ever tell their end."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self._is_private or _is_orphan(trial, self._lease):
                self._study.tell(trial.number, state=TrialState.FAIL)

    def _read_others(self) -> dict[Configuration, Outcome]:
        found: dict[Configuration, Outcome] = {}
        for trial in self._study.get_trials(deepcopy=False):
            written = _written(trial)
            if not trial.state.is_finished() or written.get("run") == self._run:
                continue
            configuration = self._axes.configuration(trial.params)
            try:
                outcome = _outcome_adapter().validate_python(written.get("outcome"))
            except ValidationError:
                continue
            if configuration is not None and not isinstance(outcome, Stopped):
                found[configuration] = outcome
        return found


@cache
def _outcome_adapter() -> TypeAdapter[Outcome]:
    return TypeAdapter(Annotated[Outcome, Field(discriminator="kind")])


def _violation(outcome: Outcome, usable_bytes: int | None) -> float | None:
    """Memory over what may be filled, less one; None where the outcome says nothing of it."""
    if isinstance(outcome, Measured):
        if usable_bytes is None:
            return 0.0
        return min(0.0, outcome.memory.total_bytes / usable_bytes - 1)
    if isinstance(outcome, OutOfMemory):
        limit_bytes = outcome.limit_bytes or usable_bytes
        if limit_bytes is None or outcome.needed_at_least_bytes is None:
            return WHOLE_VIOLATION
        return max(SMALLEST_VIOLATION, outcome.needed_at_least_bytes / limit_bytes - 1)
    return None


def _written(trial: FrozenTrial) -> Mapping[str, object]:
    """What a run wrote to a trial when it ended; empty where none did."""
    written = trial.user_attrs.get(TRIAL)
    return written if isinstance(written, Mapping) else {}


def _is_orphan(trial: FrozenTrial, own: lease.Lease) -> bool:
    held = trial.user_attrs.get(LEASE)
    if isinstance(held, Mapping):
        try:
            holder = lease.Lease(**held)
        except TypeError:
            return True
        return holder == own or not holder.is_alive
    started = trial.datetime_start
    return started is not None and datetime.now() - started > LEASE_GRACE


@contextmanager
def _quietly() -> Iterator[None]:
    """Keeps Optuna's warnings about its own interface from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
