"""What may be written behind `/`: words, `state:oom`, `mbs>=8`, `#14`, and `!` before any of them.

All parts must hold. A plain word matches anything that the row, its reason or its cause says.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from autotune.display import wording
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
_NUMBERS = ("number", "mbs", "acc", "ranks", "sgd", "rate", "peak", "step", "gain")
_STATES = {"oom": "out_of_memory", "ok": "measured", "timeout": "timed_out", "base": "baseline"}


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
        """Whether a trial is shown. Without a filter, repeats of known configurations are not."""
        if not self.tests:
            return trial.outcome is None or trial.purpose in ("baseline", "search")
        return all(test(trial, view) for test in self.tests)


def parse(text: str) -> Filter:
    """Reads a filter.

    Raises:
        ValueError: A part of it makes no sense; the message says what would.
    """
    return Filter(text=text.strip(), tests=tuple(_part(part) for part in text.lower().split()))


def _part(part: str) -> Test:
    if part.startswith("!") and len(part) > 1:
        inner = _part(part[1:])
        return lambda trial, view: not inner(trial, view)
    if re.fullmatch(r"#\d+", part):
        number = int(part[1:])
        return lambda trial, view: trial.number == number
    if match := _COMPARISON.fullmatch(part):
        return _comparison(match[1], match[2], match[3])
    name, colon, word = part.partition(":")
    if colon and name in ("state", "purpose", "ckpt"):
        return _named(name, word)
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
        if name == "peak":
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
            wanted = _STATES.get(word, word.replace("-", "_"))
            if wanted == "baseline":
                return lambda trial, view: trial.purpose == "baseline"
            return lambda trial, view: trial.state.startswith(wanted)
        case "purpose":
            return lambda trial, view: trial.purpose.startswith(word)
        case _:
            return lambda trial, view: checkpointing(trial.configuration.checkpointing) == word


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
