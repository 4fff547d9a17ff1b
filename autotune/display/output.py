"""Where everything the command line says goes: data to stdout, talk to stderr.

Text of models, data sets and libraries may hold anything, so what is shown passes `one_line` or
`plain_text` first: no code reaches the terminal. A reader who closed the pipe has what they
wanted, so a broken pipe silences the stream and nothing else.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import TextIO

from autotune.errors import AutotuneError, UsageError

_ASCII = {
    "✓": "+",
    "✗": "x",
    "▲": "!",
    "◷": "t",
    "⊘": "-",
    "▸": ">",
    "·": ".",
    "×": "x",
    "–": "-",
    "−": "-",
    "±": "+-",
    "…": "...",
    "→": "->",
    "█": "#",
    "░": ".",
    "µ": "u",
}
_READER_IS_GONE = (errno.EPIPE, errno.EIO)
"""What writing says of a pipe that was closed and of a terminal that hung up."""
_ERROR_HANDLER = "autotune-ascii"
_CONTROL_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, clipboard
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colour, cursor, modes
    r"|\x1b."  # anything shorter
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def prepare_streams() -> None:
    """Makes both streams write an ASCII twin of what their encoding lacks, never fail on it."""
    codecs.register_error(_ERROR_HANDLER, _to_ascii)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=_ERROR_HANDLER)


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in text), error.end


def data(text: str) -> None:
    """Writes a result to stdout."""
    _write(sys.stdout, text)


def document(value: Mapping[str, object]) -> None:
    """Writes a JSON document to stdout, with escapes for what its encoding lacks."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    if not _can_be_written(sys.stdout, text):
        text = json.dumps(value, indent=2, allow_nan=False)
    data(text)


def talk(text: str = "") -> None:
    """Writes a line for the reader to stderr."""
    _write(sys.stderr, text)


def report(error: AutotuneError) -> None:
    """Writes an error to stderr: the cause in red where colour is wanted, then the remedy."""
    cause = one_line(error.cause)
    talk(f"\x1b[31mError: {cause}\x1b[0m" if wants_colour(sys.stderr) else f"Error: {cause}")
    if error.remedy:
        talk(f"Hint: {one_line(error.remedy)}")


def wants_colour(stream: TextIO | None) -> bool:
    """Whether colour may be written: by NO_COLOR, FORCE_COLOR, TERM and the kind of stream."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM", "") not in ("", "dumb")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person watches the stream directly."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # The stream was closed.
        return False


def can_take_screen() -> bool:
    """Whether a program may take the whole screen: a person sits there, and it can repaint.

    A browser that shows the program instead says so by its driver, and has no terminal.
    """
    return why_no_screen("") is None


def why_no_screen(otherwise: str) -> UsageError | None:
    """What keeps a program from taking the whole screen; None where nothing does.

    Args:
        otherwise: The remedy where nobody sits at a terminal.
    """
    if os.environ.get("TEXTUAL_DRIVER"):
        return None
    if not all(is_terminal(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return UsageError("The terminal UI needs a terminal.", otherwise)
    if os.environ.get("CI"):
        return UsageError(
            "The terminal UI is not shown where CI is set: nobody would answer it.",
            "Unset CI, as by `env -u CI autotune tui`.",
        )
    terminal = os.environ.get("TERM", "")
    if terminal in ("", "dumb"):
        state = f"is {terminal}" if terminal else "is not set"
        return UsageError(
            f"The terminal UI repaints the screen, which no terminal can whose TERM {state}.",
            "Set TERM to what the terminal is, as by `TERM=xterm-256color autotune tui`.",
        )
    return None


def plain_text(text: str) -> str:
    """The text without control codes; a carriage return starts a line over, as on a terminal."""
    text = _CONTROL_SEQUENCES.sub("", text).replace("\r\n", "\n")
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]
    return _CONTROL.sub("", "\n".join(lines))


def one_line(text: str, *, max_characters: int | None = None) -> str:
    """The text without control codes, on one line, its end cut off where it is too long."""
    line = " ".join(plain_text(text).split())
    if max_characters is not None and len(line) > max_characters:
        return line[: max_characters - 1].rstrip() + "…"
    return line


def flush() -> None:
    """Flushes both streams; call it last."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # It was closed when this process began.
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            _silence(stream)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(text + "\n")
        stream.flush()
    except ValueError:  # The stream was closed.
        return
    except OSError as error:
        _silence(stream)
        if stream is sys.stdout and error.errno not in _READER_IS_GONE:
            raise AutotuneError(
                f"The result cannot be written to stdout: {error.strerror}."
            ) from error


def _can_be_written(stream: TextIO | None, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _silence(stream: TextIO) -> None:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
