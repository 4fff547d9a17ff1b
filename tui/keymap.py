"""Keys that a settings file gives, checked before any of them is in force."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from textual.keys import Keys, _character_to_key

from autotune.errors import UsageError
from tui import bindings
from tui.keys.key import Key

_HELP = "tui/KEYS.md and `python -m tui --keys` list every id."
_NAMES = frozenset(key.value for key in Keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMap:
    """Other keys by the id of what they do, and the file that gives them."""

    source: str
    keys: Mapping[str, str]
    """One key or several, separated by commas."""

    @classmethod
    def from_json(cls, text: str) -> KeyMap:
        """Reads what the command line passes on.

        Raises:
            UsageError: It is nothing of the kind.
        """
        try:
            document = json.loads(text)
            keys = {str(id): str(names) for id, names in document["keys"].items()}
            return cls(source=str(document["source"]), keys=keys)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"--keymap takes a source and keys as JSON: {error!r}.", "`autotune tui` writes it."
            ) from error

    def table(self) -> tuple[Key, ...]:
        """Every key, with those of the file in the place of the usual ones.

        Raises:
            UsageError: An id or a key is unknown, or a key would mean two things.
        """
        known = {key.id: key for key in bindings.TABLE}
        for id, names in self.keys.items():
            if id not in known:
                near = difflib.get_close_matches(id, known, n=1)
                raise UsageError(
                    f"{self.source} gives a key to {id!r}, which is nothing that keys do.",
                    f"Did you mean {near[0]!r}?" if near else _HELP,
                )
            known[id] = self._changed(known[id], names)
        table = tuple(known.values())
        self._refuse_conflicts(table)
        return table

    def _changed(self, key: Key, wanted: str) -> Key:
        names = [_name(part.strip()) for part in wanted.split(",")]
        for name, part in zip(names, wanted.split(","), strict=True):
            if not _is_key(name):
                raise UsageError(
                    f"{self.source} gives {key.id} the key {part.strip()!r}, which is none.",
                    "A key is a character, or a name such as f2, ctrl+x, comma or pagedown.",
                )
            if key.priority and bindings.character(name) is not None:
                raise UsageError(
                    f"{self.source} gives {key.id} the key {part.strip()!r}, and it has to work "
                    "while a field takes characters.",
                    "Give it one such as f2 or ctrl+x.",
                )
        return replace(key, keys=",".join(names), shown=bindings.written(names[0]))

    def _refuse_conflicts(self, table: tuple[Key, ...]) -> None:
        for screen in bindings.SCREEN_TITLES:
            taken: dict[str, Key] = {}
            for key in table:
                if key.screen not in (None, screen):
                    continue
                for name in key.keys.split(","):
                    other = taken.setdefault(name, key)
                    if other is not key or key.keys.split(",").count(name) > 1:
                        raise UsageError(
                            f"{self.source} leaves the key {bindings.written(name)!r} with two "
                            f"meanings: {other.id} and {key.id}.",
                            "Give one of them another key in the same table.",
                        )


def _name(key: str) -> str:
    """Textual's name of a key that may be written as its character."""
    return _character_to_key(key) if len(key) == 1 else key


def _is_key(name: str) -> bool:
    stem = name
    for modifier in ("ctrl+", "alt+", "shift+"):
        stem = stem.removeprefix(modifier)
    return name in _NAMES or stem in _NAMES or (bool(stem) and bindings.character(stem) is not None)
