"""What ranks still do together where they exchange nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autotune.trial.readings.exchange import counted, without_exchange
from autotune.trial.stepper import AccelerateStepper, Stepper, TrainerStepper


@pytest.fixture
def model() -> Iterator[DistributedDataParallel]:
    """Wrapped for a group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield DistributedDataParallel(torch.nn.Linear(2, 1))
    dist.destroy_process_group()


def stepper(kind: type[Stepper], model: torch.nn.Module, **attributes: object) -> Stepper:
    """One that was bound to nothing but a model."""
    made = object.__new__(kind)
    vars(made).update(model=model, **attributes)
    return made


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_plain_loop_counts_over_its_own_rows_alone(
    model: DistributedDataParallel, is_shared: bool
) -> None:
    plain = stepper(AccelerateStepper, model, shares_items=is_shared)
    with without_exchange(plain):
        assert vars(plain)["shares_items"] is False
        assert not model.require_backward_grad_sync
    assert vars(plain)["shares_items"] is is_shared
    assert model.require_backward_grad_sync


def test_the_trainer_counts_over_its_own_tokens_alone(model: DistributedDataParallel) -> None:
    arguments = SimpleNamespace(average_tokens_across_devices=True)
    trainer = stepper(TrainerStepper, model, trainer=SimpleNamespace(args=arguments))
    with suppress(ZeroDivisionError), without_exchange(trainer):
        assert not arguments.average_tokens_across_devices
        raise ZeroDivisionError
    assert arguments.average_tokens_across_devices
    assert model.require_backward_grad_sync
    # Earlier versions know nothing of it, and learn nothing.
    old = SimpleNamespace()
    with without_exchange(stepper(TrainerStepper, model, trainer=SimpleNamespace(args=old))):
        assert vars(old) == {}
    assert vars(old) == {}


def test_collectives_are_counted_by_name(model: DistributedDataParallel) -> None:
    calls: Counter[str] = Counter()
    with counted(calls):
        dist.all_reduce(torch.ones(2))
        dist.barrier()
        dist.barrier()
    dist.barrier()
    assert calls == {"all_reduce": 1, "barrier": 2}
