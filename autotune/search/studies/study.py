"""The Optuna study of a run: an index of its trials that samplers learn from and dashboards show.

The journal is the truth: an outcome is there before it is told here, and a study that is damaged,
locked or lost is built again from the history. In a shared storage each trial also carries its
whole outcome, so that engines of like machines take each other's trials for known, and a claim
(`autotune.search.studies.claims`), so that no two of them try the same candidate at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.configuration import Configuration
from autotune.events import Origin, StudyOpened
from autotune.request import SamplerName
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import Arrival, FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.evidence.outlook import likely_candidates
from autotune.search.studies import entry
from autotune.search.studies.claims import Claims, Holder
from autotune.search.studies.heartbeat import Listener, Patience
from autotune.search.studies.home import Home, Warn
from autotune.search.studies.identity import StudyIdentity
from autotune.search.studies.sampler import Axes, HearingSampler, make_proposer
from autotune.search.studies.storage import ENDED_ERROR, LOCK_TIMEOUT_S, LOST_ERRORS, quietly

T = TypeVar("T")


class Study:
    """An open study, brought up to date with the run's history. Only the engine's thread calls it.

    Args:
        identity: Names the study.
        history: What the journal knows of this run.
        sampler: Who proposes.
        seed: Of the sampler.
        me: This engine.
        warn: Told once of everything the user should know.
        path: Where the study is kept if `storage` is None.
        storage: An Optuna storage URL, possibly shared with other runs.
        say: Told of a shared study whenever it was opened.
        lock_timeout_s: How long to wait for another process that holds the file.
        patience: How long engines wait for each other, and for a storage that is away.

    Raises:
        UsageError: The sampler needs a missing package.
    """

    def __init__(
        self,
        identity: StudyIdentity,
        history: History,
        *,
        sampler: SamplerName,
        seed: int,
        me: Holder,
        warn: Warn,
        path: Path,
        storage: str | None = None,
        say: Callable[[StudyOpened], None] = lambda opened: None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        patience: Patience = Patience(),  # noqa: B008  (frozen)
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        self._name = identity.name
        self._history = history
        self._axes = Axes(history.space)
        self._proposer = make_proposer(sampler, history.space, self._axes, seed)
        self._ignores_pruned = sampler == "gp"
        self._me = me
        self._warn = warn
        self._say = say
        self._patience = patience
        self._told_of_fault = False
        with quietly():
            self._home = Home(
                identity,
                sampler=HearingSampler(self._proposer.inner),
                warn=warn,
                path=path,
                url=storage,
                lock_timeout_s=lock_timeout_s,
                return_s=patience.return_s,
            )
            self._claims = self._new_claims()
        self._guarded(self._catch_up)
        if self._home.is_shared:
            self._tell_of_others(again=False)

    @property
    def name(self) -> str:
        """The study's name in its storage."""
        return self._name

    def held(self) -> dict[Configuration, str]:
        """Candidates that other engines try now, and the hosts on which they do."""
        return self._guarded(lambda: self._claims.held(self._claims.look()))

    def arrivals(self, history: History) -> tuple[Arrival, ...]:
        """What other engines found out that `history` does not know yet."""
        return self._guarded(lambda: self._arrivals(self._claims.look(), history))

    def ask(self, history: History, candidate: Configuration | None = None) -> Configuration | None:
        """Claims a candidate; None where none is open, or another engine was faster.

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

    def close(self) -> None:
        """Gives the storage's connections back, and a claim without an outcome free."""
        with quietly(), suppress(*LOST_ERRORS):
            self._claims.give_up()
        self._home.close()

    def _guarded(self, action: Callable[[], T]) -> T:
        """Runs an action; where the storage fails it is done again on a study in memory."""
        with quietly():
            if self._home.has_returned():
                try:
                    self._move_in()
                except LOST_ERRORS as error:
                    self._leave(error)
                else:
                    self._tell_of_others(again=True)
            if self._home.is_in_memory:
                return action()
            try:
                return self._patiently(action)
            except LOST_ERRORS as error:
                self._leave(error)
                return action()

    def _patiently(self, action: Callable[[], T]) -> T:
        if not self._home.is_shared:
            return action()
        try:
            return action()
        except LOST_ERRORS:
            # One statement may fail for what is over in a moment. Actions can be done twice: a
            # claim of ours that was taken without our knowing is given up on the next look.
            time.sleep(self._patience.retry_s)
            return action()

    def _leave(self, error: BaseException) -> None:
        self._home.lose(error)
        self._move_in()

    def _move_in(self) -> None:
        self._claims.drop()
        self._claims = self._new_claims()
        self._catch_up()

    def _new_claims(self) -> Claims:
        listener = Listener(self._patience.grace_s) if self._home.is_shared else None
        return Claims(
            self._home.study,
            self._axes,
            self._me,
            listener=listener,
            beat_s=self._patience.beat_s,
        )

    def _tell_of_others(self, *, again: bool) -> None:
        trials = self._guarded(self._claims.look)
        entries = [e for t in trials if (e := entry.entry_of(t)) and e.run_id != self._me.run_id]
        held = self._claims.held(trials)
        self._say(
            StudyOpened(
                study=self._name,
                storage=self._home.name,
                num_trials=len(entries),
                num_running=len(held),
                hosts=tuple(sorted({*(e.host for e in entries), *held.values()})),
                again=again,
            )
        )

    def _arrivals(self, trials: Sequence[FrozenTrial], history: History) -> tuple[Arrival, ...]:
        return entry.arrivals(trials, history, self._me.run_id, self._axes)

    def _ask(self, history: History, candidate: Configuration | None) -> Configuration | None:
        trials = self._claims.look()
        chosen = self._wished(trials, history) or candidate
        if chosen is None:
            chosen = self._proposer.propose(trials, likely_candidates(history))
            self._tell_of_fault()

        def is_settled(now: Sequence[FrozenTrial]) -> bool:
            return any(a.configuration == chosen for a in self._arrivals(now, history))

        return chosen if self._claims.take(chosen, is_settled) else None

    def _wished(self, trials: Sequence[FrozenTrial], history: History) -> Configuration | None:
        """An open candidate that somebody enqueued; wishes for anything else are ended."""
        for trial in trials:
            if trial.state is not TrialState.WAITING:
                continue
            with suppress(ENDED_ERROR):
                # Only one of several engines gets it to run.
                running = self._home.study._storage.set_trial_state_values(
                    trial._trial_id, state=TrialState.RUNNING
                )
                if not running:
                    continue
                self._home.study.tell(trial.number, state=TrialState.FAIL)
                wish = trial.system_attrs.get("fixed_params", {})
                wished = next(
                    (
                        c
                        for c in history.open_candidates
                        if wish and wish.items() <= self._axes.parameters(c).items()
                    ),
                    None,
                )
                if wished is not None:
                    return wished
        return None

    def _tell_of_fault(self) -> None:
        if self._proposer.fault is not None and not self._told_of_fault:
            self._told_of_fault = True
            self._warn(
                f"The sampler could not propose ({self._proposer.fault}).",
                "The next candidate of the list was taken instead.",
            )

    def _tell(self, finished: FinishedTrial) -> None:
        if finished.configuration not in self._history.space.candidates:
            return
        claim = self._claims.current
        if claim is None or claim.configuration != finished.configuration:
            if finished.number not in self._own_numbers():
                self._write(self._claims.add(finished.configuration), finished)
            return
        try:
            self._write(claim.trial, finished)
        except ENDED_ERROR:
            # The claim was given up by others, or the trial ended from a dashboard; or it was told
            # already, before the storage failed for a moment.
            self._claims.drop()
            if finished.number not in self._own_numbers():
                self._write(self._claims.add(finished.configuration), finished)

    def _write(self, trial: Trial, finished: FinishedTrial) -> None:
        me = self._me
        own = Origin(host=me.host, run=me.run, run_id=me.run_id, number=finished.number)
        entry.write(trial, finished, own, self._history.usable_bytes)
        worst = self._worst_value() if self._ignores_pruned else None
        state, value = entry.told_as(finished.outcome, worst)
        self._home.study.tell(trial, value, state, skip_if_finished=True)
        self._claims.drop()

    def _worst_value(self) -> float | None:
        complete = self._home.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return min((t.value for t in complete if t.value is not None), default=None)

    def _own_numbers(self) -> set[int]:
        """Numbers of this run's trials whose outcome is in the study."""
        entries = [entry.entry_of(t) for t in self._home.study.get_trials(deepcopy=False)]
        return {e.number for e in entries if e is not None and e.run_id == self._me.run_id}

    def _catch_up(self) -> None:
        """Ends trials whose engine is dead, and adds finished ones that are missing.

        Trials of others stay with their engines, except where the study is in memory, and the
        sampler has nowhere else to learn of them.
        """
        self._claims.look()
        known = self._own_numbers()
        for trial in self._history.trials:
            is_missing = trial.number not in known
            is_ours = trial.origin is None or self._home.is_in_memory
            is_candidate = trial.configuration in self._history.space.candidates
            if trial.is_search and is_candidate and is_missing and is_ours:
                self._write(self._claims.add(trial.configuration), trial)
