"""A form that is being filled in, and the command line that says the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tui.setup.fields import BY_NAME, FIELDS, MORE, columns_of

ON = "on"
"""Value of a switch that is on."""
SWITCHES = {
    "--resume": ("g", "Go on with that run, with every finished trial (--resume)"),
    "--fresh": ("f", "Start over; its story is moved aside (--fresh)"),
    "--force": ("f", "Replace those files (--force)"),
}
"""What a remedy may offer: a key for it, and what it would do."""
_OF_A_TAKEN_NAME = ("--resume", "--fresh")
"""What to do with a run that there is: one of them at most."""
_OWN_FLAGS = ("--json", "--detach", "--tui", "--display", "--dry-run")
"""What the form itself decides."""
_FLAG = re.compile(r"--[a-z][a-z-]*[a-z]")
_QUOTED = ("dataset", "model", "name", "out", "run_dir")
"""Fields whose value an error repeats."""
_NOT_OF_THE_DEMO = ("model", "dataset", "task", "precision")
_OPENINGS = {"The dataset": "dataset", "The data": "dataset", "The model": "model"}


@dataclass(frozen=True, slots=True)
class Inherited:
    """A value that holds without being given here."""

    value: str
    origin: str
    """Where it comes from, in words."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a job, and at which field."""

    cause: str
    remedy: str | None = None
    field: str | None = None
    """Its name; None where it belongs to none."""

    def switches(self, tried: Sequence[str] = ()) -> tuple[str, ...]:
        """Switches of the command line that the remedy offers, such as `--resume`.

        Args:
            tried: Words that have just failed: none of them is offered again.
        """
        offered = _FLAG.findall(self.remedy or "")
        return tuple(flag for flag in SWITCHES if flag in offered and flag not in tried)


