"""Every command that a sentence of ours names can be typed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import autotune
import tui
from autotune.cli.app import app

PROSE = {"did", "from", "import", "run", "that", "wrote"}
"""Words that come after the program's name in a sentence and are no command."""
_NAMED = re.compile(r"\bautotune ([a-z][a-z-]*)([^`;.]*)")
_FLAG = re.compile(r"--[a-z][a-z-]*[a-z]")


def _texts() -> Iterator[tuple[str, str]]:
    """Every text in the sources but the documentation of code: where it stands, and the text."""
    for package in (autotune, tui):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            documentation = {
                id(node.value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            }
            for node in ast.walk(tree):
                is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if is_text and id(node) not in documentation:
                    place = f"{path.name}:{getattr(node, 'lineno', 0)}"
                    yield place, str(getattr(node, "value", ""))


def test_every_command_and_option_that_is_named_exists() -> None:
    root: Any = typer.main.get_command(app)
    known = {
        name: {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
        for name, command in root.commands.items()
    }
    assert "look" not in known
    found: dict[str, list[str]] = {}
    for place, text in _texts():
        for name, rest in _NAMED.findall(text):
            if name in PROSE:
                continue
            assert name in known, f"{place} names `autotune {name}`"
            found.setdefault(name, []).append(place)
            # Up to the end of the command: a sentence may go on with options of another one.
            command = re.split(r", | or | without | with |: ", rest)[0]
            for flag in _FLAG.findall(command):
                assert flag in known[name], f"{place} names `autotune {name} {flag}`"
    assert {"tune", "plan", "show", "export", "trial", "tui", "probe"} <= set(found)
