"""What may be written behind `/`: words, `state:oom`, `mbs>=8`, `#14`, and `!` before any of them.

All parts must hold. A plain word matches anything that the row, its reason or its cause says.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from autotune.display import wording
from autotune.outcome import Purpose
from autotune.units import parse_bytes, parse_seconds
from autotune.view import RunView, TrialView
from tui.trials.columns import BY_ID, checkpointing

Test: TypeAlias = Callable[[TrialView, RunView], bool]

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_COMPARISON = re.compile(r"([a-z]+)(>=|<=|!=|>|<|=)(.+)")
_SIGN = re.compile(r"\s*(>=|<=|!=|>|<|=)\s*")
_BYTES = ("peak", "predicted")
_NUMBERS = ("number", "mbs", "acc", "ranks", "sgd", "rate", "peak", "predicted", "step", "gain")
_NAMED = ("state", "purpose", "ckpt")
_STATES = {
    "oom": "out_of_memory",
    "ok": "measured",
    "timeout": "timed_out",
    "base": "baseline",
    "baseline": "baseline",
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Which trials are shown."""

    text: str = ""
    tests: tuple[Test, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return not self.tests

    def matches(self, trial: TrialView, view: RunView) -> bool:
        """Whether a trial is shown. Without a filter, repeats are shown only while they run."""
        if not self.tests:
            return not trial.is_repeat or trial.state == "running"
        return all(test(trial, view) for test in self.tests)

    def in_force(self, view: RunView) -> Filter:
        """This filter, or the empty one where no trial would be left to look at."""
        is_of_use = self.is_empty or any(self.matches(trial, view) for trial in view.trials)
        return self if is_of_use else Filter()


def parse(text: str) -> Filter:
    """Reads a filter; there may be blanks around its signs.

    Raises:
        ValueError: A part of it makes no sense; the message says what would.
    """
    joined = _SIGN.sub(r"\1", text.lower())
    return Filter(text=text.strip(), tests=tuple(_part(part) for part in joined.split()))


def _part(part: str) -> Test:
    if part.startswith("!") and len(part) > 1:
        inner = _part(part[1:])
        return lambda trial, view: not inner(trial, view)
    if re.fullmatch(r"#\d+", part):
        number = int(part[1:])
        return lambda trial, view: trial.number == number
    if match := _COMPARISON.fullmatch(part):
        return _comparison(match[1], match[2], match[3])
    if any(sign in part for sign in "<>="):
        raise ValueError(f"{part!r} compares nothing: write for example mbs>=8")
    name, colon, word = part.partition(":")
    if colon and name in _NAMED:
        return _named(name, word)
    near = difflib.get_close_matches(name, _NAMED, n=1) if colon and word else []
    if near:
        raise ValueError(f"{name}: asks for nothing, {near[0]}:{word} would")
    return lambda trial, view: part in _everything(trial)


def _comparison(name: str, sign: str, text: str) -> Test:
    if name not in _NUMBERS:
        raise ValueError(f"{name} cannot be compared; {', '.join(_NUMBERS)} can")
    wanted = _number(name, text)
    compare = _OPERATORS[sign]
    column = BY_ID[name]

    def test(trial: TrialView, view: RunView) -> bool:
        value = column.value(trial, view)
        return isinstance(value, int | float) and compare(value, wanted)

    return test


def _number(name: str, text: str) -> float:
    try:
        if name in _BYTES:
            return float(parse_bytes(text))
        if name == "step":
            return parse_seconds(text)
        number = float(text.removesuffix("%"))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is nothing that {name} can be compared with") from error
    return 1 + number / 100 if name == "gain" else number


def _named(name: str, word: str) -> Test:
    match name:
        case "state":
            wanted = _one_of(name, word.replace("-", "_"), (*_STATES, *wording.WORDS))
            kinds = {_STATES.get(one, one) for one in wanted}
            return lambda trial, view: (
                trial.state in kinds or ("baseline" in kinds and trial.purpose == "baseline")
            )
        case "purpose":
            purposes = _one_of(name, word, get_args(Purpose))
            return lambda trial, view: trial.purpose in purposes
        case _:
            return lambda trial, view: checkpointing(trial.configuration.checkpointing) == word


def _one_of(name: str, word: str, words: Sequence[str]) -> list[str]:
    """The words that begin so."""
    found = [one for one in words if one.startswith(word)]
    if not found:
        known = ", ".join(one.replace("_", "-") for one in words)
        raise ValueError(f"{name}:{word} is none; there are {known}")
    return found


def _everything(trial: TrialView) -> str:
    outcome = wording.ending_of(trial) if trial.state != "running" else ""
    words = (
        f"#{trial.number}",
        wording.WORDS[trial.state],
        "oom" if trial.state == "out_of_memory" else "",
        trial.purpose,
        str(trial.configuration),
        trial.why,
        outcome,
        trial.origin.host if trial.origin is not None else "",
    )
    return " ".join(words).lower()
