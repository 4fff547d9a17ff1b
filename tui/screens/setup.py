"""Screen 1: a job in a form, what is known of it at once, and the key that starts it.

Nothing starts before that key. What needs torch or the data is asked of children while somebody
fills the form in; an answer that comes too late for what is filled in now is never shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual import work
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget

from autotune.display import output
from autotune.events import Document
from autotune.run_directory import RunDirectory
from tui import bindings
from tui.children import Children, Reply
from tui.keys.key import Needs
from tui.machine.found import Found, of_plan
from tui.owner import Choice
from tui.run_now import RunNow
from tui.screens import choosing
from tui.screens.base import RunScreen
from tui.screens.question import FormQuestion
from tui.setup import checks, rows
from tui.setup.fields import BUDGET, BY_NAME, COLUMNS, FIELDS, GOAL, JOB
from tui.setup.form import ON, JobForm, with_switch
from tui.setup.inquiry import Inquiry
from tui.setup.places import path_of
from tui.setup.request import form_of_run
from tui.widgets.form_field import FormField, fill_rows
from tui.widgets.one_line import OneLine
from tui.widgets.page import Page
from tui.widgets.rows import mark
from tui.widgets.rule import Rule

START_LIMIT_S = 120.0
_WIDE = frozenset({"task", "model", "dataset", "out", "more"})


class SetupScreen(RunScreen):
    """The form, the checks beside it and the command line that says the same."""

    NAME = "setup"
    BINDINGS = bindings.of("setup")
    CSS_PATH = "setup.tcss"

    def __init__(self, children: Children | None = None) -> None:
        super().__init__()
        self._children = children or Children()
        self._form = JobForm()
        self._is_touched = False
        """Whether somebody filled something in here."""
        self._kept = JobForm()
        """What is not lost with this screen: a command line or a run says it."""
        self._inquiry = Inquiry(self._children, self._show)
        self._said = ""
        self._is_starting = False
        self._is_composed = False
        self._fitted_to = 0
        """Width of the place that the rows are made for."""

    def compose_body(self) -> Iterable[Widget]:
        """The form on one side, what follows from it on the other."""
        self._form = self._kept = self.owner.form or JobForm()
        self._is_touched = bool(self._form.values)
        with Container(id="setup"):
            with VerticalScroll(id="form", can_focus=False):
                for section in (JOB, COLUMNS, GOAL, BUDGET):
                    yield Rule(section, id=f"rule-{section.split()[0]}")
                    with Container(classes="fields", id=f"fields-{section.split()[0]}"):
                        for field in FIELDS:
                            if field.section == section and section != COLUMNS:
                                yield self._field(field.name)
            with VerticalScroll(id="side", can_focus=False):
                yield Rule("checks", id="rule-checks")
                yield OneLine(id="doing")
                yield Page(id="checks")
                yield Rule("what will happen", id="rule-steps")
                yield Page(id="steps")

        yield Rule("command", id="rule-command")
        yield Page(id="command")

    def _field(self, name: str) -> FormField:
        field = FormField(
            BY_NAME[name], self._form.values.get(name, ""), self._form.placeholder(name)
        )
        field.set_class(name in _WIDE, "-whole-row")
        field.display = name in self._form.shown()
        field.tooltip = BY_NAME[name].hint
        return field

    def on_mount(self) -> None:
        """Shows the form, and asks about it where it is complete already."""
        self._is_composed = True
        super().on_mount()
        self.every_second(self._show_doing)
        if self._is_touched:
            self._ask()

    async def on_unmount(self) -> None:
        """Ends whatever is still asked."""
        await self._children.close()

    def show_run(self, now: RunNow) -> None:
        """A form that nobody touched shows the job of the run that is looked at."""
        form = None if self._is_touched else form_of_run(now)
        if form is not None and form != self._form:
            self._fill(form)
        self._show()

    def on_page_refit(self, event: Page.Refit) -> None:
        """Fits the rows to the new width, once for all pages."""
        event.stop()
        if self._fitted_to != self.query_one("#side").size.width:
            self._show()

    def on_resize(self, event: Resize) -> None:
        """Gives the command the rows that there are."""
        self._show()

    @property
    def found(self) -> Found:
        """What the last plan told of the machine, for whoever shows readings."""
        return of_plan(self._inquiry.plan) if self._inquiry.plan is not None else Found()

    @property
    def processes(self) -> str:
        """How many ranks the form speaks of."""
        return self._form["processes"]

    @property
    def facts(self) -> tuple[Document, Document]:
        """Facts of the workload and the baseline, by the last plan."""
        return self._inquiry.facts

    # What is filled in.

    def on_form_field_changed(self, event: FormField.Changed) -> None:
        """Takes a value over and asks again, once there is a rest."""
        event.stop()
        if event.value.strip() == self._form.values.get(event.name, ""):
            return
        self._form = self._form.with_value(event.name, event.value)
        self._is_touched = True
        self._said = ""
        self._tell_draft()
        self._inquiry.form_changed(self._form)
        self._ask()
        self._show()

    def _tell_draft(self) -> None:
        """Tells what would be lost if the UI ended now."""
        values = self._form.values
        is_lost = self._is_starting or (values and values != self._kept.values)
        self.owner.draft = self._form if is_lost else None

    def _fill(self, form: JobForm) -> None:
        self._form = self._kept = form
        for field in self.query(FormField):
            field.write(form.values.get(field.field.name, ""))

    def _ask(self, *, at_once: bool = False) -> None:
        # What goes on beside a start would slow it down.
        if not self._is_starting:
            self._ask_children(self._form, at_once)

    @work(exclusive=True, group="ask", exit_on_error=False)
    async def _ask_children(self, form: JobForm, at_once: bool) -> None:
        await self._inquiry.ask(form, at_once=at_once, may_plan=lambda: not self.has("engine"))

    # What is shown.

    def _show(self) -> None:
        if not self._is_composed or not self.app.is_running:
            return
        self._fitted_to = self.query_one("#side").size.width
        if not self._fitted_to:
            return
        self._show_fields()
        self._show_checks()
        self._show_doing()
        self.query_one("#rule-command", Rule).tell(f"{bindings.shown('setup.copy')} copies")
        width = self._side_width()
        steps = checks.steps(self._inquiry.plan, self._form)
        self.query_one("#steps", Page).show(list(rows.of_steps(steps, width)))
        command = rows.of_command(self._form.command(), *self.app.size)
        self.query_one("#command", Page).show(command)
        self.bring_keys_up_to_date()

    def _side_width(self) -> int:
        """Cells of a row beside or below the form."""
        return max(20, self.query_one("#side").size.width - 2)

    def _show_fields(self) -> None:
        look = self._inquiry.look
        task = look.task if look is not None else ""
        shown = self._form.shown(task)
        columns = [name for name in shown if name.endswith("_column")]
        self._add_columns(columns)
        self.query_one("#rule-columns").display = bool(columns)
        wrong = self._inquiry.faults_by_field(self._form, is_tried=bool(self._said))
        for field in self.query(FormField):
            name = field.field.name
            field.display = name in shown
            field.show_fault(wrong.get(name), self.query_one("#form").size.width)
            if name.endswith("_column") and look is not None:
                if field.known != look.columns:
                    field.offer(look.columns)
                chosen = look.chosen.get(name)
                field.set_placeholder(
                    f"{chosen} (found)" if chosen else self._form.placeholder(name)
                )
            if name == "task" and look is not None:
                field.set_placeholder(f"{task} (auto)" if task else self._form.placeholder(name))
        for place in self.query(".fields"):
            fill_rows(place.query(FormField))

    def _add_columns(self, wanted: list[str]) -> None:
        """Makes the fields for columns when a task first reads them; there are many of them."""
        place = self.query_one("#fields-columns")
        there = {field.field.name: field for field in place.query(FormField)}
        later: FormField | None = None
        for field in reversed(FIELDS):
            if field.name in wanted and field.name not in there:
                added = self._field(field.name)
                place.mount(added, before=later)
                there[field.name] = added
            later = there.get(field.name, later)

    def _show_checks(self) -> None:
        has_engine, is_tried = self.has("engine"), bool(self._said)
        found = self._inquiry.checks(self._form, has_engine=has_engine, is_tried=is_tried)
        shown = rows.of_checks(found, self._side_width())
        self.query_one("#checks", Page).show(list(shown))
        self.query_one("#rule-checks", Rule).tell(rows.counts(found))

    def _show_doing(self) -> None:
        line = self.query_one("#doing", OneLine)
        doing = self._inquiry.doing
        line.display = bool(doing or self._said)
        if doing:
            since = f"{self._inquiry.waited_s:.0f} s"
            line.say(Content.assemble(" ", mark("asking"), f" asking {since:<6}{doing}"))
        elif self._said:
            line.say(Content.assemble(" ", mark("wrong"), f" {self._said}"))

    # Keys.

    def has(self, needs: Needs) -> bool:
        """Whether what a key needs is there."""
        match needs:
            case "form":
                return bool(self._form.values or self._form.inherited)
            case "choices":
                field = self._focused_field()
                return field is None or choosing.has_choices(field)
            case _:
                return super().has(needs)

    def paged(self) -> Iterable[Widget]:
        """The form, and what is known of the job."""
        return self.query("#form, #side")

    def action_run(self) -> None:
        """Starts the job, if nothing is known to be wrong with it."""
        if self._is_starting:
            self.owner.say("The run is being started.")
            return
        faults = self._inquiry.faults_of(self._form)
        if faults:
            self._said = f"not started: something is wrong{checks.places(faults)}"
            self._focus_field(next((fault.field for fault in faults if fault.field), None))
            self._show()
            return
        words = self._inquiry.words(self._form)
        if words is None:
            self._show()
        elif self.has("engine"):
            self.owner.ask_user(
                "A run goes on. Start another one beside it?",
                "Both would measure each other's load.",
                (
                    Choice(id="back", key="b", text="Back: wait for it"),
                    Choice(id="start", key="s", text="Start all the same"),
                ),
                lambda answer: self._start(words) if answer == "start" else None,
            )
        else:
            self._start(words)

    def _start(self, words: list[str]) -> None:
        self.workers.cancel_group(self, "ask")
        self._said = ""
        self._is_starting = self.owner.is_starting = True
        self._tell_draft()
        self._inquiry.turn_to("autotune tune: starts the run")
        self.query_one("#side").scroll_home(animate=False)
        self._start_child(self._form, words)

    @work(exclusive=True, group="start", exit_on_error=False)
    async def _start_child(self, form: JobForm, words: list[str]) -> None:
        try:
            answer = await self._children.ask(
                ["tune", *words, "--detach", "--json"], time_limit_s=START_LIMIT_S
            )
        finally:
            self._is_starting = False
            self._inquiry.wait_for("")
        # Where somebody leaves before that, the last words tell of the start.
        self.owner.is_starting = False
        path = answer.path if answer.error is None else None
        self._kept = form if path is not None else self._kept
        self._tell_draft()
        if path is None:
            self._not_started(form, words, answer)
        else:
            self._look_at(RunDirectory(path))

    def _look_at(self, run: RunDirectory) -> None:
        if isinstance(self.app.screen, FormQuestion):
            # Whether to give up a start that is done now.
            self.app.pop_screen()
        self.owner.attach(run)
        self.owner.action_go("search")

    def _not_started(self, form: JobForm, words: list[str], answer: Reply) -> None:
        cause, remedy = answer.error or ("The run was not started.", None)
        fault = form.fault(cause, remedy)
        self._said = f"not started: {output.one_line(cause)}"
        if form == self._form:
            self._inquiry.fault = fault
        else:
            self._ask()
        self._show()
        offered = rows.offers(fault, words)
        if offered:
            self.owner.ask_user(
                cause,
                remedy or "",
                offered,
                lambda switch: (
                    self._start(with_switch(words, switch)) if switch != "back" else None
                ),
            )
        else:
            self._focus_field(fault.field)

    def action_fill_in(self) -> None:
        """Gives the keyboard to the field that lacks something, or to the first one."""
        look = self._inquiry.look
        shown = self._form.shown(look.task if look is not None else "")
        wrong = [fault.field for fault in self._inquiry.faults_of(self._form) if fault.field]
        self._focus_field((wrong or shown)[0])

    def action_check(self) -> None:
        """Asks about the job now."""
        if not self.has("form"):
            self.owner.say("There is nothing to check yet: the form is empty.")
        if self._is_starting:
            self.owner.say("The run is being started.")
            return
        self._inquiry.forget_plan()
        self._ask(at_once=True)

    def action_demo(self) -> None:
        """Switches the built-in job on or off."""
        self.query_one("#field-demo", FormField).write("" if self._form.is_demo else ON)

    def action_browse(self) -> None:
        """Looks for what the field with the keyboard takes, or for a model first."""
        field = self._focused_field() or self.query_one("#field-model", FormField)
        if choosing.has_choices(field):
            choosing.browse(field)
        else:
            self.owner.say(field.field.hint)

    def action_open_run(self) -> None:
        """Chooses one of the runs there are, and looks at it."""
        root = path_of(self._form["run_dir"] or str(self.owner.run_root))
        why_none = choosing.choose_run(self.app, root, self._look_at)
        if why_none:
            self.owner.say(why_none)

    def action_copy_command(self) -> None:
        """Copies the command line that does the same."""
        self.owner.copy(self._form.command(), "the command")

    def _focused_field(self) -> FormField | None:
        focused = self.focused
        while focused is not None and not isinstance(focused, FormField):
            parent = focused.parent
            focused = parent if isinstance(parent, Widget) else None
        return focused

    def _focus_field(self, name: str | None) -> None:
        if name is not None:
            for field in self.query(f"#field-{name.replace('_', '-')}").results(FormField):
                field.take_focus()
