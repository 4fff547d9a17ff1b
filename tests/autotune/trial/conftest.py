"""What every test of trials needs: one thread, and a clean slate in Accelerate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Runs on one thread, and clears away what Accelerate keeps in the process."""
    import torch
    from accelerate.state import AcceleratorState, GradientState

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
