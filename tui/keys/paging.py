"""The keys that scroll by pages, on every screen whose body scrolls."""

from __future__ import annotations

from tui.keys.key import VIEW, Key, ScreenName


def paging(screen: ScreenName, *, priority: bool = False) -> tuple[Key, Key]:
    """Down and up.

    Args:
        screen: Where they hold.
        priority: Whether they work while a field has the keyboard.
    """
    down, up = (
        Key(
            id=f"{screen}.page_{way}",
            keys=f"page{way}",
            shown=shown,
            label=f"Page {way}",
            help=f"Scroll {way} by a page.",
            group=VIEW,
            verb=f"screen.page({by})",
            screen=screen,
            priority=priority,
        )
        for way, shown, by in (("down", "PgDn", 1), ("up", "PgUp", -1))
    )
    return down, up
