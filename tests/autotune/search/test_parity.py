"""What is said of parity where nothing, or nothing useful, could be measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from autotune.configuration import Configuration
from autotune.outcome import Failed, OutOfMemory, Stopped
from autotune.run_directory import RunDirectory
from autotune.search.parity import check_parity
from autotune.search.session import Session
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import CheckParity, Command, ParityFound, Reply


@dataclass
class _Pool:
    reply: Reply | Stopped
    asked: list[Command] = field(default_factory=list)

    def ask(self, command: Command, *, log: Path, time_limit_s: float) -> Reply | Stopped:
        self.asked.append(command)
        return self.reply


@dataclass
class _Session:
    run: RunDirectory
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def warn(self, cause: str, remedy: str) -> None:
        self.warnings.append((cause, remedy))


def ask(pool: _Pool, session: _Session, micro: int, accumulation: int = 1):  # type: ignore[no-untyped-def]
    return check_parity(
        cast("Session", session),
        cast("WorkerPool", pool),
        Configuration(micro_batch_size=micro, accumulation_steps=accumulation),
    )


@pytest.fixture
def session(tmp_path: Path) -> _Session:
    return _Session(RunDirectory(tmp_path))


@pytest.mark.parametrize(
    "reply",
    [Failed(cause="The loss is a dict."), OutOfMemory(cause="8 rows did not fit.", where="host")],
)
def test_a_check_that_could_not_be_made_is_not_called_a_pass(
    reply: Failed | OutOfMemory, session: _Session
) -> None:
    found = ask(_Pool(reply), session, 8)
    assert found.holds is None
    assert not found.repaired
    assert reply.cause in found.detail
    assert session.warnings[0][0] == found.detail


def test_a_stop_is_not_warned_of(session: _Session) -> None:
    found = ask(_Pool(Stopped(cause="asked to")), session, 8)
    assert found.holds is None
    assert session.warnings == []


def test_one_sample_is_not_split(session: _Session) -> None:
    pool = _Pool(Stopped(cause="never asked"))
    assert ask(pool, session, 1).holds is True
    assert pool.asked == []


def test_no_more_rows_are_taken_than_a_step_has(session: _Session) -> None:
    pool = _Pool(
        ParityFound(
            losses=(0.5, 0.5),
            gradient_norms=(1.0, 1.0),
            repaired_losses=None,
            repaired_gradient_norms=None,
        )
    )
    found = ask(pool, session, 2, 3)
    assert pool.asked == [CheckParity(num_rows=4, accumulation_steps=2)]
    assert found.holds is True


@pytest.mark.parametrize("per_device", [2, 3])
def test_two_rows_are_held_against_single_ones_and_not_against_themselves(
    session: _Session, per_device: int
) -> None:
    doubled = ParityFound(
        losses=(0.5, 1.0),
        gradient_norms=(1.0, 2.0),
        repaired_losses=None,
        repaired_gradient_norms=None,
    )
    pool = _Pool(doubled)
    found = ask(pool, session, per_device)
    assert pool.asked == [CheckParity(num_rows=2, accumulation_steps=2)]
    assert found.holds is False
    assert found.detail.startswith("Split into 2 micro-batches, the same 2 rows give 2.00 times")
