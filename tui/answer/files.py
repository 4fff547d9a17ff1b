"""The files of an answer: which there are, who reads each, and what stands in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.display.output import one_line, plain_text
from autotune.events import Document, FilesExported
from tui import bindings

MAX_PREVIEW_BYTES = 256 * 1024
"""Longer files are shown up to here."""
LANGUAGES = {
    ".py": "python",
    ".json": "json",
    ".yaml": "yaml",
    ".md": "markdown",
    ".args": "bash",
    ".svg": "xml",
}
"""File endings and what highlights them."""
PURPOSES = {
    "recommendation.json": "the answer, for programs",
    "training_arguments.json": "the changed TrainingArguments",
    "training_arguments.yaml": "the same in YAML",
    "train.args": "the same as flags",
    "accelerate.yaml": "for accelerate launch",
    "report.svg": "speed against memory, a picture",
    "report.md": "the answer with its evidence",
    "trainer.py": "a script with Trainer, ready to run",
    "accelerator.py": "the same as an Accelerate loop",
}
"""What each file is for, in few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFile:
    """One file of an export."""

    name: str
    consumer: str
    """Who reads it; empty where nobody has yet."""
    verified_with: str
    path: Path | None
    """Where it stands; None before it is written."""


def exported(document: Document) -> FilesExported:
    """What `autotune export --json` prints, in the form of the event."""
    found = document.get("files")
    listed = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return FilesExported(directory=str(document.get("directory", "")), files=tuple(listed))


def of_export(event: FilesExported | None) -> tuple[AnswerFile, ...]:
    """The files that an event tells of."""
    if event is None:
        return ()
    return tuple(_file(document, Path(event.directory)) for document in event.files)


def _file(document: Document, directory: Path) -> AnswerFile:
    name = one_line(str(document.get("name", "")))
    return AnswerFile(
        name=name,
        consumer=one_line(str(document.get("consumer") or "")),
        verified_with=one_line(str(document.get("verified_with") or "")),
        path=directory / name,
    )


def foreseen() -> tuple[AnswerFile, ...]:
    """The files that an export would write."""
    return tuple(
        AnswerFile(name=name, consumer="", verified_with="", path=None) for name in PURPOSES
    )


def whole(path: Path) -> str:
    """The text of a file, however long it is.

    Raises:
        OSError: It cannot be read.
    """
    return path.read_text(encoding="utf-8", errors="replace")


def preview(file: AnswerFile) -> tuple[str, str]:
    """The text of a file and the language it is in; a sentence where it cannot be read."""
    if file.path is None:
        writes = bindings.shown("export.write")
        return f"Not written yet. {writes} writes it and reads it back through its consumer.", ""
    try:
        with file.path.open("rb") as opened:
            data = opened.read(MAX_PREVIEW_BYTES + 1)
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror}.", ""
    text = plain_text(data[:MAX_PREVIEW_BYTES].decode("utf-8", errors="replace"))
    if len(data) > MAX_PREVIEW_BYTES:
        text += "\n… the file goes on"
    return text, LANGUAGES.get(file.path.suffix, "")
