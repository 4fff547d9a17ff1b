"""Lists that are filled again and again while somebody moves through them."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option


def refill(listed: OptionList, ids: Sequence[str], rows: Sequence[Content]) -> None:
    """Fills a list again; the cursor stays on the entry of the same name."""
    before = listed.highlighted_option
    listed.set_options([Option(row, id=name) for name, row in zip(ids, rows, strict=True)])
    if not ids:
        return
    kept = before.id if before is not None else None
    listed.highlighted = ids.index(kept) if kept in ids else 0
