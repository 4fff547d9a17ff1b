"""Peaks of memory against whole steps counted honestly, and limits on both sides of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autotune.configuration import Checkpointing, Configuration
from autotune.outcome import MemoryUse
from autotune.trial.readings import meter
from autotune.trial.readings.live_bytes import HostBudgetExceeded, LiveBytes
from autotune.trial.readings.longest import has_padding, longest_window
from autotune.trial.readings.meter import DeviceLimitExceeded, measure_memory
from autotune.trial.stepper import Driver, Stepper, train_window
from autotune.workload.loaded import Batch, LoadedWorkload
from tests.autotune.trial import workloads
from tests.autotune.trial.readings.meters import DRIVERS, ByHand, small_decoder, stepper_of
from tests.autotune.trial.workloads import Tokens, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

MIB = 2**20
GIB = 2**30


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> LoadedWorkload:
    return small_decoder(tmp_path_factory.mktemp("causal"))


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
    assert [tuple(batch["input_ids"].shape) for batch in window] == [
        (2, len(longest[first])) for first in (0, 2, 4)
    ]


def windows_of_all(workload: LoadedWorkload) -> list[Tokens]:
    num_rows = workload.facts.num_rows
    assert num_rows is not None
    return rows_of(workload.data_collator(workload.typical_rows(num_rows)))


def test_longest_rows_of_one_length_are_masked_as_beside_a_shorter_one(
    causal: LoadedWorkload, tmp_path: Path
) -> None:
    (longest,) = causal.longest_rows(1)
    tokens = longest["input_ids"]
    assert isinstance(tokens, list)
    alike = replace(causal, longest_rows=lambda num: [longest] * num)
    whole = Configuration(micro_batch_size=2, accumulation_steps=2)
    for batch in longest_window(stepper_of(alike, whole, tmp_path)):
        mask = batch["attention_mask"]
        assert isinstance(mask, torch.Tensor)
        assert mask.shape == (2, len(tokens))
        assert (mask == 0).sum() == 1
    single = Configuration(micro_batch_size=1, accumulation_steps=4)
    for batch in longest_window(stepper_of(alike, single, tmp_path)):
        assert not has_padding(batch), "a row alone is never padded"
    never = replace(alike, typical_rows=lambda num: [longest] * num)
    for batch in longest_window(stepper_of(never, whole, tmp_path)):
        assert not has_padding(batch), "rows of one length never are"


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
    moved: list[torch.device] = []

    def move(batch: Batch, device: torch.device) -> Batch:
        moved.append(device)
        return batch

    monkeypatch.setattr(meter, "send_to_device", move)
    stepper = Skipping(0)
    stepper.device = torch.device("cuda")
    stepper.configuration = replace(stepper.configuration, accumulation_steps=3)
    memory = memory_of(stepper, limit_bytes=5 * GIB)
    # All micro-batches of a step wait on the device, since the loader puts them there.
    assert moved == [stepper.device] * 3
    assert (memory.allocated_bytes, memory.reserved_bytes) == (3 * GIB, 4 * GIB)
    assert (memory.outside_bytes, memory.total_bytes) == (GIB, 5 * GIB)
    with pytest.raises(DeviceLimitExceeded) as caught:
        memory_of(stepper, limit_bytes=4 * GIB)
    assert caught.value.needed_bytes == 5 * GIB
    assert str(caught.value) == (
        "The process passed the 4.00 GiB of the device that may be filled by 1.00 GiB."
    )
