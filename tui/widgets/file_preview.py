"""What stands in a file, with its language coloured."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.highlight import highlight
from textual.widgets import Static

from tui.answer.files import AnswerFile, preview
from tui.widgets.rule import Rule

_HIGHLIGHT_UP_TO = 40_000
"""Characters up to which a text is coloured; longer ones are shown plain."""


class FilePreview(Vertical):
    """A rule with the file's name, and its text below it."""

    DEFAULT_CSS = """
    FilePreview > Rule { height: 1; }
    FilePreview > VerticalScroll {
        height: 1fr;
        padding: 0 1;
        background: $surface;
        scrollbar-size-vertical: 1;
    }
    FilePreview Static { height: auto; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: AnswerFile | None = None

    def compose(self) -> ComposeResult:
        """The rule and what scrolls."""
        yield Rule("preview", id="rule-preview")
        with VerticalScroll(id="preview"):
            yield Static("", markup=False)

    def show(self, file: AnswerFile) -> None:
        """Reads and shows a file, unless it is the one that is shown."""
        if file == self._shown:
            return
        self._shown = file
        text, language = preview(file)
        read = f"  {file.verified_with}" if file.verified_with else ""
        self.query_one(Rule).tell(title=f"preview  {file.name}{read}")
        is_short = bool(language) and len(text) <= _HIGHLIGHT_UP_TO
        content = highlight(text, language=language) if is_short else Content(text)
        shown = self.query_one("#preview Static", Static)
        shown.update(content)
        shown.clear_cached_dimensions()
        self.query_one("#preview").scroll_home(animate=False)

    def forget(self) -> None:
        """Reads the file again when it is shown next: it may have been written anew."""
        self._shown = None

    def take_focus(self) -> None:
        """Gives the keyboard to what scrolls."""
        self.query_one("#preview").focus()
