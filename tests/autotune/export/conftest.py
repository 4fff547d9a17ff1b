"""Small models need neither threads nor a search of everything that was ever imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package")
def _light() -> Iterator[None]:
    """One thread, and objects of the imported libraries left out of garbage collection."""
    import torch
    import transformers.trainer  # noqa: F401

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(num_threads)
