"""What is known of a job, as rows of the page beside the form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from textual.content import Content

from autotune.display import output
from tui.owner import Choice
from tui.setup.checks import Check
from tui.setup.form import SWITCHES, Fault
from tui.widgets.rows import cut_off, hanging, mark

_FROM_ROWS = 24
"""A lower window has one row for the command."""
_COUNTED = (("ok", "✓"), ("note", "▲"), ("wrong", "✗"))


def of_checks(found: Iterable[Check], width: int) -> Iterator[Content]:
    """Every check with its mark, in rows of that many cells."""
    for check in found:
        head = Content.assemble(" ", mark(check.mark), f" {check.what:<12} ")
        tone = "$text-error" if check.mark == "wrong" else ""
        yield from hanging(head, check.text, width, tone=tone)


def of_steps(steps: Iterable[tuple[str, str]], width: int) -> Iterator[Content]:
    """What will happen, numbered, in rows of that many cells."""
    for number, (what, text) in enumerate(steps, start=1):
        yield from hanging(f" {number} {what:<9} ", output.one_line(text), width)


def of_command(command: str, columns: int, rows: int) -> Iterator[Content]:
    """The command line, in as many rows as it needs and a window of that size has for it."""
    num_rows = rows // 4 if rows >= _FROM_ROWS else 1
    yield from map(Content, cut_off(output.one_line(command), columns - 3, num_rows))


def counts(found: Sequence[Check]) -> str:
    """How many checks are right, doubtful and wrong."""
    return " · ".join(
        f"{glyph} {sum(check.mark == name for check in found)}" for name, glyph in _COUNTED
    )


def offers(fault: Fault, tried: Sequence[str]) -> tuple[Choice, ...]:
    """What may help where a job could not be started, going back first; empty where nothing can.

    Args:
        fault: What was wrong.
        tried: The words that it was to be started by.
    """
    offered = [
        Choice(id=flag, key=SWITCHES[flag][0], text=SWITCHES[flag][1])
        for flag in fault.switches(tried)
    ]
    return (Choice(id="back", key="b", text="Back: change the form"), *offered) if offered else ()
