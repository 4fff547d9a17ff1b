"""Moving a job off a device and back."""

from __future__ import annotations

import pytest
import torch

from autotune.library.parking import parked
from tests.testing import live

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here"),
]


def test_values_objects_and_shared_memory_survive() -> None:
    model = live.gpt2().to(torch.accelerator.current_accelerator())
    optimizer = torch.optim.AdamW(model.parameters())
    model(
        **{k: v.to(model.device) for k, v in live.pad([live.Tokens()[3]]).items()}
    ).loss.backward()
    optimizer.step()
    parameters = [*model.parameters()]
    before = [p.detach().cpu().clone() for p in parameters]
    with parked(model, optimizer) as moved_bytes:
        assert moved_bytes > sum(p.numel() * p.element_size() for p in parameters)
        assert {p.device.type for p in model.parameters()} == {"cpu"}
        assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))
        assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert {p.device.type for p in model.parameters()} != {"cpu"}
    assert all(torch.equal(p.cpu(), b) for p, b in zip(parameters, before, strict=True))
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
