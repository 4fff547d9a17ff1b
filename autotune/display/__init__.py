"""How a run is shown while it goes on: as a live panel, as plain lines, or not at all."""

from __future__ import annotations

from typing import Literal, TypeAlias

DisplayName: TypeAlias = Literal["auto", "rich", "plain", "none"]
DISPLAYS: tuple[DisplayName, ...] = ("auto", "rich", "plain", "none")
