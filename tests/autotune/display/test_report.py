"""A result on a terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console

from autotune.display.report import Block, Cell, cells
from autotune.display.rich import print_report

BLOCKS = (
    Block(
        title="What fits",
        head=("", "no checkpointing"),
        rows=((Cell("1"), Cell("✓ 2.00 GiB", "good")), (Cell("16"), Cell("✗ 9.00 GiB", "bad"))),
        right=(1,),
    ),
    Block(rows=(cells(("job", "a [bold]model[/bold]")),), lines=(Cell("- a note"),)),
)


def shown(*, is_terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, width=60, force_terminal=is_terminal, markup=False, highlight=False
    )
    print_report(BLOCKS, console)
    return stream.getvalue()


def test_every_text_is_there_in_its_column() -> None:
    lines = [line.rstrip() for line in shown(is_terminal=False).splitlines()]
    assert lines == [
        "What fits",
        "    no checkpointing",
        "1         ✓ 2.00 GiB",
        "16        ✗ 9.00 GiB",
        "",
        "job  a [bold]model[/bold]",
        "- a note",
    ]


def test_what_fits_and_what_does_not_differ_in_colour_too() -> None:
    text = shown(is_terminal=True)
    fits, fits_not = text.splitlines()[2:4]
    assert re.search(r"\x1b\[32m *✓ 2.00 GiB\x1b\[0m", fits)
    assert re.search(r"\x1b\[31m *✗ 9.00 GiB\x1b\[0m", fits_not)
