"""Live bytes against sums made by hand, and against the profiler."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from autotune.outcome import OutOfMemory
from autotune.trial.failure import outcome_of
from autotune.trial.readings.live_bytes import HostBudgetExceeded, LiveBytes

KIB = 1024


def kib(num: int) -> torch.Tensor:
    """A float tensor of so many KiB."""
    return torch.ones(num * KIB // 4)


def test_each_storage_counts_once_for_as_long_as_it_lives() -> None:
    live = LiveBytes()
    with live:
        a = kib(8)
        assert live.current_bytes == 8 * KIB
        view = a.view(2, -1)[1]
        a.add_(1)
        assert live.current_bytes == 8 * KIB
        b = a + view.sum()
        assert live.current_bytes == 16 * KIB
        del a
        assert live.current_bytes == 16 * KIB, "the view still holds it"
        del view
        assert live.current_bytes == 8 * KIB
        del b
    assert live.current_bytes == 0
    # Both tensors and the sum, one float, were alive together.
    assert live.peak_bytes == 16 * KIB + 4


def test_temporaries_count_until_they_are_freed() -> None:
    a = kib(4)
    live = LiveBytes()
    live.add([a, a.view(-1), torch.empty(0)])
    assert live.current_bytes == 4 * KIB
    with live:
        b = a * 2 + a * 3
    # Two products and their sum live at the moment when the sum is made.
    assert (live.peak_bytes, live.current_bytes) == (16 * KIB, 8 * KIB)
    live.reset_peak()
    assert live.peak_bytes == 8 * KIB
    del b
    assert live.current_bytes == 4 * KIB


def test_what_autograd_keeps_lives_until_the_backward_pass() -> None:
    weight = kib(2).requires_grad_()
    live = LiveBytes()
    live.add([weight])
    with live:
        hidden = (weight * 3).exp()
        loss = hidden.exp().sum()
        del hidden
        # exp keeps its result for its gradient, twice; the product is not kept.
        assert live.current_bytes == 2 * KIB + 4 * KIB + 4
        loss.backward()
    assert weight.grad is not None
    assert live.current_bytes == 4 * KIB + 4


def test_sparse_gradients_count_their_indices_and_values() -> None:
    embedding = nn.Embedding(100, 16, sparse=True)
    live = LiveBytes()
    live.add(embedding.parameters())
    with live:
        embedding(torch.tensor([3, 5, 7, 9])).sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.layout is torch.sparse_coo
    assert live.current_bytes == 100 * 16 * 4 + 4 * 8 + 4 * 16 * 4


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    loss = nn.functional.cross_entropy(model(rows), torch.zeros(len(rows), dtype=torch.long))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(*layers, nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 10))
    return model, torch.optim.AdamW(model.parameters())


def allocator_totals(profiler: profile) -> list[int]:
    """Bytes that the CPU's allocator had given out, after each of its events."""
    results: Any = profiler.profiler and profiler.profiler.kineto_results
    waiting = list(results.experimental_event_tree())
    totals = []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag.name == "Allocation":
            totals.append(int(event.extra_fields.total_allocated))
    return totals


def test_the_peak_is_what_the_profiler_saw_of_the_allocator() -> None:
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model, optimizer = make()
        rows = torch.randn(48, 64)
        for _ in range(2):
            step(model, optimizer, rows)
    live = LiveBytes()
    live.add([*(p.detach() for p in model.parameters()), rows])
    del optimizer
    optimizer = torch.optim.AdamW(model.parameters())
    with live:
        for _ in range(2):
            step(model, optimizer, rows)
    seen = max(allocator_totals(profiler))
    assert seen > 3 * sum(p.nbytes for p in model.parameters())
    assert live.peak_bytes == pytest.approx(seen, rel=0.01)


def test_the_budget_ends_a_step_with_what_would_be_needed() -> None:
    weight = kib(4)
    live = LiveBytes(budget_bytes=10 * KIB, level_bytes=100 * KIB)
    live.add([weight])
    with live:
        _kept = weight + 1
        with pytest.raises(HostBudgetExceeded) as caught:
            weight + 2
    assert caught.value.needed_bytes == 112 * KIB
    assert isinstance(caught.value, torch.OutOfMemoryError)
    assert str(caught.value) == (
        "The process would pass the 110 KiB that may be filled by at least 2.00 KiB."
    )


def test_the_budget_keeps_its_type_through_the_backward_pass() -> None:
    weight = kib(4).requires_grad_()
    live = LiveBytes(budget_bytes=10 * KIB)
    live.add([weight])
    with live:
        loss = weight.exp().sum()
        with pytest.raises(HostBudgetExceeded) as caught:
            # The gradient comes on top of the weight and of what exp kept.
            loss.backward()
    outcome = outcome_of(caught.value, limit_bytes=10 * KIB)
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.where, outcome.is_certain) == ("host", True)
    assert outcome.needed_at_least_bytes == caught.value.needed_bytes
    # The loss and the gradient that the backward pass starts from are a float each.
    assert caught.value.needed_bytes == 12 * KIB + 8
