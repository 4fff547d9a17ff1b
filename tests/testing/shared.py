"""Folders of small inputs beside the project, which tests skip without."""

from __future__ import annotations

from pathlib import Path

import pytest

_SHARED = Path(__file__).parents[2].parent / "shared"


def case_folder(name: str) -> Path:
    """The folder of one case; skips the test, or the module that asks, where it is absent."""
    folder = _SHARED / "cases" / name
    if not folder.is_dir():
        pytest.skip(f"the folder of case {name} is not beside the project", allow_module_level=True)
    return folder


def data_file(name: str) -> Path:
    """A file of real data; skips the test, or the module that asks, where it is absent."""
    path = _SHARED / "data" / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the project", allow_module_level=True)
    return path
