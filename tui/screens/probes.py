"""Screen 2: every reading as it arrives, with its spread and what follows; links, limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from textual import work
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget

from autotune.events import Document
from tui import bindings
from tui.children import Children
from tui.machine import found, pages
from tui.machine.found import Found
from tui.machine.meaning import Job
from tui.owner import Choice
from tui.run_now import RunNow
from tui.screens.base import RunScreen
from tui.widgets.one_line import OneLine
from tui.widgets.page import Page
from tui.widgets.rows import mark
from tui.widgets.rule import Rule

if TYPE_CHECKING:
    from tui.screens.setup import SetupScreen

PROBE_LIMIT_S = 300.0
_PAGES = ("device", "readings", "memory", "follows", "links", "notes")


class ProbesScreen(RunScreen):
    """What the machine can do, by this run, by the plan of the form, or by a probe of its own."""

    NAME = "probes"
    BINDINGS = bindings.of("probes")
    CSS_PATH = "probes.tcss"

    def __init__(self, children: Children | None = None) -> None:
        super().__init__()
        self._children = children or Children()
        self._own: Found | None = None
        """What a probe found that was asked for here."""
        self._doing = ""
        self._said = ""
        self._fitted_to = 0
        """Width of the place that the rows are made for."""

    def compose_body(self) -> Iterable[Widget]:
        """Device and readings first, what follows beside or below them."""
        yield OneLine(id="doing")
        with VerticalScroll(id="probes"):
            with VerticalScroll(id="measured"):
                yield Rule("device", id="rule-device")
                yield Page(id="device")
                yield Rule("measurements", id="rule-readings")
                yield Page(id="readings")
            with VerticalScroll(id="meant"):
                yield Rule("memory", id="rule-memory")
                yield Page(id="memory")
                yield Rule("what follows so far", id="rule-follows")
                yield Page(id="follows")
                yield Rule("between ranks", id="rule-links")
                yield Page(id="links")
                yield Rule("notes", id="rule-notes")
                yield Page(id="notes")

    def on_mount(self) -> None:
        """Gives the keyboard to what scrolls."""
        super().on_mount()
        self.query_one("#probes").focus()

    async def on_unmount(self) -> None:
        """Ends a probe that is still running."""
        await self._children.close()

    def on_page_refit(self, event: Page.Refit) -> None:
        """Fits the rows to the new width, once for all pages."""
        event.stop()
        if self._fitted_to != self.query_one("#measured").size.width:
            self._show()

    def show_run(self, now: RunNow) -> None:
        """Shows what this run knows, or who else knows something."""
        self._show()

    def _found(self) -> tuple[Found, Job]:
        """What is known, from whoever knows it best."""
        view = self.now.view
        of_run = found.of_run(view, is_alive=self.now.is_alive)
        if not of_run.is_empty:
            if self._own is not None and self._own.machine is not None and of_run.machine:
                # Links are measured by a probe alone; the run's own figures stay.
                of_run = found.with_links(of_run, self._own)
            return of_run, Job.of_run(view)
        setup = self._setup()
        facts, baseline = setup.facts if setup is not None else ({}, {})
        job = Job.of_facts(facts, baseline)
        if self._own is not None:
            return self._own, job
        return (setup.found if setup is not None else Found()), job

    def _setup(self) -> SetupScreen | None:
        """The form, which knows the machine where it planned a job."""
        from tui.screens.setup import SetupScreen

        try:
            bottom = self.app.get_screen_stack("setup")[0]
        except KeyError:
            return None
        return bottom if isinstance(bottom, SetupScreen) else None

    def glance(self, now: RunNow, width: int) -> Sequence[str]:
        """The device, its memory limit, and how many readings there are."""
        known, _ = self._found()
        return pages.glance(known)

    def _show(self) -> None:
        self._fitted_to = self.query_one("#measured").size.width
        if not self._fitted_to:
            return
        known, job = self._found()
        self._show_doing(known)
        measured = self.query_one("#measured").size.width - 2
        meant = self.query_one("#meant").size.width - 2
        shown: dict[str, Iterator[Content]] = {
            "device": pages.devices(known, measured),
            "readings": pages.readings(known, job, measured),
            "memory": pages.memory(known, meant),
            "follows": pages.follows(self.now.view, meant),
            "links": pages.links(known, job, self.now.view, meant),
            "notes": pages.notes(known, self.now.view, meant),
        }
        for name in _PAGES:
            is_there = self.query_one(f"#{name}", Page).show(shown[name])
            for widget in self.query(f"#{name}, #rule-{name}"):
                widget.display = is_there
        right = pages.origin(known)
        self.query_one("#rule-readings", Rule).tell(right)

    def _show_doing(self, known: Found) -> None:
        line = self.query_one("#doing", OneLine)
        if self._doing:
            line.say(Content.assemble(" ", mark("asking"), f" {self._doing}"))
        elif self._said:
            line.say(Content.assemble(" ", mark("wrong"), f" {self._said}"))
        elif known.is_empty:
            what = "reading" if self.now.directory is not None and not self.now.is_read else None
            measure = bindings.shown("probes.measure")
            text = what or f"nothing is measured yet: {measure} measures this machine"
            line.say(Content.assemble(" ", mark("open"), f" {text}"))
        line.display = bool(self._doing or self._said or known.is_empty)

    # Keys.

    def paged(self) -> Iterable[Widget]:
        """All readings, or both halves of them beside one another."""
        return self.query("#probes, #measured, #meant")

    def action_measure(self) -> None:
        """Measures the machine now, links between ranks included where the form has several."""
        if not self.has("engine"):
            self._measure()
            return
        self.owner.ask_user(
            "A run goes on. Measure the machine beside it?",
            "Both would measure each other's load.",
            (
                Choice(id="back", key="b", text="Back: wait for it"),
                Choice(id="measure", key="m", text="Measure all the same"),
            ),
            lambda answer: self._measure_if(answer == "measure"),
        )

    def _measure_if(self, is_wanted: bool) -> None:
        if is_wanted:
            self._measure()

    def action_copy_command(self) -> None:
        """Copies the command that prints these readings."""
        self.owner.copy(" ".join(["autotune", "probe", *self._processes()]), "the command")

    @work(exclusive=True, group="measure", exit_on_error=False)
    async def _measure(self) -> None:
        words = ["probe", "--json", *self._processes()]
        self._said = ""
        self._do(f"autotune {' '.join(words)}")
        try:
            answer = await self._children.ask(words, time_limit_s=PROBE_LIMIT_S, on_line=self._hear)
        finally:
            self._do("")
        machine = (answer.document or {}).get("machine")
        if isinstance(machine, dict):
            self._own = found.of_machine(machine, None, origin="measured here just now")
        if answer.error is not None:
            cause, remedy = answer.error
            self._said = f"{cause} {remedy or ''}".strip()
        self._show()

    def _processes(self) -> list[str]:
        """How many ranks the run or the form speaks of."""
        started = self.now.view.started
        request: Document = started.request if started is not None else {}
        setup = self._setup()
        wanted = request.get("processes") or (setup.processes if setup is not None else "")
        text = str(wanted or "")
        return ["--processes", text] if text.isdecimal() and int(text) > 1 else []

    def _hear(self, line: str) -> None:
        if line.startswith("Probing"):
            self._do(line)

    def _do(self, what: str) -> None:
        self._doing = what
        if self.is_whole:
            self._show()
