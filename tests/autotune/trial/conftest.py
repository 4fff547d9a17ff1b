"""What every test of trials needs: one thread, a clean slate in Accelerate, a channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.autotune.trial.lines import Line


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


@pytest.fixture
def line() -> Iterator[Line]:
    """A channel between engine and worker, both in this process."""
    from tests.autotune.trial.lines import Line

    made = Line()
    yield made
    made.close()
    made.worker.close()
