"""Options are declared once, as fields of a dataclass, and rendered to what needs them.

`takes` renders them into the signature that Typer reads, `settings` into what a settings file may
say. Values arrive as plain text and numbers; `autotune.cli.job` gives them their meaning.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from autotune.cli.ahead import Ahead
from autotune.cli.endings import EndedBySignal
from autotune.cli.settings import PathKind, Setting
from autotune.errors import UsageError
from autotune.run_directory import place

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)
else:
    OptionsT = TypeVar("OptionsT")


@dataclass(kw_only=True)
class Invocation:
    """What is known of one call of the command line, beside its options."""

    arguments: tuple[str, ...]
    wants_json: bool
    settings_file: Path | None = None
    """Where options that nobody typed may come from."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that it gives the terminal UI."""
    ahead: Ahead | None = None
    """A terminal UI that is loading meanwhile."""


PATH: PathKind = "path"
PATH_OR_NAME: PathKind = "path or name"


def option(
    name: str, help: str, *, panel: str, metavar: str | None = None, choices: Iterable[str] = ()
) -> Any:  # noqa: ANN401 - so Typer declares it
    """An option with its environment variable.

    Args:
        name: With dashes, as it is typed.
        help: One sentence; the default belongs into it.
        panel: Under which heading `--help` lists it.
        metavar: What the value is called; the choices by default.
        choices: Values that completion offers.
    """
    values = list(choices)
    return typer.Option(
        name,
        help=help,
        envvar=variable(name),
        show_envvar=False,
        show_default=False,
        rich_help_panel=panel,
        metavar=metavar or "|".join(values) or None,
        autocompletion=(lambda: values) if values else None,
    )


def origin(context: typer.Context, name: str) -> str:
    """Says where an option's value came from, if it was not typed: to be put behind its name."""
    invocation = context.find_object(Invocation)
    source = context.get_parameter_source(name)
    if source is not None and source.name == "ENVIRONMENT":
        return f" (from {variable(name)})"
    if source is not None and source.name == "DEFAULT_MAP" and invocation is not None:
        return f" (from {invocation.settings_file})"
    return ""


def is_given(context: typer.Context, name: str) -> bool:
    """Whether somebody gave the option: by a flag, a variable or a file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether the option stands on the command line itself."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def variable(name: str) -> str:
    """The environment variable of an option, by its flag or its name in the program."""
    return "AUTOTUNE_" + name.removeprefix("--").replace("-", "_").upper()


def takes(
    options: type[OptionsT], *, checks_places: bool = True
) -> Callable[[Callable[[typer.Context, OptionsT], int]], Callable[..., int]]:
    """Makes a function of a context and an options object into a command that Typer can read.

    Args:
        options: The class of the object.
        checks_places: Whether options whose value can be no path are refused at once.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        ),
        *(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[field.name],
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
            )
            for field in fields(options)
        ),
    ]

    def decorate(body: Callable[[typer.Context, OptionsT], int]) -> Callable[..., int]:
        def command(context: typer.Context, **values: object) -> int:
            invocation = context.find_object(Invocation)
            if invocation is not None:
                invocation.wants_json = bool(values.get("json"))
            chosen = options(**values)
            for error in misplaced(context, chosen).values() if checks_places else ():
                raise error
            try:
                return body(context, chosen)
            except KeyboardInterrupt as error:
                # Typer would end the command without a word.
                raise EndedBySignal(signal.SIGINT) from error

        command.__name__ = body.__name__
        command.__doc__ = body.__doc__
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _words(hint: object) -> list[str]:
    """What is noted of an option beside what Typer reads."""
    return [note for note in get_args(hint)[1:] if isinstance(note, str)]


def misplaced(context: typer.Context, chosen: DataclassInstance) -> dict[str, UsageError]:
    """Errors of the options that take a path and hold what can be none, by name."""
    found: dict[str, UsageError] = {}
    for name, hint in get_type_hints(type(chosen), include_extras=True).items():
        value = getattr(chosen, name)
        if not {PATH, PATH_OR_NAME} & {*_words(hint)} or not isinstance(value, str):
            continue
        try:
            place(value)
        except UsageError as error:
            flag = f"--{name.replace('_', '-')}{origin(context, name)}"
            found[name] = UsageError(f"{flag}: {error.cause}", error.remedy)
    return found


def settings(declared: Iterable[type[DataclassInstance]]) -> Mapping[str, Setting]:
    """What a settings file may set: every option, by its name without dashes."""
    known: dict[str, Setting] = {}
    for options in declared:
        for name, hint in get_type_hints(options, include_extras=True).items():
            assert get_origin(hint) is not None, f"{name} is not Annotated"
            annotation, *notes = get_args(hint)
            if not any(isinstance(note, OptionInfo) for note in notes):
                continue
            types = [kind for kind in (*get_args(annotation), annotation) if kind is not type(None)]
            path = next((note for note in notes if note in (PATH, PATH_OR_NAME)), None)
            known[name.replace("_", "-")] = Setting(type=types[0], path=path)
    return known
