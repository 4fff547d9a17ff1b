"""Where the study of a run lives: a file of the run, a storage that others share, or memory.

A study that is lost is no loss: the journal has every trial. The run then goes on with one in
memory, and where the storage is a shared one, returns to it as soon as it answers again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage

from autotune.search.studies.identity import StudyIdentity
from autotune.search.studies.storage import (
    OPENING_ERRORS,
    in_one_line,
    is_locked,
    move_aside,
    open_url,
    sqlite_storage,
)
from autotune.storage_url import scrubbed, shown

COSTLY_FACTOR = 10.0
"""A try to reach a lost storage is made again after so many times what it took."""

Warn = Callable[[str, str | None], None]
"""Tells the user a cause and a remedy."""


class Home:
    """Opens the study of a run, and finds another home for it where it must.

    Args:
        identity: Names the study.
        sampler: Hears of the end of each trial.
        warn: Told once of everything the user should know.
        path: Where the study is kept if `url` is None.
        url: A storage that may be shared with other runs.
        lock_timeout_s: How long to wait for another process that holds the file.
        return_s: Between two tries to reach a shared storage again.
    """

    def __init__(
        self,
        identity: StudyIdentity,
        *,
        sampler: BaseSampler,
        warn: Warn,
        path: Path,
        url: str | None,
        lock_timeout_s: float,
        return_s: float,
    ) -> None:
        self._identity = identity
        self._sampler = sampler
        self._warn = warn
        self._url = url
        self._return_s = return_s
        self._next_return_s = 0.0
        self._storage: BaseStorage = InMemoryStorage()
        if url is None:
            self.study = self._open_private(path, lock_timeout_s)
            return
        try:
            self.study = self._open(open_url(url))
        except OPENING_ERRORS as error:
            # What was wrong with the URL from the start was said when the run began.
            self.lose(error)

    @property
    def is_shared(self) -> bool:
        """Whether other engines may be in the study now."""
        return self._url is not None and not self.is_in_memory

    @property
    def is_in_memory(self) -> bool:
        """Whether the study has no other home now."""
        return isinstance(self._storage, InMemoryStorage)

    @property
    def name(self) -> str:
        """What the storage is called in words that can be shown."""
        return shown(self._url) if self._url is not None else "the run's directory"

    def lose(self, error: BaseException) -> None:
        """Gives the storage up after an error of it, and opens a study in memory."""
        fault = in_one_line(error)
        if self._url is None:
            remedy = "The run goes on with a study in memory; its journal keeps every trial."
        else:
            fault = scrubbed(fault, self._url)
            remedy = (
                "The run goes on alone, and joins the others again when the storage answers; its "
                "journal keeps every trial."
            )
        self.close()
        self._next_return_s = time.monotonic() + self._return_s
        self.study = self._create(InMemoryStorage())
        self._warn(f"The Optuna study cannot be used any more ({fault}).", remedy)

    def has_returned(self) -> bool:
        """Tries, where it is time for it, to open a shared storage again that was lost."""
        if self._url is None or not self.is_in_memory or time.monotonic() < self._next_return_s:
            return False
        memory, begun_s = self._storage, time.monotonic()
        try:
            self.study = self._open(open_url(self._url))
        except OPENING_ERRORS:
            if self._storage is not memory:
                self.close()
                self._storage = memory
            now_s = time.monotonic()
            # A network that swallows everything lets each try take its whole time limit.
            wait_s = max(self._return_s, COSTLY_FACTOR * (now_s - begun_s))
            self._next_return_s = now_s + wait_s
            return False
        return True

    def close(self) -> None:
        """Gives the storage's connections back."""
        if isinstance(self._storage, RDBStorage):
            with suppress(*OPENING_ERRORS):
                self._storage.remove_session()
            self._storage.engine.dispose()

    def _create(self, storage: BaseStorage) -> optuna.Study:
        self._storage = storage
        return optuna.create_study(
            study_name=self._identity.name,
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

    def _open(self, storage: BaseStorage) -> optuna.Study:
        self._storage = storage
        earlier = {
            summary.study_name: summary.user_attrs
            for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)
        }
        study = self._create(storage)
        if self._identity.name not in earlier:
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
            f"study {self._identity.name}.",
            "The earlier one stays in the storage as it is.",
        )
