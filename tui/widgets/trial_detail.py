"""Everything that is known of one trial, in three tabs: summary, settings, log."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import wrap
from typing import Literal, TypeAlias, get_args

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from autotune.display.quiet import is_quiet
from autotune.view import TrialView
from tui import bindings, words
from tui.bridge import LogChanged, Watch, watch_log
from tui.log_reader import LogNow
from tui.run_now import RunNow
from tui.trials import columns, story
from tui.widgets.log_rows import LogRows
from tui.widgets.one_line import OneLine
from tui.widgets.rule import ruled

Tab: TypeAlias = Literal["summary", "settings", "log"]
TABS: tuple[Tab, ...] = get_args(Tab)


class TrialDetail(Vertical):
    """One trial at a time. The log is read only while it is in sight."""

    DEFAULT_CSS = """
    TrialDetail { height: 1fr; padding: 0 1; }
    TrialDetail #text { height: 1fr; scrollbar-size-vertical: 1; }
    TrialDetail #story { width: 1fr; height: auto; }
    TrialDetail LogRows { display: none; }
    TrialDetail.-log LogRows { display: block; }
    TrialDetail.-log #text { display: none; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tab: Tab = "summary"
        self._now = RunNow()
        self._trial: TrialView | None = None
        self._drawn: tuple[object, ...] = ()
        self._watch: Watch[LogNow] | None = None
        self._watched: Path | None = None
        self._log = LogNow()
        self._found = ""
        self._log_is_stale = False

    def compose(self) -> ComposeResult:
        """Tabs, then the text or the log."""
        yield OneLine(id="tabs")
        with VerticalScroll(id="text"):
            yield Static("", id="story", markup=False)
        yield LogRows()

    @property
    def rows(self) -> LogRows:
        """The log."""
        return self.query_one(LogRows)

    @property
    def number(self) -> int | None:
        """Of the trial that is shown."""
        return self._trial.number if self._trial is not None else None

    def show(self, trial: TrialView | None, now: RunNow) -> None:
        """Shows a trial as it is now; None where there is none to show."""
        before, self._trial, self._now = self._trial, trial, now
        if (before and before.number) != (trial and trial.number):
            self.query_one("#text", VerticalScroll).scroll_home(animate=False)
        self._draw()
        self._watch_the_log()
        if self._log_is_stale and not is_quiet(now.view):
            self._draw_log()

    def show_tab(self, tab: Tab) -> None:
        """Changes the tab."""
        self.tab = tab
        self.set_class(tab == "log", "-log")
        self._draw()
        self._watch_the_log()

    def turn(self, by: int) -> None:
        """Goes on by so many tabs."""
        self.show_tab(TABS[(TABS.index(self.tab) + by) % len(TABS)])

    def find(self, text: str) -> None:
        """Shows the next line of the log that holds the words."""
        self.show_tab("log")
        at, num = self.rows.find(text)
        self._found = f"{text!r} {at} of {num}" if num else f"{text!r} is not there"
        self._draw_tabs()

    def toggle_wrap(self) -> None:
        """Breaks long lines of the log into rows, or cuts them again."""
        self.rows.wrap(on=not self.rows.is_wrapped)
        self._draw_tabs()

    def log_text(self) -> str:
        """The log as it was read."""
        return "\n".join(self._log.lines)

    def _draw(self) -> None:
        self._draw_tabs()
        width = self.query_one("#text").size.width or self.size.width - 2
        drawn = (self._trial, self.tab, width, self._now.view, self._now.directory)
        if self.tab == "log" or drawn == self._drawn or width < 1:
            return
        self._drawn = drawn
        self.query_one("#story", Static).update(self._text(width - 1))

    def _text(self, width: int) -> Content:
        trial, now = self._trial, self._now
        if trial is None:
            return Content.styled(_nothing_to_show(now), "$text-muted")
        if self.tab == "settings":
            return Content("\n").join(story.configuration_lines(trial, now, width))
        lines: list[Content] = []
        for section in story.sections(trial, now, width - 2):
            lines.append(ruled(section.title, "", width))
            lines += [row for line in section.lines for row in _wrapped(line, width - 2)]
        return Content("\n").join(lines)

    def _draw_tabs(self) -> None:
        trial = self._trial
        parts: list[Content] = []
        if trial is not None:
            parts += [
                Content.styled(f"#{trial.number} ", "bold"),
                Content.styled(
                    f"{columns.state(trial, self._now.view)}  ", words.TONES[trial.state]
                ),
            ]
        for tab in TABS:
            text = f"[ {tab} ] " if tab == self.tab else f"  {tab}   "
            parts.append(
                Content.styled(text, "bold $text-accent" if tab == self.tab else "$text-muted")
            )
        parts.append(Content.styled(self._log_note() if self.tab == "log" else "", "$text-muted"))
        self.query_one("#tabs", OneLine).say(Content.assemble(*parts))

    def _log_note(self) -> str:
        if not self._log.is_there:
            return "no log"
        rows = self.rows
        note = "following" if rows.is_following else f"{rows.num_new} new, end follows"
        key = bindings.shown("trial.wrap")
        wraps = f"{key} cuts" if rows.is_wrapped else f"{key} wraps" if rows.has_long else ""
        return " · ".join(part for part in (self._found, wraps, note) if part)

    def _watch_the_log(self) -> None:
        trial, directory = self._trial, self._now.directory
        path = None
        if self.tab == "log" and trial is not None and directory is not None:
            path = directory.trial(trial.number) / "output.log"
        if path == self._watched:
            return
        self._stop_watching()
        self._watched, self._log, self._found = path, LogNow(), ""
        self.rows.forget()
        if path is not None:
            self._watch = watch_log(path, self.post_message)
            self._watch.open()

    def on_log_changed(self, message: LogChanged) -> None:
        """Shows what the log gained, later where drawing would disturb a measurement."""
        message.stop()
        if message.path != self._watched:
            return
        is_first = not self._log.is_there
        self._log = message.now
        self._log_is_stale = True
        if is_first or not is_quiet(self._now.view):
            self._draw_log()

    def _draw_log(self) -> None:
        self._log_is_stale = False
        self.rows.show(self._log.lines, self._log.num_dropped)
        self._draw_tabs()

    def on_log_rows_moved(self) -> None:
        """The end of the log came into sight, or went out of it."""
        self._draw_tabs()

    def on_resize(self) -> None:
        """Rules are as long as the width."""
        self._draw()

    def on_unmount(self) -> None:
        """The log is followed no longer."""
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _wrapped(line: Content, width: int) -> list[Content]:
    """A line of one style in rows that hang below each other."""
    if len(line.plain) <= width:
        return [Content.assemble("  ", line)]
    style = line.spans[0].style if line.spans else ""
    # A path goes on in the next row as a whole: half of one cannot be copied.
    label = re.match(r"[a-z_ ]+?  +(?=\S)", line.plain)
    indent = " " * (len(label[0]) if label and len(label[0]) <= width // 2 else 2)
    rows = wrap(line.plain, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return [Content.styled(f"  {row}", style) for row in rows]


def _nothing_to_show(now: RunNow) -> str:
    if now.directory is None:
        return words.no_trials(now)
    if now.view.trials:
        return "No trial is chosen: choose one on screen 3."
    if now.form == "failed":
        cause, remedy = words.what_ended_it(now)
        return f"There was no trial. {cause} {remedy}".rstrip()
    return "No trial has begun yet."
