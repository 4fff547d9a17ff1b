"""Writes Python the way a formatter would: calls wrapped at 88 columns, imports in sections."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence

LINE_LENGTH = 88
"""What the usual formatters use without settings."""


def literal(value: object) -> str:
    """A Python literal with double quotes, as formatters write them."""
    if isinstance(value, str):
        text = repr(value)
        plain = text.startswith("'") and '"' not in text and "\\'" not in text
        return f'"{text[1:-1]}"' if plain else text
    if isinstance(value, Mapping):
        inner = ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items())
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(literal(v) for v in value) + ("," * (len(value) == 1)) + ")"
    return repr(value)


def keywords(values: Mapping[str, object]) -> list[str]:
    """Keyword arguments of a call, values written as literals."""
    return [f"{name}={literal(value)}" for name, value in values.items()]


def call(head: str, arguments: Sequence[str], *, tail: str = ")", indent: int = 0) -> str:
    """A call, on one line where it fits, else its arguments on one line, else one a line.

    Args:
        head: Everything up to and including the opening bracket.
        arguments: Source of each argument.
        tail: The closing bracket and what follows it.
        indent: Columns that the statement is indented by.
    """
    space = " " * indent
    one_line = f"{space}{head}{', '.join(arguments)}{tail}"
    is_flat = all("\n" not in argument for argument in arguments)
    if is_flat and len(one_line) <= LINE_LENGTH:
        return one_line
    inner = f"{space}    {', '.join(arguments)}"
    if is_flat and len(inner) <= LINE_LENGTH:
        return f"{space}{head}\n{inner}\n{space}{tail}"
    lines = "\n".join(_argument(argument, indent + 4) for argument in arguments)
    return f"{space}{head}\n{lines}\n{space}{tail}"


def _argument(argument: str, indent: int) -> str:
    """An argument on a line of its own, a dictionary on several where it does not fit."""
    line = f"{' ' * indent}{argument},"
    name, bracket, inner = argument.partition("={")
    if len(line) <= LINE_LENGTH or not bracket:
        return line
    values = ast.literal_eval("{" + inner)
    space = " " * indent
    entries = [f"{space}    {literal(key)}: {literal(value)}," for key, value in values.items()]
    return "\n".join([f"{space}{name}={{", *entries, f"{space}}},"])


def block(text: str, indent: int = 4) -> str:
    """Indents every line that is not empty."""
    space = " " * indent
    return "\n".join(space + line if line else line for line in text.split("\n"))


class Imports:
    """The imports of a script, written in sections: the standard library, then everything else."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._names: dict[str, set[str]] = {}

    def add(self, module: str, *names: str) -> None:
        """Adds `import module`, or `from module import names`."""
        if names:
            self._names.setdefault(module, set()).update(names)
        else:
            self._modules.add(module)

    def __str__(self) -> str:
        sections = [self._section(is_standard) for is_standard in (True, False)]
        return "\n\n".join(section for section in sections if section)

    def _section(self, is_standard: bool) -> str:
        def belongs(module: str) -> bool:
            return (module.partition(".")[0] in sys.stdlib_module_names) == is_standard

        lines = [f"import {module}" for module in sorted(filter(belongs, self._modules))]
        for module in sorted(filter(belongs, self._names)):
            names = sorted(self._names[module], key=_import_order)
            line = f"from {module} import {', '.join(names)}"
            if len(line) > LINE_LENGTH:
                inner = "\n".join(f"    {name}," for name in names)
                line = f"from {module} import (\n{inner}\n)"
            lines.append(line)
        return "\n".join(lines)


def _import_order(name: str) -> tuple[int, str]:
    """Constants first, then classes, then the rest, as import sorters do."""
    if name.isupper() and len(name) > 1:
        return (0, name)
    return (1 if name[:1].isupper() else 2, name.lower())
