"""Speed by a clock that the test holds, and phases of real steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.configuration import Checkpointing, Configuration
from autotune.trial.meter import PRECISE_AFTER_STEPS, SpeedSession, is_precise
from autotune.trial.protocol import Progress
from autotune.trial.stepper import Driver, Stepper
from autotune.workload.loaded import Batch, LoadedWorkload
from tests.autotune.trial.meters import DRIVERS, ByHand, small_decoder, stepper_of
from tests.autotune.trial.workloads import Tokens, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")


@pytest.fixture
def session_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(step_times_s: Sequence[float], sizes: Sequence[int] = (4,)) -> SpeedSession:
        stepper = ByHand(step_times_s, sizes)
        monkeypatch.setattr(time, "perf_counter", lambda: stepper.now_s)
        return SpeedSession(stepper, lambda progress: None)

    return make


def test_a_block_times_each_step_and_counts_what_it_trained_on(session_of: Any) -> None:
    session = session_of([1.0, 2.0, 4.0, 8.0], sizes=[4, 3])
    session.warm_up(2)
    speed = session.block(min_steps=2, max_steps=2)
    assert speed.step_times_s == (4.0, 8.0)
    assert speed.step_samples == (4, 3)
    assert speed.step_tokens == (40, 30)
    assert speed.losses == (2.0, 3.0)
    assert speed.num_warmup_steps == 2
    assert session.steps_s == 15.0
    assert speed.samples_per_s == 7 / 12


@pytest.mark.parametrize(
    ("min_steps", "max_steps", "max_seconds", "meant"),
    [
        (3, 7, 1e9, 7),
        (3, 7, 0.0, 3),
        (1, 7, 4.0, 4),
        (1, 7, 4.5, 5),
        (9, 7, 1e9, 9),
    ],
)
def test_a_block_ends_by_steps_or_seconds(
    session_of: Any, min_steps: int, max_steps: int, max_seconds: float, meant: int
) -> None:
    # Steps that never agree, so that precision ends nothing.
    session = session_of([0.5, 1.5])
    speed = session.block(
        min_steps=min_steps, max_steps=max_steps, max_seconds=max_seconds, precision=0.01
    )
    assert len(speed.step_times_s) == meant


def test_a_block_ends_once_it_is_precise(session_of: Any) -> None:
    steady = session_of([1.0]).block(min_steps=2, max_steps=50, precision=0.01)
    assert len(steady.step_times_s) == PRECISE_AFTER_STEPS
    # 1 % up and down: a standard error of 1 % / sqrt(n), roughly.
    wavering = session_of([0.99, 1.01]).block(min_steps=2, max_steps=50, precision=0.003)
    assert 10 <= len(wavering.step_times_s) <= 14


def test_precision_is_that_of_the_time_per_sample() -> None:
    assert is_precise([2.0, 4.0, 2.0, 4.0, 2.0], [1, 2, 1, 2, 1], 0.0)
    assert not is_precise([2.0, 4.0, 2.0, 4.0, 2.0], [1, 1, 1, 1, 1], 0.1)
    assert not is_precise([2.0] * 4, [1] * 4, 1.0)


def test_progress_is_told_outside_the_timed_steps_alone(session_of: Any) -> None:
    told: list[tuple[float, Progress]] = []
    session = session_of([1.0])
    session.report = lambda progress: told.append((session.stepper.now_s, progress))
    session.warm_up(2)
    session.block(min_steps=4, max_steps=4)
    assert [(now_s, p.stage, p.step, p.num_steps) for now_s, p in told] == [
        (100.0, "warm-up", 0, 2),
        (101.0, "warm-up", 1, 2),
        (102.0, "speed", 0, 4),
        (106.0, "speed", 4, 4),
    ]
    assert told[-1][1].samples_per_s == 4.0


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    return small_decoder(tmp_path_factory.mktemp("causal"))


def watch_rows(stepper: Stepper) -> list[list[Tokens]]:
    """Fills with the rows of every window that is fetched."""
    seen: list[list[Tokens]] = []
    take = stepper.next_window

    def next_window() -> list[Batch]:
        window = take()
        seen.append([row for batch in window for row in rows_of(batch)])
        return window

    stepper.next_window = next_window  # type: ignore[method-assign]
    return seen


def test_the_nth_timed_step_trains_on_the_same_rows_whatever_the_configuration(
    causal: LoadedWorkload, tmp_path: Path
) -> None:
    found = []
    for micro, accumulation, every in ((8, 1, None), (2, 4, None), (4, 2, 1)):
        configuration = Configuration(
            micro_batch_size=micro,
            accumulation_steps=accumulation,
            checkpointing=Checkpointing(every_n_layers=every),
        )
        stepper = stepper_of(causal, configuration, tmp_path)
        rows = watch_rows(stepper)
        session = SpeedSession(stepper, lambda progress: None)
        session.warm_up(2)
        speed = session.block(min_steps=3, max_steps=3)
        assert speed.step_samples == (8, 8, 8)
        assert speed.step_tokens == tuple(sum(map(len, window)) for window in rows[2:])
        found.append((rows, speed.losses))
    assert found[0][0] == found[1][0] == found[2][0]
    # Five windows over 21 rows reach into the third epoch; each has its own order.
    assert len({tuple(rows) for rows in found[0][0]}) == 5
    for _, losses in found[1:]:
        assert losses == pytest.approx(found[0][1], rel=1e-3)


@pytest.mark.parametrize("driver", DRIVERS)
def test_phases_add_up_and_leave_nothing_behind(
    causal: LoadedWorkload, tmp_path: Path, driver: Driver
) -> None:
    configuration = Configuration(micro_batch_size=4, accumulation_steps=2)
    stepper = stepper_of(causal, configuration, tmp_path, driver)
    session = SpeedSession(stepper, lambda progress: None)
    session.warm_up(1)
    warm_s = session.steps_s
    owners: list[object] = [stepper, stepper.accelerator, stepper.model]
    owners.append(getattr(stepper, "trainer", None))
    before = [set(vars(owner)) for owner in owners if owner is not None]
    phases = session.phases(num_steps=2)
    parts = [phases.data_s, phases.forward_s, phases.backward_s, phases.optimizer_s]
    assert all(part > 0 for part in parts)
    assert sum(parts) * 2 == pytest.approx(session.steps_s - warm_s, rel=1e-6)
    assert [set(vars(owner)) for owner in owners if owner is not None] == before
    assert all(p.grad is None for p in stepper.model.parameters())


def test_a_fault_inside_the_phases_leaves_nothing_behind(
    causal: LoadedWorkload, tmp_path: Path
) -> None:
    configuration = Configuration(micro_batch_size=4, accumulation_steps=2)
    stepper: Any = stepper_of(causal, configuration, tmp_path)

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no gradient")

    stepper.optimizer.step = fail
    with pytest.raises(RuntimeError, match="no gradient"):
        SpeedSession(stepper, lambda progress: None).phases()
    assert "compute_loss" not in vars(stepper.trainer)
    assert "backward" not in vars(stepper.accelerator)
