"""Speed by a clock that the test holds, phases and memory on real steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.configuration import Checkpointing, Configuration
from autotune.outcome import MemoryUse
from autotune.trial import meter
from autotune.trial.live_bytes import HostBudgetExceeded, LiveBytes
from autotune.trial.meter import (
    DeviceLimitExceeded,
    SpeedSession,
    is_precise,
    longest_window,
    measure_memory,
)
from autotune.trial.protocol import Progress
from autotune.trial.stepper import Driver, Stepper, make_stepper, train_window
from autotune.workload.loaded import Batch, LoadedWorkload, Row
from tests.autotune.export.jobs import quiet
from tests.autotune.trial import workloads
from tests.autotune.trial.workloads import Tokens, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

DRIVERS: tuple[Driver, ...] = ("trainer", "accelerate")
MIB = 2**20
GIB = 2**30


class ByHand(Stepper):
    """Steps that take as long as the test says, on the test's own clock."""

    def __init__(self, step_times_s: Sequence[float], sizes: Sequence[int] = (4,)) -> None:
        rows = [{"x": float(i)} for i in range(max(sizes))]
        super().__init__(
            replace(
                workloads.around(nn.Linear(1, 1), rows),
                count_tokens=lambda batch: 10 * len(batch["x"]),
            ),
            Configuration(micro_batch_size=max(sizes), accumulation_steps=1),
        )
        self.device = torch.device("cpu")
        self.now_s = 100.0
        self.num_steps = 0
        self._step_times_s = step_times_s
        self._sizes = sizes

    def collate(self, rows: Sequence[Row]) -> Batch:
        return self.workload.data_collator(list(rows))

    def set_window(self, window: list[Batch]) -> None:
        pass

    def next_window(self) -> list[Batch]:
        size = self._sizes[self.num_steps % len(self._sizes)]
        return [self.collate(self.workload.typical_rows(size))]

    def loss(self, batch: Batch) -> torch.Tensor:
        return torch.tensor(float(self.num_steps))

    def micro_step(self, batch: Batch, *, is_last: bool) -> torch.Tensor:
        return self.loss(batch)

    def optimizer_step(self) -> None:
        self.now_s += self._step_times_s[self.num_steps % len(self._step_times_s)]
        self.num_steps += 1

    def _loader(self) -> Iterator[Batch]:
        raise NotImplementedError


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
    assert len(steady.step_times_s) == meter.PRECISE_AFTER_STEPS
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
    place = tmp_path_factory.mktemp("causal")
    return workloads.loaded(workloads.causal_spec(place, 21, width=32), place)


def stepper_of(
    workload: LoadedWorkload, configuration: Configuration, place: Path, driver: Driver = "trainer"
) -> Stepper:
    with quiet():
        return make_stepper(
            replace(workload, model=copy.deepcopy(workload.model)),
            configuration,
            driver=driver,
            output_dir=str(place / "output"),
            repair_loss=False,
        )


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


def memory_of(
    stepper: Stepper, *, limit_bytes: int = GIB, level_bytes: int = 100 * MIB
) -> MemoryUse:
    memory, steps_s = measure_memory(
        stepper,
        limit_bytes=limit_bytes,
        level_bytes=level_bytes,
        others_bytes=0,
        report=lambda progress: None,
    )
    assert steps_s > 0
    return memory


def honest_peak_bytes(stepper: Stepper, num_steps: int = 3) -> int:
    """Live bytes over whole optimizer steps, the longest micro-batch being the last one."""
    window = longest_window(stepper)[::-1]
    live = LiveBytes()
    live.add(stepper.workload.model.parameters())
    live.add(stepper.workload.model.buffers())
    live.add(value for batch in window for value in batch.values())
    with live:
        for _ in range(num_steps):
            stepper.set_window(window)
            train_window(stepper, window)
    return live.peak_bytes


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("every_n_layers", [None, 1])
@pytest.mark.parametrize("accumulation_steps", [1, 2, 4])
def test_one_micro_batch_shows_the_peak_of_whole_steps(
    causal: LoadedWorkload,
    tmp_path: Path,
    driver: Driver,
    every_n_layers: int | None,
    accumulation_steps: int,
) -> None:
    configuration = Configuration(
        micro_batch_size=4,
        accumulation_steps=accumulation_steps,
        checkpointing=Checkpointing(every_n_layers=every_n_layers),
    )
    memory = memory_of(stepper_of(causal, configuration, tmp_path, driver))
    meant = honest_peak_bytes(stepper_of(causal, configuration, tmp_path, driver))
    assert memory.allocated_bytes == pytest.approx(meant, rel=1e-3)
    assert memory.reserved_bytes == memory.allocated_bytes
    assert memory.outside_bytes == 100 * MIB
    assert memory.total_bytes == memory.allocated_bytes + 100 * MIB
    assert memory.longest_tokens == 6


def test_memory_grows_with_the_micro_batch_and_falls_with_checkpointing(
    causal: LoadedWorkload, tmp_path: Path
) -> None:
    def peak(micro: int, every_n_layers: int | None = None) -> int:
        configuration = Configuration(
            micro_batch_size=micro,
            accumulation_steps=1,
            checkpointing=Checkpointing(every_n_layers=every_n_layers),
        )
        return memory_of(stepper_of(causal, configuration, tmp_path)).allocated_bytes

    assert peak(1) < peak(2) < peak(4) < peak(16)
    assert peak(16, 1) < 0.9 * peak(16)


