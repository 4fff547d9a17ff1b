"""A result as blocks of text, for whoever shows it: plain, or drawn on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Tone: TypeAlias = Literal["", "good", "bad", "strong", "dim"]
"""What a text means; a colour only underlines it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading, and a table or lines under it."""

    title: str = ""
    head: tuple[str, ...] = ()
    """Names of the columns; a table without them has none."""
    rows: tuple[tuple[Cell, ...], ...] = ()
    right: tuple[int, ...] = ()
    """Columns that end flush."""
    lines: tuple[Cell, ...] = ()


def cells(texts: Sequence[str]) -> tuple[Cell, ...]:
    """A row of texts that mean nothing in particular."""
    return tuple(Cell(text) for text in texts)
