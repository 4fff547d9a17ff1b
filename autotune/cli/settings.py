"""Settings from files: `autotune.toml`, or `[tool.autotune]` in `pyproject.toml`.

The nearest one counts, from the working directory upwards; in one directory `autotune.toml` comes
first. A setting bears the name of its option without the dashes in front. Flags win over variables
(`AUTOTUNE_MEMORY_LIMIT`), variables over the file, the file over defaults. The table `keys` gives
the terminal UI other keys.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from autotune.errors import UsageError

Scalar: TypeAlias = str | int | float | bool
"""What a setting may be."""
PathKind: TypeAlias = Literal["path", "path or name"]
"""A relative path in a file starts at the file; one that may be a name, where something is there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of an option that a file may set."""

    type: type[Scalar]
    path: PathKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of one file, by the option without its dashes."""

    source: Path
    values: Mapping[str, Scalar]
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of the terminal UI by what they do; it knows what there is, and checks them."""


_KEYS = "keys"

_TYPE_NAMES: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def find_here() -> Path | None:
    """The settings file that holds for the working directory.

    Raises:
        UsageError: The directory was removed.
    """
    try:
        return find_file(Path.cwd())
    except FileNotFoundError as error:
        raise UsageError(
            "The working directory is gone.", "Change to one that is there."
        ) from error


def find_file(start: Path) -> Path | None:
    """The settings file that holds for a directory, the nearest one upwards."""
    for directory in (start, *start.parents):
        # Unlike pathlib's, this question is answered in directories of somebody else too.
        own = directory / "autotune.toml"
        if os.path.isfile(own):
            return own
        project = directory / "pyproject.toml"
        if os.path.isfile(project) and _project_table(project) is not None:
            return project
    return None


def load(path: Path, known: Mapping[str, Setting]) -> Settings:
    """Reads a settings file and checks every name and type.

    Args:
        path: An `autotune.toml`, or a `pyproject.toml` with a `[tool.autotune]` table.
        known: Every option of every command, by its name without dashes.

    Raises:
        UsageError: The file cannot be read, or a setting is unknown or of another type.
    """
    table = _project_table(path) if path.name == "pyproject.toml" else _own_table(path)
    values: dict[str, Scalar] = {}
    keys: Mapping[str, str] = {}
    for key, value in (table or {}).items():
        if key == _KEYS:
            keys = _keys(value, path)
            continue
        name = key.replace("_", "-")
        setting = known.get(name)
        if setting is None:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"{path} sets {key!r}, which is no option of autotune.",
                f"Did you mean {near[0]!r}?"
                if near
                else "A setting is an option of `autotune tune --help` without its dashes.",
            )
        values[name] = _checked(key, value, setting, path)
    return Settings(source=path, values=values, keys=keys)


def _keys(table: object, path: Path, within: str = "") -> dict[str, str]:
    """The keys of a table; `go.setup` may be written with or without quotes."""
    found: dict[str, str] = {}
    if not isinstance(table, dict):
        raise UsageError(
            f"{path} sets {_KEYS}, which is a table of keys.", f"Write them below [{_KEYS}]."
        )
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _keys(value, path, f"{within}{name}.")
        elif isinstance(value, str) and value:
            found[f"{within}{name}"] = value
        else:
            raise UsageError(
                f"{path} gives {within}{name} the key {value!r}, where text is needed.",
                'Write it as "f2", or several as "f2,o".',
            )
    return found


def _checked(key: str, value: object, setting: Setting, path: Path) -> Scalar:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Sizes and times may be plain numbers, and a number may be whole.
        if setting.type is str:
            return str(value)
        if setting.type is float:
            return float(value)
    if isinstance(value, setting.type) and isinstance(value, bool) == (setting.type is bool):
        return _from_the_file(value, setting, path.parent)
    raise UsageError(
        f"{path} sets {key} = {value!r}, where {_TYPE_NAMES[setting.type]} is needed.",
        "Change the line; `autotune tune --help` says what each option takes.",
    )


def _from_the_file(value: Scalar, setting: Setting, directory: Path) -> Scalar:
    if setting.path is None or not isinstance(value, str):
        return value
    try:
        place = directory / Path(value).expanduser()
    except RuntimeError:
        # In a home that is not known: whoever reads the option says so.
        return value
    return str(place) if setting.path == "path" or os.path.exists(place) else value


def _own_table(path: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", "Mend or remove the file.") from error


def _project_table(path: Path) -> Mapping[str, object] | None:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        # Somebody else's file; whoever needs it says what is wrong with it.
        return None
    tool = document.get("tool")
    table = tool.get("autotune") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None
