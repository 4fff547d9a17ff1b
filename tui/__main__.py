"""`python -m tui [RUN_DIRECTORY]`: what the command line starts as a child."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.display import output
from autotune.errors import AutotuneError, ExitCode, UsageError
from autotune.run_directory import RunDirectory, listing_command
from tui.themes import LOOKS, Look

if TYPE_CHECKING:
    from tui.keymap import KeyMap
    from tui.setup.form import JobForm


def main() -> int:
    """Returns the exit code."""
    output.prepare_streams()
    words: list[str] | None = sys.argv[1:]
    if words and words[0] == "--words-from":
        words = _awaited(int(words[1]))
        if words is None:
            return ExitCode.OK
    parser = argparse.ArgumentParser(
        prog="python -m tui", description="Shows a run and steers it.", allow_abbrev=False
    )
    parser.add_argument("directory", nargs="?", type=Path, metavar="RUN_DIRECTORY")
    parser.add_argument("--theme", choices=LOOKS, default=_look())
    parser.add_argument("--ascii", action="store_true", help="nothing but ASCII")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument(
        "--owns-run", action="store_true", help="end with the run's code, also if it is over"
    )
    parser.add_argument(
        "--setup", metavar="JSON", help="what setup begins with: options given and inherited"
    )
    parser.add_argument("--run-dir", type=Path, default=Path("autotune-runs"), metavar="DIR")
    parser.add_argument("--keymap", metavar="JSON", help="keys of a settings file")
    parser.add_argument("--keys", action="store_true", help="print the page of all keys")
    options = parser.parse_args(words)
    if options.keys:
        from tui import bindings

        output.data(bindings.page().rstrip("\n"))
        return ExitCode.OK
    try:
        directory = _run(options.directory)
        from tui.launch import Options, launch

        return launch(
            directory,
            Options(
                look=options.theme,
                ascii_only=options.ascii or _is_set("AUTOTUNE_ASCII"),
                mouse=not (options.no_mouse or _is_set("AUTOTUNE_NO_MOUSE")),
                owns_run=options.owns_run,
                form=_form(options.setup),
                keymap=_keymap(options.keymap),
                run_root=options.run_dir,
            ),
        )
    except AutotuneError as error:
        output.report(error)
        return error.exit_code


def _awaited(descriptor: int) -> list[str] | None:
    """Loads what the first picture needs, and waits for the words; None where none come.

    Args:
        descriptor: What to read them from.
    """
    # Nobody has anything to lose yet.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import tui.app
    import tui.launch  # noqa: F401

    with os.fdopen(descriptor, encoding="utf-8") as pipe:
        text = pipe.read()
    return [str(word) for word in json.loads(text)] if text else None


def _look() -> Look:
    wanted = os.environ.get("AUTOTUNE_THEME", "")
    return next((look for look in LOOKS if look == wanted), "dark")


def _form(text: str | None) -> JobForm | None:
    if text is None:
        return None
    from tui.setup.form import JobForm

    try:
        return JobForm.from_json(text)
    except ValueError as error:
        raise UsageError(
            f"--setup takes options as JSON: {error}.", "`autotune tui` writes it."
        ) from error


def _keymap(text: str | None) -> KeyMap | None:
    if text is None:
        return None
    from tui.keymap import KeyMap

    return KeyMap.from_json(text)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false", "no", "off")


def _run(path: Path | None) -> RunDirectory | None:
    if path is None:
        return None
    run = RunDirectory(path)
    if not os.path.isfile(run.request):
        raise UsageError(
            f"{path} is no run.", f"`{listing_command(path.parent)}` lists the runs there are."
        )
    return run


if __name__ == "__main__":
    sys.exit(main())