def with_switch(words: Sequence[str], switch: str) -> list[str]:
    """Words with a switch more, and without one that it excludes."""
    excluded = _OF_A_TAKEN_NAME if switch in _OF_A_TAKEN_NAME else ()
    return [*(word for word in words if word not in excluded), switch]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForm:
    """What is filled in. Immutable: `with_value` makes the next one."""

    values: Mapping[str, str] = field(default_factory=dict)
    """Texts by field; empty ones are left out."""
    inherited: Mapping[str, Inherited] = field(default_factory=dict)
    """What a settings file or a variable says, which the children read themselves."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads what the command line hands over: `{"given": {…}, "inherited": {…}}`.

        Names are those of options with underscores. Inherited ones are pairs of a value and its
        origin. What has no field of its own becomes words of the field for further options.

        Raises:
            ValueError: It is no such text.
        """
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("a form is a JSON object")
        given, inherited = document.get("given") or {}, document.get("inherited") or {}
        values = {name: _text(value) for name, value in given.items() if name in BY_NAME}
        rest = [
            word
            for name, value in given.items()
            if name not in BY_NAME and value is not None and value is not False
            for word in _words(f"--{name.replace('_', '-')}", value)
        ]
        more = shlex.join([*shlex.split(values.get(MORE.name, "")), *rest])
        return cls(
            values={name: value for name, value in {**values, MORE.name: more}.items() if value},
            inherited={
                name: Inherited(_text(value), str(origin))
                for name, (value, origin) in inherited.items()
                if name in BY_NAME and _text(value)
            },
        )

    def with_value(self, name: str, value: str) -> JobForm:
        """The same form with another value in a field."""
        value = value.strip()
        rest = {one: text for one, text in self.values.items() if one != name}
        return replace(self, values={**rest, name: value} if value else rest)

    def __getitem__(self, name: str) -> str:
        """What holds in a field: what is filled in, else what is inherited, else nothing."""
        inherited = self.inherited.get(name)
        return self.values.get(name) or (inherited.value if inherited else "")

    def placeholder(self, name: str) -> str:
        """What an empty field shows: what holds then."""
        inherited = self.inherited.get(name)
        if inherited is not None:
            return f"{inherited.value} ({inherited.origin})"
        return BY_NAME[name].default

    @property
    def is_demo(self) -> bool:
        """Whether the built-in job is chosen."""
        return self["demo"] == ON

    @property
    def has_several_processes(self) -> bool:
        """Whether ranks would exchange anything."""
        return self["processes"] not in ("", "1")

    def shown(self, task: str = "") -> tuple[str, ...]:
        """Names of the fields that matter, in their order.

        Args:
            task: What the model learns, where the form leaves that open.
        """
        columns = columns_of(self["task"] or task)
        hidden = {*_NOT_OF_THE_DEMO} if self.is_demo else set()
        if not self.has_several_processes:
            hidden.add("local_sgd")
        return tuple(
            one.name
            for one in FIELDS
            if one.name not in hidden
            and (not one.name.endswith("_column") or self._reads(one.name, columns))
        )

    def _reads(self, column: str, columns: tuple[str, ...]) -> bool:
        """Whether the task reads a column; where it is not known, one that is named."""
        is_named = not columns and bool(self[column])
        return not self.is_demo and (column in columns or is_named)

    def words(self) -> list[str]:
        """What is filled in, as words of a command line behind `autotune tune` or `plan`.

        Raises:
            ValueError: The further options cannot be split into words, or are not for here.
        """
        words: list[str] = []
        for one in FIELDS:
            value = self.values.get(one.name, "")
            if one.name in self._out_of_place() or not value or one is MORE:
                continue
            words += _words(one.flag, True if one.kind == "switch" else value)
        return [*words, *self._more()]

    def _more(self) -> list[str]:
        more = shlex.split(self.values.get(MORE.name, ""))
        given = self.values.keys() - self._out_of_place() - {MORE.name}
        filled_in = {BY_NAME[name].flag for name in given}
        for word in more:
            flag = word.split("=")[0]
            if flag in _OWN_FLAGS:
                raise ValueError(f"{word} is not for here")
            if flag in filled_in:
                raise ValueError(f"{flag} is filled in above as well")
        return more

    def _out_of_place(self) -> set[str]:
        """Fields whose text waits for another choice and says nothing now."""
        if self.is_demo:
            columns = {one.name for one in FIELDS if one.name.endswith("_column")}
            return {*_NOT_OF_THE_DEMO, *columns}
        task = self["task"]
        if not task:
            return set()
        return {one.name for one in FIELDS if one.name.endswith("_column")} - {*columns_of(task)}

    def missing(self) -> tuple[Fault, ...]:
        """What must be filled in before there is a job."""
        if self.is_demo:
            return ()
        found = []
        has_config = "--model-config" in self.values.get(MORE.name, "")
        if not self["model"] and not has_config:
            remedy = "Name one, or switch on the demo."
            found.append(Fault("There is no model to train.", remedy, "model"))
        if not self["dataset"]:
            remedy = "Name a file, a directory or a hub name."
            found.append(Fault("There is no data to train on.", remedy, "dataset"))
        return tuple(found)

    def command(self, command: str = "tune") -> str:
        """The command line that does the same, to be pasted into a shell."""
        try:
            return shlex.join(["autotune", command, *self.words()])
        except ValueError as error:
            return f"autotune {command} … ({error})"

    def again(self) -> str:
        """The command line that opens the UI with this form, whatever is wrong in it."""
        more = self.values.get(MORE.name, "")
        try:
            return self.command("tui") if self.words() else "autotune tui"
        except ValueError:
            # What cannot be split into words is told as it was typed.
            return f"{self.with_value(MORE.name, '').command('tui')} {more}"

    def fault(self, cause: str, remedy: str | None) -> Fault:
        """An error of a child, put to the field that it speaks of."""
        return Fault(cause, remedy, self._field_of(cause, remedy or ""))

    def _field_of(self, cause: str, remedy: str) -> str | None:
        flags = [str(flag) for flag in _FLAG.findall(cause)]
        further = [flag for flag in flags if self._is_further_option(flag)]
        if any(_has_field(flag) for flag in further):
            # It could have been filled in above, and was not.
            return MORE.name
        named = _first_field(cause)
        if named is not None:
            return named
        if further:
            return MORE.name
        values = [(self[name], name) for name in _QUOTED if self[name]]
        for value, name in sorted(values, key=lambda pair: -len(pair[0])):
            if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", cause):
                return name
        opening = next((name for text, name in _OPENINGS.items() if cause.startswith(text)), None)
        return _first_field(remedy) or opening

    def _is_further_option(self, flag: str) -> bool:
        """Whether an option stands in the field for further ones."""
        words = self.values.get(MORE.name, "").split()
        return any(word.split("=")[0] == flag for word in words)


def _has_field(flag: str) -> bool:
    return flag.removeprefix("--").replace("-", "_") in BY_NAME


def _first_field(text: str) -> str | None:
    """The field of the first option that a sentence names; options without one share theirs."""
    for flag in map(str, _FLAG.findall(text)):
        name = flag.removeprefix("--").replace("-", "_")
        if name in BY_NAME:
            return name
        if name in ("model_config", "tokenizer", "split", "dataset_config"):
            return "model" if name in ("model_config", "tokenizer") else "dataset"
    return None


def _words(flag: str, value: object) -> list[str]:
    return [flag] if value is True else [flag, str(value)]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return ON if value else ""
    return "" if value is None else str(value).strip()
