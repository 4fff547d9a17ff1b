"""Checked values out of the options of one call."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeVar

import typer

from autotune.cli.declare import is_typed, origin
from autotune.errors import UsageError

_SEEDS = 2**32
ValueT = TypeVar("ValueT")
WordT = TypeVar("WordT", bound=str)


class Reader:
    """Reads checked values out of the options of one call."""

    def __init__(self, context: typer.Context) -> None:
        self._context = context

    def flag(self, name: str) -> str:
        """The option as it is typed, and where its value came from if it was not."""
        return f"--{name.replace('_', '-')}{origin(self._context, name)}"

    def is_typed(self, name: str) -> bool:
        """Whether the option stands on the command line itself."""
        return is_typed(self._context, name)

    def exclude(self, chosen: object, one: str, other: str) -> None:
        """Lets at most one of two options be given.

        Raises:
            UsageError: Both are.
        """
        if getattr(chosen, one) and getattr(chosen, other):
            raise UsageError(
                f"{self.flag(one)} and {self.flag(other)} exclude each other.",
                "Leave one of them out.",
            )

    def choice(self, name: str, value: str, choices: tuple[WordT, ...]) -> WordT:
        """One of several words.

        Raises:
            UsageError: It is none of them; the message names the nearest.
        """
        for choice in choices:
            if choice == value:
                return choice
        near = difflib.get_close_matches(value, choices, n=1)
        raise UsageError(
            f"{self.flag(name)} cannot be {value!r}.",
            f"Did you mean {near[0]!r}?" if near else f"Choose from {', '.join(choices)}.",
        )

    def at_least(self, name: str, value: int | None, least: int) -> int | None:
        """A whole number that is not too small.

        Raises:
            UsageError: It is.
        """
        if value is not None and value < least:
            raise UsageError(
                f"{self.flag(name)} must be at least {least}, not {value}.",
                "Give a larger number.",
            )
        return value

    def seed(self, name: str, value: int | None) -> int | None:
        """A number that every random generator takes.

        Raises:
            UsageError: It is negative or too large.
        """
        if value is not None and not 0 <= value < _SEEDS:
            raise UsageError(
                f"{self.flag(name)} must be from 0 to {_SEEDS - 1}, not {value}.", "42 will do."
            )
        return value

    def parsed(self, name: str, value: str | None, parse: Callable[[str], ValueT]) -> ValueT | None:
        """A size or a time.

        Raises:
            UsageError: It is none.
        """
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            cause, _, remedy = str(error).partition(": ")
            raise UsageError(
                f"{self.flag(name)}: {cause}.",
                f"{remedy[:1].upper()}{remedy[1:]}." if remedy else "Give a larger one.",
            ) from error
