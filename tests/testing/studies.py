"""Studies on a made-up landscape: opened, asked, told and read by somebody else's program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna

from autotune.configuration import Configuration
from autotune.events import StudyOpened
from autotune.outcome import Outcome
from autotune.request import SamplerName
from autotune.search.evidence.closing import with_trial
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.search.studies.claims import Holder
from autotune.search.studies.heartbeat import Patience
from autotune.search.studies.identity import StudyIdentity
from autotune.search.studies.study import Study
from tests.testing.landscapes import CPU_SHORT, Landscape, make_landscape

LANDSCAPE = make_landscape(CPU_SHORT, fraction_out=0.4, baseline_size=2)
HASTY = Patience(beat_s=0.05, grace_s=0.6, return_s=0.0, retry_s=0.05)


class Warnings(list[tuple[str, str | None]]):
    """What the user was told."""

    def __call__(self, cause: str, remedy: str | None) -> None:
        self.append((cause, remedy))


def empty(landscape: Landscape = LANDSCAPE) -> History:
    return History(space=landscape.space, usable_bytes=landscape.usable_bytes)


def identity(history: History, **parts: str) -> StudyIdentity:
    return StudyIdentity(stem="my job", parts={"space": history.space.digest, **parts})


def engine(run: str = "run-1", *, host: str | None = None) -> Holder:
    """This process as an engine; with a host, as one on another machine."""
    me = Holder.mine(run, run_id=f"id of {run}")
    if host is None:
        return me
    return Holder(
        run=run,
        run_id=f"id of {run} on {host}",
        host=host,
        process=me.process,
        started_unix_s=me.started_unix_s,
        place=f"{host}/some boot",
    )


@contextmanager
def opened(
    path: Path,
    history: History | None = None,
    *,
    sampler: SamplerName = "auto",
    run: str = "run-1",
    host: str | None = None,
    told: Warnings | None = None,
    said: list[StudyOpened] | None = None,
    storage: str | None = None,
    machine: str = "m",
    patience: Patience = HASTY,
) -> Iterator[Study]:
    history = history or empty()
    study = Study(
        identity(history, machine=machine),
        history,
        sampler=sampler,
        seed=1,
        me=engine(run, host=host),
        warn=Warnings() if told is None else told,
        say=(lambda opened: None) if said is None else said.append,
        path=path,
        storage=storage,
        lock_timeout_s=0.05,
        patience=patience,
    )
    try:
        yield study
    finally:
        study.close()


def run_trials(
    study: Study, history: History, num: int, landscape: Landscape = LANDSCAPE
) -> History:
    for _ in range(num):
        configuration = study.ask(history)
        if configuration is None:
            break
        assert configuration in history.open_candidates
        history = tell(study, history, landscape.outcome(configuration))
    return history


def tell(
    study: Study, history: History, outcome: Outcome, configuration: Configuration | None = None
) -> History:
    """Ends a trial, the one that was asked for last by default."""
    if configuration is None:
        claim = study._claims.current
        assert claim is not None
        configuration = claim.configuration
    trial = FinishedTrial(
        number=len(history.trials),
        purpose="search",
        configuration=configuration,
        outcome=outcome,
    )
    study.tell(trial)
    return with_trial(history, trial)


def stored(study: Study) -> list[optuna.trial.FrozenTrial]:
    return study._home.study.get_trials()


def states(study: Study) -> list[str]:
    return [t.state.name for t in stored(study)]


def numbers(trials: list[optuna.trial.FrozenTrial]) -> list[int]:
    return [t.user_attrs["trial"]["number"] for t in trials]


def load(path: Path, name: str) -> list[optuna.trial.FrozenTrial]:
    """The trials as anybody else's program reads them."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        return optuna.load_study(study_name=name, storage=storage).get_trials()
    finally:
        storage.remove_session()
        storage.engine.dispose()


def wait_for_return(study: Study, limit_s: float = 30.0) -> None:
    """Until a storage that was lost is found again."""
    deadline_s = time.monotonic() + limit_s
    while study._home.is_in_memory:
        assert time.monotonic() < deadline_s
        study.held()
        time.sleep(0.05)
