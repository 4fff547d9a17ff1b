"""Pictures of screens as plain text: compared, or written again where `UPDATE_GOLDENS=1`."""

from __future__ import annotations

import os
from pathlib import Path

_PLACE = Path(__file__).parent / "goldens"


def hold_against(name: str, text: str) -> None:
    """Compares a picture with the one that is kept under its name."""
    path = _PLACE / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} is another picture"
