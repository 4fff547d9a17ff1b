"""What children tell of the job in a form: a first look at its files, then a plan of its search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from autotune.events import Document
from tui import bindings
from tui.children import Children
from tui.setup import checks
from tui.setup.checks import Check, Look
from tui.setup.fields import BY_NAME, FIELDS
from tui.setup.form import Fault, JobForm

LOOK_DELAY_S = 0.4
"""Rest after a change before the job's files are looked at."""
PLAN_DELAY_S = 1.2
"""Further rest before the job is loaded, which keeps a core busy for a while."""
LOOK_LIMIT_S = 30.0
PLAN_LIMIT_S = 600.0
_NOT_PLANNED = ("trials", "budget", "out", "run_dir", "name")
"""Fields that change nothing of what a plan tells."""
_ORDER = {"wrong": 0, "asking": 1, "note": 2, "open": 3, "ok": 4, "none": 5}


class Inquiry:
    """Asks about one form at a time; whoever calls cancels what is about an earlier one.

    An answer that comes too late for what is filled in now is never kept.

    Args:
        children: Who is asked.
        changed: Is called whenever something else is known, or waited for.
    """

    def __init__(self, children: Children, changed: Callable[[], None]) -> None:
        self._children = children
        self._changed = changed
        self.look: Look | None = None
        self.plan: Document | None = None
        self._planned: JobForm | None = None
        """The form that the plan is of."""
        self.fault: Fault | None = None
        """What the last child that loaded or started the job found wrong."""
        self.doing = ""
        """What is waited for now, in words."""
        self._doing_since_s = 0.0
        self._asker: object = None

    @property
    def facts(self) -> tuple[Document, Document]:
        """Facts of the workload and the baseline, by the last plan; empty without one."""
        plan = self.plan or {}
        facts, baseline = plan.get("workload"), plan.get("baseline")
        return (
            facts if isinstance(facts, dict) else {},
            baseline if isinstance(baseline, dict) else {},
        )

    def form_changed(self, form: JobForm) -> None:
        """Forgets what does not hold for another form."""
        self.fault = None
        if not form.values:
            self.look = None
        if self._planned is not None and not _same_plan(self._planned, form):
            self.plan = self._planned = None

    def forget_plan(self) -> None:
        """Forgets what was planned, so that it is asked for again."""
        self.fault = None
        self.plan = self._planned = None

    async def ask(self, form: JobForm, *, at_once: bool, may_plan: Callable[[], bool]) -> None:
        """Looks at the job after a rest, and plans it after another one where that is due.

        Args:
            form: The job.
            at_once: Whether to go without the rests.
            may_plan: Asked before the job is loaded, which would disturb a measurement.
        """
        asker = self._asker = object()
        try:
            await asyncio.sleep(0 if at_once else LOOK_DELAY_S)
            # What is filled in already may be wrong before all of it is there.
            is_begun = bool(form.values) or not form.missing()
            words = self.words(form) if is_begun else None
            if words is None:
                return
            await self._look(form, words)
            is_planned = self._planned is not None and _same_plan(self._planned, form)
            if is_planned or self.faults_of(form) or not may_plan():
                return
            await asyncio.sleep(0 if at_once else PLAN_DELAY_S)
            await self._plan(form, words)
        finally:
            # One that was cancelled may end after the next one has begun.
            if self._asker is asker:
                self.wait_for("")

    async def _look(self, form: JobForm, words: list[str]) -> None:
        self.wait_for("looking at the files")
        reply = await self._children.ask(
            words, module="autotune.cli.look", time_limit_s=LOOK_LIMIT_S
        )
        self.look = Look.read(reply.document or {}, form, reply.error)
        self.wait_for("")

    async def _plan(self, form: JobForm, words: list[str]) -> None:
        self.wait_for("autotune plan: loads model and data, probes, checks")
        reply = await self._children.ask(
            ["plan", *words, "--json"], time_limit_s=PLAN_LIMIT_S, on_line=self._hear
        )
        if reply.error is None:
            self.plan, self._planned = reply.document, form
        else:
            self.fault = form.fault(*reply.error)

    def _hear(self, line: str) -> None:
        if line.startswith("Probing"):
            self.wait_for(f"autotune plan: {line}")

    def words(self, form: JobForm) -> list[str] | None:
        """The words of a form; None, and a fault, where there is no sense in them."""
        try:
            return form.words()
        except ValueError as error:
            self.fault = Fault(f"The further options make no sense: {error}.", None, "more")
            return None

    def turn_to(self, what: str) -> None:
        """Waits for something else from now on; what was asked before has no more say in it."""
        # A child that is asked to end may take seconds, and its asker tidies up after that.
        self._asker, self.doing = None, ""
        self.wait_for(what)

    def wait_for(self, what: str) -> None:
        """Tells what is waited for; nothing where `what` is empty."""
        if what and not self.doing:
            self._doing_since_s = time.monotonic()
        self.doing = what
        self._changed()

    @property
    def waited_s(self) -> float:
        """Seconds that have been waited for what is waited for now."""
        return time.monotonic() - self._doing_since_s

    def faults_of(self, form: JobForm) -> tuple[Fault, ...]:
        """Everything that keeps the job from being started, as far as it is known."""
        last = () if self.fault is None else (self.fault,)
        return (*form.missing(), *self._looked_wrong(form), *last)

    def faults_by_field(self, form: JobForm, *, is_tried: bool) -> dict[str | None, Fault]:
        """The first thing that is wrong with each field.

        Args:
            form: The job.
            is_tried: Whether somebody wanted to start it: before that, a field that nobody has
                filled in yet is open, not wrong.
        """
        still_open = () if is_tried else form.missing()
        found: dict[str | None, Fault] = {}
        for fault in self.faults_of(form):
            if fault not in still_open:
                found.setdefault(fault.field, fault)
        return found

    def _looked_wrong(self, form: JobForm) -> tuple[Fault, ...]:
        """What the files told, beside what is missing anyway."""
        missing = {fault.cause for fault in form.missing()}
        told = self.look.faults if self.look is not None else ()
        return tuple(fault for fault in told if fault.cause not in missing)

    def checks(self, form: JobForm, *, has_engine: bool, is_tried: bool = False) -> list[Check]:
        """Everything that is known of the job, what is wrong first.

        Args:
            form: The job.
            has_engine: Whether a run goes on.
            is_tried: Whether somebody wanted to start it, as for `faults_by_field`.
        """
        found = self._checks(form, has_engine, is_tried)
        return sorted(found, key=lambda check: _ORDER[check.mark])

    def _checks(self, form: JobForm, has_engine: bool, is_tried: bool) -> Iterator[Check]:
        missing = form.missing()
        fill, demo = bindings.shown("setup.fill"), bindings.shown("setup.demo")
        for place, fault in enumerate(missing):
            field = fault.field or "model"
            how = f": {fill} fills it in, {demo} takes the built-in demo" if not place else ""
            text = f"not named yet{how}"
            mark: checks.Mark = "wrong" if is_tried else "open"
            yield Check(mark=mark, what=BY_NAME[field].label, text=text, field=field)
        if self.look is not None:
            look = replace(self.look, faults=self._looked_wrong(form))
            yield from checks.of_look(look, form)
        if self.fault is not None:
            yield checks.of_fault(self.fault)
        if self.plan is not None:
            yield from checks.of_plan(self.plan)
        elif has_engine:
            text = "not asked, so that the run that goes on is measured undisturbed"
            yield Check(mark="open", what="space", text=text)
        elif not self.faults_of(form) and not self.doing:
            text = f"space and fit are not asked for yet; {bindings.shown('setup.check')} asks now"
            yield Check(mark="open", what="plan", text=text)


def _same_plan(one: JobForm, other: JobForm) -> bool:
    """Whether two forms are planned alike."""
    return all(
        one.values.get(field.name) == other.values.get(field.name)
        for field in FIELDS
        if field.name not in _NOT_PLANNED
    )