def test_a_limit_below_the_process_itself_is_out_of_memory(
    causal: LoadedWorkload, tmp_path: Path
) -> None:
    configuration = Configuration(micro_batch_size=4, accumulation_steps=1)
    stepper = stepper_of(causal, configuration, tmp_path)
    with pytest.raises(HostBudgetExceeded, match="occupies 200 MiB after its imports") as caught:
        memory_of(stepper, limit_bytes=100 * MIB, level_bytes=200 * MIB)
    assert caught.value.needed_bytes == 200 * MIB


@pytest.mark.parametrize("room_bytes", [20_000, 60_000, 200_000])
def test_a_limit_below_the_peak_is_out_of_memory_with_a_lower_bound(
    causal: LoadedWorkload, tmp_path: Path, room_bytes: int
) -> None:
    configuration = Configuration(micro_batch_size=16, accumulation_steps=1)
    peak_bytes = memory_of(stepper_of(causal, configuration, tmp_path)).total_bytes
    stepper = stepper_of(causal, configuration, tmp_path)
    limit_bytes = 100 * MIB + room_bytes
    with pytest.raises(HostBudgetExceeded) as caught:
        memory_of(stepper, limit_bytes=limit_bytes)
    assert limit_bytes < caught.value.needed_bytes <= peak_bytes


def test_a_limit_at_the_peak_is_enough(causal: LoadedWorkload, tmp_path: Path) -> None:
    configuration = Configuration(micro_batch_size=16, accumulation_steps=1)
    peak_bytes = memory_of(stepper_of(causal, configuration, tmp_path)).total_bytes
    stepper = stepper_of(causal, configuration, tmp_path)
    assert memory_of(stepper, limit_bytes=peak_bytes).total_bytes == peak_bytes
    with pytest.raises(HostBudgetExceeded):
        memory_of(stepper_of(causal, configuration, tmp_path), limit_bytes=peak_bytes - 1)


def test_memory_is_measured_on_the_longest_rows(causal: LoadedWorkload, tmp_path: Path) -> None:
    stepper = stepper_of(causal, Configuration(micro_batch_size=2, accumulation_steps=3), tmp_path)
    window = longest_window(stepper)
    longest = sorted((row for row in windows_of_all(causal)), key=len, reverse=True)[:6]
    found = [row for batch in window for row in rows_of(batch)]
    assert [len(row) for row in found] == [len(row) for row in longest]
    assert [len(rows_of(batch)) for batch in window] == [2, 2, 2]


def windows_of_all(workload: LoadedWorkload) -> list[Tokens]:
    num_rows = workload.facts.num_rows
    assert num_rows is not None
    return rows_of(workload.data_collator(workload.typical_rows(num_rows)))


def test_no_more_rows_are_fed_than_there_are(tmp_path: Path) -> None:
    workload = workloads.loaded(workloads.causal_spec(tmp_path, 7), tmp_path)
    for micro in (7, 64):
        stepper = stepper_of(
            workload, Configuration(micro_batch_size=micro, accumulation_steps=1), tmp_path
        )
        (batch,) = longest_window(stepper)
        assert len(set(rows_of(batch))) == len(rows_of(batch)) == 7


class Skipping(ByHand):
    """Skips its first steps, as loss scaling does."""

    def __init__(self, num_skipped: int) -> None:
        super().__init__([1.0])
        self.accelerator = self
        self._num_skipped = num_skipped

    @property
    def optimizer_step_was_skipped(self) -> bool:
        return self.num_steps <= self._num_skipped


@pytest.mark.parametrize("num_skipped", [0, 3])
def test_skipped_steps_are_made_again_until_there_is_optimizer_state(num_skipped: int) -> None:
    stepper = Skipping(num_skipped)
    memory_of(stepper)
    assert stepper.num_steps == num_skipped + 2


def test_a_device_that_was_filled_beyond_the_limit_says_how_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from autotune.trial.device import AcceleratorPeak

    monkeypatch.setattr(meter, "reset_peak", lambda device: None)
    monkeypatch.setattr(meter, "synchronize", lambda device: None)
    monkeypatch.setattr(
        meter, "read_peak", lambda device, others: AcceleratorPeak(3 * GIB, 4 * GIB, GIB)
    )
    stepper = Skipping(0)
    stepper.device = torch.device("cuda")
    memory = memory_of(stepper, limit_bytes=5 * GIB)
    assert (memory.allocated_bytes, memory.reserved_bytes) == (3 * GIB, 4 * GIB)
    assert (memory.outside_bytes, memory.total_bytes) == (GIB, 5 * GIB)
    with pytest.raises(DeviceLimitExceeded) as caught:
        memory_of(stepper, limit_bytes=4 * GIB)
    assert caught.value.needed_bytes == 5 * GIB
    assert str(caught.value) == (
        "The process passed the 4.00 GiB of the device that may be filled by 1.00 GiB."
    )
