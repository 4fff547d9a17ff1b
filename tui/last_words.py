"""What remains on the terminal after the screen has closed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.display.output import one_line, plain_text
from autotune.run_directory import listing_command
from tui import words
from tui.answer.writing import Writing
from tui.ascii import to_ascii
from tui.run_now import RunNow, RunReader
from tui.setup.places import path_of

if TYPE_CHECKING:
    from tui.setup.form import JobForm


def as_known(now: RunNow) -> RunNow:
    """The run, looked at once more where somebody left before it was read."""
    if now.directory is None or now.is_read:
        return now
    reader = RunReader(now.directory)
    reader.look()
    return reader.now


def of_draft(
    form: JobForm, *, run_root: Path, is_starting: bool = False, ascii_only: bool = False
) -> list[str]:
    """How to fill a form in again that was left before anything was started.

    Args:
        form: What was filled in.
        run_root: Where runs are kept that the form has no other place for.
        is_starting: Whether a start was given up, which may have been done already.
        ascii_only: Whether the lines are in ASCII, as the screen was.
    """
    listing = listing_command(path_of(form["run_dir"] or str(run_root)))
    said = (
        f"The start was given up; `{listing}` tells whether the run goes on all the same."
        if is_starting
        else "Nothing was started."
    )
    lines = [f"{said} The form again:", f"  {form.again()}"]
    plain = [plain_text(line) for line in lines]
    return [to_ascii(line) for line in plain] if ascii_only else plain


def of_writing(writing: Writing, *, ascii_only: bool = False) -> list[str]:
    """What became of files that were being written when somebody left.

    Args:
        writing: What was being written.
        ascii_only: Whether the lines are in ASCII, as the screen was.
    """
    place = one_line(str(writing.place))
    lines = (
        [f"The files are in {place} all the same."]
        if writing.is_done
        else [f"The files for {place} were not written. To write them:", f"  {writing.command}"]
    )
    plain = [plain_text(line) for line in lines]
    return [to_ascii(line) for line in plain] if ascii_only else plain


def last_words(now: RunNow, exit_code: int, *, ascii_only: bool = False) -> list[str]:
    """State and best of the run, and the command that makes sense next; no line without a run.

    Args:
        now: The run.
        exit_code: What the process ends with.
        ascii_only: Whether they are in ASCII, as the screen was.
    """
    if now.directory is None:
        return []
    name = one_line(now.name)
    counted = " · ".join(part for part in (words.state(now), words.trial_count(now)) if part)
    lines = [f"Run {name}: {counted}", f"  best   {words.best(now)}"]
    cause, remedy = words.what_ended_it(now)
    if not cause and now.trouble is not None:
        cause, remedy = one_line(now.trouble.cause), one_line(now.trouble.remedy)
    if cause:
        lines += [f"  cause  {cause}", f"  remedy {remedy}"]
    if now.view.exported is not None:
        lines.append(f"  files  {one_line(now.view.exported.directory)}")
    run = shlex.quote(words.how_to_call(now))
    if now.is_alive:
        lines.append(f"  The run goes on. Look again: autotune tui {run}")
    elif now.form == "finished":
        # A journal that is damaged is shown by the UI alone.
        verb = "show" if now.trouble is None else "tui"
        lines.append(f"  next   autotune {verb} {run}")
    plain = [plain_text(line) for line in lines]
    return [to_ascii(line) for line in plain] if ascii_only else plain
