"""Keys of the readings."""

from __future__ import annotations

from tui.keys.key import RUN, VIEW, Key

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
    Key(
        id="probes.page_down",
        keys="pagedown",
        shown="PgDn",
        label="Page down",
        help="Scroll down by a page.",
        group=VIEW,
        verb="screen.page(1)",
        screen="probes",
    ),
    Key(
        id="probes.page_up",
        keys="pageup",
        shown="PgUp",
        label="Page up",
        help="Scroll up by a page.",
        group=VIEW,
        verb="screen.page(-1)",
        screen="probes",
    ),
)
