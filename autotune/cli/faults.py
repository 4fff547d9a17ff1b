"""Everything that is wrong with the options of a job, for a form that marks all of it at once.

A command line stops at the first error. Here what is wrong is put aside, and the rest is looked at
as if it were right, until nothing is wrong any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import typer

from autotune.cli import app, options
from autotune.cli.declare import misplaced
from autotune.cli.job import (
    build_request,
    check_one_model,
    no_dataset,
    no_model,
    places_of,
)
from autotune.cli.reader import Reader
from autotune.cli.task import told_task
from autotune.errors import AutotuneError, UsageError
from autotune.events import Document
from autotune.request import Request
from autotune.workload.resolve import place_faults

_MOST = 20
"""Errors after which nobody wants to read on."""
_FLAG = re.compile(r"--([a-z][a-z-]*[a-z])")
_PLACES = {
    "model": "model",
    "model_config": "model config",
    "tokenizer": "tokenizer",
    "dataset": "dataset",
}
"""What is looked for at the path of an option."""
_ANY_TASK = "causal-lm"
"""Stands for a task that cannot be known while something else is wrong."""


def of_words(
    command: str, words: Sequence[str], *, shown: str
) -> tuple[list[str], list[UsageError]]:
    """What the parser of a command does not take.

    Args:
        command: The command.
        words: What it is given.
        shown: The command that hints name.

    Returns:
        The words without it, and an error for each of them.
    """
    root: Any = typer.main.get_command(app.app)
    above = root.make_context("autotune", [])
    parser = root.get_command(above, command)
    kept = list(words)
    found: list[UsageError] = []
    while len(found) < _MOST:
        try:
            parser.make_context(command, list(kept), parent=above)
            break
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            found.append(app.usage_error(error, shown))
            before, kept = kept, _without(kept, error)
            if kept == before:
                break
    return kept, found


def _without(words: Sequence[str], error: Exception) -> list[str]:
    """The words without the option that an error is about."""
    parameter = getattr(error, "param", None)
    flag = getattr(error, "option_name", None)
    if flag is None and parameter is not None:
        flag = parameter.opts[0]
    kept: list[str] = []
    is_value = False
    for word in words:
        if word == flag:
            is_value = True
            continue
        is_of_flag = (is_value and not word.startswith("--")) or word.startswith(f"{flag}=")
        is_value = False
        if not is_of_flag:
            kept.append(word)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What of a job is its own, and no stand-in for something that is wrong."""

    model: bool = True
    data: bool = True
    task: bool = True

    def after(self, before: options.Plan, now: options.Plan) -> Known:
        """What is left when options were put aside."""

        def same(*names: str) -> bool:
            return all(getattr(before, name) == getattr(now, name) for name in names)

        return Known(
            model=self.model and same("model", "model_config"),
            data=self.data and same("dataset"),
            task=self.task and same("task"),
        )


class Finish(Protocol):
    """Looks further at a request whose data are there."""

    def __call__(self, request: Request, known: Known) -> Document:
        """What it told.

        Raises:
            AutotuneError: Something is wrong with the request.
        """


def of_places(
    context: typer.Context, chosen: options.Plan
) -> tuple[options.Plan, dict[str, UsageError]]:
    """What can be no path.

    Returns:
        The options without that, and the errors by name.
    """
    found = misplaced(context, chosen)
    defaults: dict[str, Any] = {field.name: field.default for field in fields(chosen)}
    return replace(chosen, **{name: defaults[name] for name in found}), found


def of_options(
    context: typer.Context,
    chosen: options.Plan,
    nowhere: Mapping[str, UsageError],
    finish: Finish,
) -> tuple[list[AutotuneError], Document]:
    """What cannot work of the options of a call.

    Args:
        context: The call.
        chosen: Its options, without those that can be no path.
        nowhere: The errors of these, by name.
        finish: Looks further at a request whose data are there.

    Returns:
        Every error, what others follow from first; and what `finish` told of the rest, which is
        empty where it could not look.
    """
    told: list[AutotuneError] = []
    try:
        check_one_model(Reader(context), chosen)
    except UsageError as error:
        # Nobody knows which of the two is meant: the rest is looked at as if it were the weights.
        told.append(error)
        chosen = replace(chosen, model_config=None)
    if chosen.task is None and (task := told_task(chosen)) is not None:
        # It stays known when what tells it is put aside.
        chosen = replace(chosen, task=task[0])
    found = _missing(chosen, nowhere)
    told += [*found.values(), *(nowhere[name] for name in nowhere if name not in _PLACES)]
    probe = _filled(chosen, found)
    has_model = not found.keys() - {"dataset"}
    known = Known(
        model=has_model,
        data="dataset" not in found,
        # Where there is a model, it is asked for it below.
        task=has_model or chosen.task is not None,
    )
    while len(told) < _MOST:
        try:
            request = build_request(context, probe)
            return told, finish(request, known) if known.data else {}
        except AutotuneError as error:
            told.append(error)
            before, probe = probe, _put_aside(probe, error)
            known = known.after(before, probe)
            if probe == before:
                break
    return told, {}


def _missing(chosen: options.Plan, nowhere: Mapping[str, UsageError]) -> dict[str, AutotuneError]:
    """What is not named or not there, by what it is."""
    named = {_PLACES[name]: error for name, error in nowhere.items() if name in _PLACES}
    has_model = chosen.model or chosen.model_config or {"model", "model config"} & named.keys()
    if chosen.demo or (chosen.resume and not has_model):
        return {}
    found: dict[str, AutotuneError] = {}
    if not has_model:
        found["model"] = no_model()
    if not chosen.dataset and "dataset" not in named:
        found["dataset"] = no_dataset()
    return found | named | place_faults(places_of(chosen), Path.cwd())


def _filled(chosen: options.Plan, missing: Mapping[str, AutotuneError]) -> options.Plan:
    """The options with something that is there in the place of what is not."""
    here = str(Path.cwd())
    if missing.keys() - {"dataset"}:
        task = chosen.task or _ANY_TASK
        chosen = replace(chosen, model=here, model_config=None, tokenizer=None, task=task)
    return replace(chosen, dataset=here) if "dataset" in missing else chosen


def _put_aside(chosen: options.Plan, error: AutotuneError) -> options.Plan:
    """The options without those that an error names."""
    defaults: dict[str, Any] = {
        field.name: field.default for field in fields(chosen) if field.name != "demo"
    }
    named = _names(error.cause, defaults) or _names(error.remedy or "", defaults)
    if "global_batch_size" in named and "micro_batch_size" in named:
        # Either may be meant; the one that ranks share is looked at further.
        named.remove("global_batch_size")
    elif "global_batch_size" in named:
        # Whether ranks can share it cannot be known, and nobody asked about its stand-in.
        named.append("processes")
    changed = {name: defaults[name] for name in named}
    if "task" in changed:
        changed["task"] = _ANY_TASK
    rest = replace(chosen, **changed)
    if chosen.demo:
        return rest
    gone = {"model"} if chosen.model and not (rest.model or rest.model_config) else set()
    gone |= {"dataset"} if chosen.dataset and not rest.dataset else set()
    return _filled(rest, dict.fromkeys(gone, error))


def _names(text: str, known: dict[str, Any]) -> list[str]:
    names = [match.replace("-", "_") for match in _FLAG.findall(text)]
    return [name for name in names if name in known]
