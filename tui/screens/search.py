"""Screen 3: the search as it goes on. Best and now never scroll away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Input, Static

from autotune.view import how_many
from tui import bindings, words
from tui.run_now import RunNow
from tui.screens.base import RunScreen
from tui.screens.copy_trial import CopyTrial
from tui.trials import columns, readings
from tui.trials import filter as filters
from tui.widgets.now_panel import NowPanel
from tui.widgets.one_line import OneLine
from tui.widgets.picture import PICTURES, Picture
from tui.widgets.rows import mark
from tui.widgets.rule import Rule
from tui.widgets.trial_detail import TrialDetail
from tui.widgets.trial_table import TrialRows, TrialTable

PLOTS = tuple(name for name in PICTURES if name != "events")
_LEAST_TRIAL_ROWS = 6
"""Rows that a tall window keeps for trials: the first ones do not move the picture."""
_ROWS_AROUND = 7
"""Header, best, now, memory, gain, the rule above the trials, footer."""
_LEAST_PLOT_ROWS = 9
"""Rows that it keeps for the picture above the events, the rule included."""


class SearchScreen(CopyTrial, RunScreen):
    """Trials, pictures and events of a run; from 132 columns on also one trial beside them."""

    NAME = "search"
    LEAVING_A_FIELD = "enter keeps the filter · esc clears it"
    BINDINGS = bindings.of("search")

    def __init__(self) -> None:
        super().__init__()
        self._problem = ""
        """Why what is typed as a filter cannot be read."""

    def compose_body(self) -> Iterable[Widget]:
        """From the top: best and now, trials, pictures; one trial on the right."""
        yield NowPanel()
        with Horizontal(id="main"):
            with Vertical(id="left"):
                yield Rule("trials", id="trials-rule")
                yield Input(placeholder="words, state:oom, mbs>=8, !x", id="filter", compact=True)
                yield OneLine(id="filter-note")
                yield Static("", id="nothing", markup=False)
                yield TrialTable(id="trials")
                yield Picture("speed against memory", id="plot")
                yield Picture("events", id="events")
            yield TrialDetail(id="detail")

    @property
    def table(self) -> TrialTable:
        """The trials."""
        return self.query_one("#trials", TrialTable)

    @property
    def detail(self) -> TrialDetail:
        """The trial on the right of a wide window."""
        return self.query_one("#detail", TrialDetail)

    @property
    def trial_number(self) -> int | None:
        """The trial under the cursor."""
        return self.table.rows.number

    def show_run(self, now: RunNow) -> None:
        """Brings every part up to date."""
        self.query_one(NowPanel).show_run(now)
        self._place_picture()
        has_trials = bool(now.view.trials)
        self.table.display = has_trials
        nothing = self.query_one("#nothing", Static)
        nothing.display = not has_trials
        if not has_trials:
            nothing.update(words.no_trials(now))
        self.table.show(now.view)
        shown = self._filtered(now)
        self.query_one("#plot", Picture).show(shown)
        self.query_one("#events", Picture).show(
            shown if self.query_one("#events", Picture).picture != "events" else now
        )
        self._fit_panes(len(now.view.trials))
        self._show_detail(now)

    def _place_picture(self) -> None:
        """A picture that was chosen in a lower window goes where a tall one has room for it."""
        pane = self.query_one("#events", Picture)
        if self.has_class("-tall") and pane.picture != "events":
            self.query_one("#plot", Picture).show_other(pane.picture)
            pane.show_other("events")
            self.set_class(False, "-drawing")

    def _fit_panes(self, num_trials: int) -> None:
        """One pane for all pictures is as high as its picture.

        In a tall window, the rows that the table has no trials for are the picture's.
        """
        pane = self.query_one("#events", Picture)
        pane.styles.height = pane.wanted_rows if self.has_class("-medium") else None
        # Textual shares out no room between a part at its least and one at its most: the picture
        # gets its least by what the table may have at most.
        around = _ROWS_AROUND + self.query_one(NowPanel).num_remedy_rows
        room = self.size.height - around - pane.wanted_rows - _LEAST_PLOT_ROWS
        most = max(_LEAST_TRIAL_ROWS, min(1 + max(_LEAST_TRIAL_ROWS, num_trials), room))
        self.table.styles.max_height = most if self.has_class("-tall") else None

    def tick(self) -> None:
        """The clock goes on, and with it what runs now."""
        super().tick()
        self.query_one(NowPanel).show_run(self.now)

    def _filtered(self, now: RunNow) -> RunNow:
        """The run as the pictures see it: one filter holds for table and pictures alike."""
        chosen = self.table.in_force
        if chosen.is_empty:
            return now
        # Repeats are drawn nowhere, but what they confirmed is looked up there.
        trials = tuple(
            trial for trial in now.view.trials if trial.is_repeat or chosen.matches(trial, now.view)
        )
        return replace(now, view=replace(now.view, trials=trials))

    def _show_detail(self, now: RunNow) -> None:
        if self.has_class("-wide"):
            number = self.trial_number
            self.detail.show(now.view.trial(number) if number is not None else None, now)

    def _tell_order(self) -> None:
        table, view = self.table, self.now.view
        arrow = columns.DESCENDING if table.is_descending else columns.ASCENDING
        parts = [f"sort {table.sorted_by.head} {arrow}"]
        if view.confirmed is not None:
            parts.append(readings.signed(view.confirmed))
        if not table.in_force.is_empty:
            parts += [f"/{table.filter.text}", f"{table.num_shown} of {how_many(view.trials)}"]
        else:
            parts.append(how_many(view.trials))
        self.query_one("#trials-rule", Rule).tell(" · ".join(parts))
        self._tell_filter()

    def _tell_filter(self) -> None:
        """Says below the filter why it hides nothing, if it does not."""
        table = self.table
        note = self.query_one("#filter-note", OneLine)
        is_useless = not table.filter.is_empty and table.in_force.is_empty
        note.display = bool(self._problem or is_useless)
        if self._problem:
            note.say(Content.assemble(mark("wrong"), f" cannot be read: {self._problem}"))
        elif is_useless:
            text = f" no trial matches /{table.filter.text}: all are shown"
            note.say(Content.assemble(mark("note"), text))

    # The filter.

    def action_filter(self) -> None:
        """Opens the filter, which owns the keyboard from then on."""
        field = self.query_one("#filter", Input)
        field.value = self.table.filter.text
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters while it is typed; what cannot be read leaves the table as it is."""
        try:
            self.table.filter = filters.parse(event.value)
            self._problem = ""
        except ValueError as error:
            self._problem = str(error)
        self.show_run(self.now)
        self._tell_order()

    def on_input_submitted(self) -> None:
        """Keeps the filter and gives the keyboard back, once it can be read."""
        if not self._problem:
            self._close_filter()

    def close_part(self) -> bool:
        """Esc clears the filter first, and goes back only then."""
        if not self.query_one("#filter", Input).display and self.table.filter.is_empty:
            return False
        self.table.filter = filters.Filter()
        self._problem = ""
        self._close_filter()
        self.show_run(self.now)
        self._tell_order()
        return True

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.set_focus(None)

    # The table.

    def action_move(self, by: int) -> None:
        """Moves the cursor by rows."""
        self.table.rows.move(by)

    def action_move_page(self, by: int) -> None:
        """Moves the cursor by pages."""
        self.table.rows.move(by * self.table.rows.page)

    def action_move_end(self, by: int) -> None:
        """Moves the cursor to the first or the last row."""
        self.table.rows.move(by * self.table.num_shown)

    def action_sort(self) -> None:
        """Sorts by the next column."""
        self.table.sort_by_next()

    def action_reverse(self) -> None:
        """Sorts the other way round."""
        self.table.reverse()

    def on_trial_rows_moved(self, message: TrialRows.Moved) -> None:
        """Another trial is looked at."""
        self.owner.chosen_trial = message.number
        self._show_detail(self.now)
        self.bring_keys_up_to_date()

    def on_trial_rows_opened(self, message: TrialRows.Opened) -> None:
        """A trial was clicked twice."""
        self.owner.open_trial(message.number)

    def on_trial_table_ordered(self) -> None:
        """Rows were filtered or sorted, by a key or by a click, or there is room for others."""
        self._tell_order()

    # Pictures and the trial.

    def action_next_picture(self) -> None:
        """The next picture, in the place that this size of window has for it."""
        is_tall = self.has_class("-tall")
        pane = self.query_one("#plot" if is_tall else "#events", Picture)
        names = PLOTS if is_tall else PICTURES
        at = names.index(pane.picture) if pane.picture in names else -1
        pane.show_other(names[(at + 1) % len(names)])
        self.set_class(not is_tall and pane.picture != "events", "-drawing")
        self.call_after_refresh(lambda: self.show_run(self.now))

    def action_open(self) -> None:
        """Opens the trial under the cursor."""
        if self.trial_number is not None:
            self.owner.open_trial(self.trial_number)

    def action_log(self) -> None:
        """Shows the log, beside the trials where there is room."""
        if self.has_class("-wide"):
            self.detail.show_tab("summary" if self.detail.tab == "log" else "log")
        elif self.trial_number is not None:
            self.owner.open_trial(self.trial_number, log=True)

    def action_wrap_log(self) -> None:
        """Breaks long lines of the log on the right, or cuts them again."""
        if self.has_class("-wide"):
            self.detail.show_tab("log")
            self.detail.toggle_wrap()

    def action_turn(self, by: int) -> None:
        """Turns to another tab of the trial on the right."""
        if self.has_class("-wide"):
            self.detail.turn(by)

    def on_resize(self, event: Resize) -> None:
        """Parts come into sight with the size, and have not seen the run yet."""
        self.call_after_refresh(lambda: self.show_run(self.now))
