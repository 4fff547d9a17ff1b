"""Moving a job off its device and back; here, where there is none, that nothing happens."""

from __future__ import annotations

import torch

from autotune.library.parking import _layout, _view, parked
from tests.testing import live


def test_on_the_host_nothing_is_moved() -> None:
    model = live.gpt2()
    before = [(p.data_ptr(), p.data.clone()) for p in model.parameters()]
    with parked(model, None) as moved_bytes:
        assert moved_bytes == 0
    for parameter, (address, value) in zip(model.parameters(), before, strict=True):
        assert parameter.data_ptr() == address
        assert torch.equal(parameter.data, value)


def test_views_are_laid_out_again_as_they_were() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base, base.T, base[1:, 2:4], base[2]):
        again = _view(base.untyped_storage(), _layout(view), view.dtype, "cpu")
        assert torch.equal(again, view)
        assert again.stride() == view.stride()
        assert again.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
