"""Which engine tries a candidate, where several share a study.

**The claim.** To try a candidate, an engine adds a trial that runs, with the configuration and its
own name in it, by one call of the storage. Then it reads all trials. Where one of a lower number
holds the same configuration and its engine lives, the claim is withdrawn.

**Why no candidate is tried by two at a time.** Every storage of Optuna gives trials numbers one
after the other, and shows a trial with its number, configuration and holder all at once or not at
all: a database adds it in one transaction that locks the study's row, others under their own lock.
Of two engines that claim the same candidate, the one that got the higher number was numbered after
the other's trial was there; when it reads, it sees that one and withdraws. The lowest living claim
withdraws for nobody, so exactly one stays. Had the trial been asked for first and its parameters
set afterwards, as Optuna's `ask` does, the lower number might show its configuration too late.

**What ends a claim.** Its trial's end; or that its engine is gone: on this machine the process is
looked for, on others heartbeats are waited for (`autotune.search.studies.heartbeat`). A claim is
given up by failing its trial, which several engines may do at once without harm: then the lowest
new claim wins. An engine that lived after all finds its trial failed, and stores its outcome as
another one.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import optuna
import psutil
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from pydantic import TypeAdapter, ValidationError

from autotune import lease
from autotune.configuration import Configuration
from autotune.search.studies.heartbeat import BEAT, Heartbeat, Listener
from autotune.search.studies.sampler import Axes
from autotune.search.studies.storage import ENDED_ERROR

HOLDER = "lease"
"""User attribute of a trial: who runs it."""
TOKEN = "claim"
"""User attribute of a trial: what its maker knows it by."""
WITHDRAWN = "withdrawn"
"""User attribute of a trial that did not run: why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One engine, told apart from every other one anywhere."""

    run: str
    """Name of its run, for readers: several machines may have a run of that name."""
    run_id: str
    """Of its run; the next engine of the same run has it too."""
    host: str
    process: int
    started_unix_s: float
    place: str
    """Where process numbers mean the same: one boot of one machine, or of one container."""

    @classmethod
    def mine(cls, run: str, run_id: str) -> Holder:
        """This process, as the engine of a run."""
        own = lease.mine()
        return cls(run=run, run_id=run_id, place=_place(), **asdict(own))

    @property
    def is_gone(self) -> bool:
        """Whether its process is known to have ended: only who stands beside it can say."""
        held = lease.Lease(host=self.host, process=self.process, started_unix_s=self.started_unix_s)
        return self.place == _place() and not held.is_alive


@cache
def _place() -> str:
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        # Containers of one machine number their processes apart.
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        parts.append(str(round(psutil.boot_time())))
    return "/".join(parts)


@cache
def _holder_adapter() -> TypeAdapter[Holder]:
    return TypeAdapter(Holder)


def holder_of(trial: FrozenTrial) -> Holder | None:
    """Who runs a trial; None where none of our engines does."""
    try:
        return _holder_adapter().validate_python(trial.user_attrs.get(HOLDER))
    except ValidationError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A candidate that this engine tries, and the trial that says so."""

    configuration: Configuration
    trial: Trial


class Claims:
    """The claims of one engine on one study. Only the engine's thread calls it.

    Args:
        study: Open.
        axes: The knobs as the study records them.
        me: This engine.
        listener: Hears other engines; None where nobody else uses the study.
        beat_s: Between two heartbeats.
    """

    def __init__(
        self,
        study: optuna.Study,
        axes: Axes,
        me: Holder,
        *,
        listener: Listener | None,
        beat_s: float,
    ) -> None:
        self._study = study
        self._axes = axes
        self._me = me
        self._listener = listener
        self._beat_s = beat_s
        self._heartbeat: Heartbeat | None = None
        self.current: Claim | None = None
        """What this engine tries now."""

    def look(self) -> list[FrozenTrial]:
        """All trials of the study, those of dead engines ended."""
        trials = self._read()
        lost = [t for t in trials if t.state is TrialState.RUNNING and self._is_lost(t)]
        for trial in lost:
            self._fail(trial.number)
        return self._read() if lost else trials

    def held(self, trials: Sequence[FrozenTrial]) -> dict[Configuration, str]:
        """Candidates that other engines try now, and the hosts on which they do."""
        found: dict[Configuration, str] = {}
        for trial in trials:
            if (holder := self._other_holder(trial)) is not None:
                configuration = self._axes.configuration(trial.params)
                if configuration is not None:
                    found.setdefault(configuration, holder.host)
        return found

    def take(
        self,
        configuration: Configuration,
        is_settled: Callable[[Sequence[FrozenTrial]], bool] = lambda trials: False,
    ) -> bool:
        """Claims a candidate.

        Args:
            configuration: What is to be tried.
            is_settled: Whether the trials, read after the claim, make it needless: another engine
                may have ended its trial of the same candidate just before.

        Returns:
            False where another engine has it, or it is settled.
        """
        own = self.add(configuration)
        trials = self.look()
        rival = next(
            (
                t
                for t in trials
                if t.number < own.number
                and self._other_holder(t) is not None
                and self._axes.configuration(t.params) == configuration
            ),
            None,
        )
        if rival is not None or is_settled(trials):
            why = "it is known by now" if rival is None else f"trial {rival.number} is at it"
            own.set_user_attr(WITHDRAWN, why)
            self.drop()
            self._fail(own.number)
            return False
        if self._listener is not None:
            self._heartbeat = Heartbeat(own, self._beat_s, self._listener.reached)
        return True

    def add(self, configuration: Configuration) -> Trial:
        """Adds a running trial of this engine, which becomes the current one."""
        token = uuid.uuid4().hex
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=dict(self._axes.parameters(configuration)),
                distributions=self._axes.distributions,
                user_attrs={HOLDER: asdict(self._me), TOKEN: token, BEAT: 0},
            )
        )
        number = next(t for t in self._read() if t.user_attrs.get(TOKEN) == token)
        trial = Trial(self._study, number._trial_id)
        self.current = Claim(configuration=configuration, trial=trial)
        return trial

    def drop(self) -> None:
        """Forgets the current claim and stops its heartbeat; its trial stays as it is."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._heartbeat = self.current = None

    def give_up(self) -> None:
        """Ends the current claim without an outcome, so that others may try the candidate."""
        if (claim := self.current) is not None:
            self.drop()
            self._fail(claim.trial.number)

    def _read(self) -> list[FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False)
        if self._listener is not None:
            self._listener.reached()
        return trials

    def _fail(self, number: int) -> None:
        # Others may have ended it meanwhile.
        with suppress(ENDED_ERROR):
            self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def _is_current(self, trial: FrozenTrial) -> bool:
        return self.current is not None and self.current.trial.number == trial.number

    def _other_holder(self, trial: FrozenTrial) -> Holder | None:
        """The engine of another run that has this trial running."""
        holder = holder_of(trial) if trial.state is TrialState.RUNNING else None
        return holder if holder is not None and holder.run_id != self._me.run_id else None

    def _is_lost(self, trial: FrozenTrial) -> bool:
        """Whether nobody will ever tell the end of a running trial."""
        if self._is_current(trial):
            return False
        if self._listener is None:
            return True
        holder = holder_of(trial)
        if holder is None:
            # It is somebody else's affair, and stands in nobody's way.
            return False
        # A run has one engine at a time, so that another one of this run has ended.
        return (
            holder.run_id == self._me.run_id
            or holder.is_gone
            or self._listener.is_silent(trial.number, trial.user_attrs.get(BEAT))
        )
