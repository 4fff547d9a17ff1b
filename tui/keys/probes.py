"""Keys of the readings."""

from __future__ import annotations

from tui.keys.key import RUN, Key
from tui.keys.paging import paging

PROBES: tuple[Key, ...] = (
    Key(
        id="probes.measure",
        keys="m",
        shown="m",
        label="Measure",
        help="Measure this machine now, and the links between ranks where there are several.",
        group=RUN,
        verb="screen.measure",
        screen="probes",
        in_footer=True,
    ),
    Key(
        id="probes.copy",
        keys="y",
        shown="y",
        label="Copy command",
        help="Copy the command that prints these readings.",
        group="Copy",
        verb="screen.copy_command",
        screen="probes",
        in_footer=True,
    ),
    *paging("probes"),
)
