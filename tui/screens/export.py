"""Screen 5: what to change, why, what may be taken instead, and the files that put it in force.

Nothing is written before `w`; the child that writes reads every file back through its consumer.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from textual import work
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList

from autotune.events import Document
from autotune.run_directory import RunDirectory
from autotune.units import counted
from autotune.view import RunView
from tui import bindings, words
from tui.answer import commands, files, pages, verdict
from tui.answer.files import AnswerFile
from tui.answer.read import Answer, Offer, answer_of
from tui.answer.writing import Writing
from tui.children import Children, Reply
from tui.keys.key import Needs
from tui.owner import Choice
from tui.run_now import RunNow
from tui.screens.base import RunScreen
from tui.screens.prompt import Prompt
from tui.screens.question import WritingQuestion
from tui.setup.places import path_of
from tui.widgets.doing import Doing
from tui.widgets.file_preview import FilePreview
from tui.widgets.options import refill
from tui.widgets.page import Page
from tui.widgets.rows import hanging, mark, padded
from tui.widgets.rule import Rule
from tui.words import how_to_go_on

EXPORT_LIMIT_S = 1000.0
_NO_ANSWER = "The run has no answer yet."


class ExportScreen(RunScreen):
    """The answer of a run, or what it lacks."""

    NAME = "export"
    BINDINGS = bindings.of("export")
    CSS_PATH = "export.tcss"

    def __init__(self, children: Children | None = None) -> None:
        super().__init__()
        self._children = children or Children()
        self._answer: Answer | None = None
        self._document: Document | None = None
        self._of_run: RunDirectory | None = None
        self._taken = 0
        """Which of the offers is taken; 0 is the recommended one."""
        self._written: dict[str | None, tuple[AnswerFile, ...]] = {}
        """Files that were written here, by the kind of what they are for."""
        self._fitted_to = 0
        """Width of the place that the rows are made for."""

    def compose_body(self) -> Iterable[Widget]:
        """The answer on one side, the highlighted file beside it or in its place."""
        yield Doing()
        # What to do never scrolls away.
        yield Rule("recommendation", id="rule-head")
        with Container(id="export"):
            with VerticalScroll(id="answer"):
                yield Page(id="head")
                yield Rule("changes to what you have", id="rule-changes")
                yield Page(id="changes")
                yield Rule("take instead", id="rule-offers")
                yield OptionList(id="offers", markup=False, compact=True)
                yield Rule("files", id="rule-files")
                yield OptionList(id="files", markup=False, compact=True)
                yield Rule("evidence", id="rule-evidence")
                yield Page(id="evidence")
                yield Rule("beyond this evidence", id="rule-limits")
                yield Page(id="limits")
            yield FilePreview(id="side")

    def on_mount(self) -> None:
        """Begins with the list of files under the keyboard."""
        super().on_mount()
        self.every_second(lambda: self._doing.show())

    async def on_unmount(self) -> None:
        """Ends an export that is still being written; what is there stays whole."""
        await self._children.close()

    def on_page_refit(self, event: Page.Refit) -> None:
        """Fits the rows to the new width, once for all pages."""
        event.stop()
        if self._fitted_to != self.query_one("#answer").size.width:
            self._show()

    def show_run(self, now: RunNow) -> None:
        """Shows the answer, or why there is none."""
        if now.view.recommendation is not self._document or now.directory != self._of_run:
            self._document, self._of_run = now.view.recommendation, now.directory
            self._taken, self._written = 0, {}
            self._doing.forget()
        found = answer_of(now.view.recommendation)
        had_answer, self._answer = self._answer, found if isinstance(found, Answer) else None
        if isinstance(found, str):
            self._doing.say(found, is_fine=False)
        self._show()
        if self._answer is not None and had_answer is None:
            self.query_one("#files").focus(scroll_visible=False)

    def glance(self, now: RunNow, width: int) -> Sequence[str]:
        """What is recommended, how much it gains, and whether its files are written."""
        if self._answer is None:
            cause, _ = words.what_ended_it(now)
            return [pages.title_without(now), cause or f"best  {words.best(now, width - 6)}"]
        num_written = sum(one.path is not None for one in self._files)
        return [
            verdict.headline(self._answer, now.view),
            verdict.speed(self._answer, now.view.confirmed),
            f"{counted(num_written, 'file')} written" if num_written else "no file is written yet",
        ]

    @property
    def _doing(self) -> Doing:
        return self.query_one(Doing)

    @property
    def _offer(self) -> Offer | None:
        offers = self._answer.offers if self._answer is not None else ()
        return offers[min(self._taken, len(offers) - 1)] if offers else None

    @property
    def _files(self) -> tuple[AnswerFile, ...]:
        """The files of what is taken: written here, exported by the run, or still to come."""
        offer = self._offer
        if offer is None:
            return ()
        own = self._written.get(offer.kind)
        if own is not None:
            return own
        exported = files.of_export(self.now.view.exported) if offer.kind is None else ()
        return exported or files.foreseen()

    # What is shown.

    def _show(self) -> None:
        # A preview may stand in its place.
        self._fitted_to = self.query_one("#answer").size.width
        width = (self._fitted_to or self.size.width - 1) - 2
        if width <= 0:
            return
        now, answer, offer = self.now, self._answer, self._offer
        has_answer = answer is not None and offer is not None
        for name in ("changes", "offers", "files", "evidence", "limits"):
            for widget in self.query(f"#{name}, #rule-{name}"):
                widget.display = has_answer
        self.set_class(not has_answer, "-no-answer")
        rule = self.query_one("#rule-head", Rule)
        if answer is None or offer is None:
            rule.tell(title=pages.title_without(now))
            self._update("head", pages.no_answer(now, width))
        else:
            taken = f"taking {offer.title}: {offer.configuration}"
            rule.tell(title=verdict.headline(answer, now.view) if offer.kind is None else taken)
            self._show_answer(answer, offer, now.view, width)
        self._doing.show()

    def _show_answer(self, answer: Answer, offer: Offer, view: RunView, width: int) -> None:
        confirmed = view.confirmed
        top = [*pages.trouble(self.now, width), *pages.head(answer, confirmed, width)]
        if offer.kind is not None:
            note = verdict.against(offer, answer, view)
            top += hanging("  taken     ", f"{note}, by the search; {offer.reason}", width)
        self._update("head", top)
        self._update("changes", pages.changes(answer, offer, width))
        self._update("evidence", pages.evidence(answer, view, width))
        self._update("limits", pages.limits(answer, view, width))
        offers = self.query_one("#offers", OptionList)
        options = [
            pages.offer(one, answer, view, width - 2, is_taken=one.kind == offer.kind)
            for one in answer.offers
        ]
        self.query_one("#rule-offers", Rule).tell(f"{bindings.shown('export.take')} takes the next")
        refill(offers, [str(one.kind) for one in answer.offers], options)
        has_others = len(answer.offers) > 1
        for widget in self.query("#offers, #rule-offers"):
            widget.display = has_others
        self._show_files(width)

    def _show_files(self, width: int) -> None:
        found = self._files
        num_written = sum(one.path is not None for one in found)
        place = f" in {found[0].path.parent}" if num_written and found[0].path else ""
        title = f"{counted(num_written, 'file')}{place}" if num_written else "files to write"
        self.query_one("#rule-files", Rule).tell(title=title)
        room = max(16, width - 30)
        rows = []
        for one in found:
            state = mark("ok" if one.path is not None and one.consumer else "open")
            read = f"read by {one.consumer}" if one.consumer else files.PURPOSES.get(one.name, "")
            rows.append(Content.assemble(state, f" {padded(one.name, 25)} {padded(read, room)}"))
        refill(self.query_one("#files", OptionList), [one.name for one in found], rows)
        self._show_preview()

    def _show_preview(self) -> None:
        listed = self.query_one("#files", OptionList)
        found = self._files
        at = min(listed.highlighted or 0, len(found) - 1)
        wants = self.has_class("-preview") or self.has_class("-wide")
        if at < 0 or not wants:
            return
        self.query_one(FilePreview).show(found[at])

    def _update(self, name: str, rows: Iterable[Content]) -> None:
        is_there = self.query_one(f"#{name}", Page).show(rows)
        for widget in self.query(f"#{name}, #rule-{name}"):
            widget.display = is_there

    # Keys.

    def has(self, needs: Needs) -> bool:
        """Whether what a key needs is there."""
        match needs:
            case "answer":
                return self._answer is not None
            case "several":
                return self._answer is not None and len(self._answer.offers) > 1
            case "rest":
                return bool(how_to_go_on(self.now))
            case _:
                return super().has(needs)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Another file is under the cursor."""
        if event.option_list.id == "files":
            self._show_preview()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Takes an offer, or looks into a file."""
        if event.option_list.id == "offers":
            self._take(event.option_index)
        elif event.option_list.id == "files":
            self.action_preview()

    def action_take_other(self) -> None:
        """Takes the next offer instead."""
        if self._answer is None:
            self.owner.say(_NO_ANSWER)
        elif len(self._answer.offers) < 2:
            self.owner.say("There is no alternative: the run offers its recommendation alone.")
        else:
            self._take((self._taken + 1) % len(self._answer.offers))

    def _take(self, number: int) -> None:
        self._taken = number
        self.query_one(FilePreview).forget()
        self._show()

    def action_preview(self) -> None:
        """Shows the file under the cursor in the place of the answer, or the answer again."""
        if self._answer is None:
            self.owner.say(_NO_ANSWER)
            return
        self.toggle_class("-preview")
        if self.has_class("-preview"):
            self._show_preview()
            self.query_one(FilePreview).take_focus()
        else:
            self.query_one("#files").focus()

    def close_part(self) -> bool:
        """Closes a preview that stands in the place of the answer."""
        if not self.has_class("-preview"):
            return False
        self.action_preview()
        return True

    def paged(self) -> Iterable[Widget]:
        """The answer, or the preview where that has the keyboard or stands in its place."""
        is_preview = self.focused is not None and self.focused.id == "preview"
        name = "#preview" if is_preview or self.has_class("-preview") else "#answer"
        return self.query(name)

    def action_write(self) -> None:
        """Asks where to, and writes the files of what is taken."""
        offer, directory = self._offer, self.now.directory
        if offer is None or directory is None:
            self._doing.say(f"There is nothing to write. {_NO_ANSWER}", is_fine=False)
            return
        if self._doing.is_busy:
            return
        usual = commands.usual_place(directory, offer, self.now.view.exported)

        def chosen(text: str | None) -> None:
            if text:
                place = path_of(text).absolute()
                self._write(commands.export(directory, text, offer), offer, place)

        title = f"Write the files of {offer.title}, {offer.configuration}, to"
        hint = "enter writes them there · esc writes nothing"
        prompt = Prompt(title, hint=hint, placeholder="a directory", value=str(usual))
        self.app.push_screen(prompt, chosen)

    async def _ask(self, what: str, words: list[str]) -> Reply:
        """Asks a child, and tells what is waited for."""
        self._doing.begin(what)
        try:
            return await self._children.ask([*words, "--json"], time_limit_s=EXPORT_LIMIT_S)
        finally:
            if self.is_whole:
                self._doing.end()

    @work(exclusive=True, group="write", exit_on_error=False)
    async def _write(self, words: list[str], offer: Offer, place: Path) -> None:
        run = self.now.directory
        self.owner.writing = Writing.begun(place, shlex.join(["autotune", *words]))
        answer = await self._ask(
            "autotune export: writes the files, each is read back by its consumer", words
        )
        # Where somebody leaves before that, the last words tell of it.
        self.owner.writing = None
        if isinstance(self.app.screen, WritingQuestion):
            self.app.pop_screen()
        event = files.exported(answer.document or {})
        num_written = counted(len(event.files), "file")
        told = f"{num_written} written to {event.directory}, each read back by its consumer."
        if run != self.now.directory:
            # Another run is looked at meanwhile, and these are not its files.
            self.owner.say(told if answer.error is None else answer.error[0])
            return
        if answer.error is not None:
            self._refused(words, offer, place, *answer.error)
            return
        self._written[offer.kind] = files.of_export(event)
        self.query_one(FilePreview).forget()
        self._doing.say(told, is_fine=True)
        self._show()

    def _refused(
        self, words: list[str], offer: Offer, place: Path, cause: str, remedy: str | None
    ) -> None:
        self._doing.say(f"{cause} {remedy or ''}", is_fine=False)
        if "--force" not in (remedy or "") or "--force" in words:
            return

        def answered(answer: str) -> None:
            if answer == "force":
                self._write([*words, "--force"], offer, place)
            elif answer == "elsewhere":
                self.action_write()

        self.owner.ask_user(
            cause,
            "Replacing loses what stands in them.",
            (
                Choice(id="back", key="b", text="Back: write nothing"),
                Choice(id="elsewhere", key="e", text="Write somewhere else"),
                Choice(id="force", key="r", text="Replace them (--force)"),
            ),
            answered,
        )

    def action_go_on(self) -> None:
        """Starts an engine for a run that ended before it had an answer."""
        directory = self.now.directory
        if directory is None or self._doing.is_busy:
            return
        if self.has("engine") or not self.has("rest"):
            self.owner.say("The run goes on." if self.has("engine") else "The run is finished.")
            return
        self._resume(commands.resume(directory))

    @work(exclusive=True, group="write", exit_on_error=False)
    async def _resume(self, words: list[str]) -> None:
        run = self.now.directory
        answer = await self._ask("autotune tune --resume: starts an engine", words)
        if run != self.now.directory:
            self.owner.say("The run goes on." if answer.error is None else answer.error[0])
        elif answer.error is not None:
            self._doing.say(" ".join(filter(None, answer.error)), is_fine=False)
        else:
            self._doing.say("", is_fine=True)

    def action_copy_command(self) -> None:
        """Copies the command that writes the files of what is taken, or goes on with the run."""
        offer, directory = self._offer, self.now.directory
        if directory is None:
            self.owner.say("There is no command yet: no run is chosen.")
            return
        go_on = how_to_go_on(self.now)
        if offer is None and go_on:
            self.owner.copy(go_on, "the command")
            return
        own = self._files
        place = own[0].path.parent if own and own[0].path is not None else directory.out
        command = (
            commands.show(directory)
            if offer is None
            else commands.export(directory, str(place), offer)
        )
        self.owner.copy(shlex.join(["autotune", *command]), "the command")

    def action_copy_file(self) -> None:
        """Copies the file under the cursor."""
        found = self._files
        at = self.query_one("#files", OptionList).highlighted
        if self._answer is None:
            self.owner.say(_NO_ANSWER)
            return
        path = found[at].path if at is not None and at < len(found) else None
        if path is None:
            writes = bindings.shown("export.write")
            self.owner.say(f"The file is not written yet: {writes} writes it.")
            return
        try:
            self.owner.copy(files.whole(path), path.name)
        except OSError as error:
            self.owner.say(f"{path} cannot be read: {error.strerror}.", is_warning=True)
