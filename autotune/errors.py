"""The error tree of autotune, and the exit code that each kind of error ends a command with.

```text
AutotuneError                 1   anything of ours that went wrong
├── UsageError                2   a flag, a file or a combination that cannot work
│   └── WorkloadError         2   the model, the data or a column
├── DeviceError               3   a device or a probe that is not available
├── NothingFeasible           4   no configuration meets the goal
├── Unconfirmed               5   the budget ended before the best was confirmed
├── ExportError               1   a file that its consumer does not accept, or cannot be written
└── JournalError              1   a run directory that cannot be read
```

A trial that fails is an outcome (`autotune.outcome`), not an exception.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    DEVICE = 3
    INFEASIBLE = 4
    UNCONFIRMED = 5
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143


class AutotuneError(Exception):
    """An error with a cause, and a remedy the reader can act on.

    Args:
        cause: One sentence that says what is wrong.
        remedy: One sentence that says what to do about it, or None where nothing can be done.

    Example:
        >>> try:
        ...     autotune.load("missing.json")
        ... except autotune.AutotuneError as error:
        ...     print(error.remedy)
        Give a recommendation.json.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}" if self.remedy else self.cause


class UsageError(AutotuneError):
    """A flag, a file or a combination of them that cannot work.

    Example:
        >>> autotune.tune(42)
        Traceback (most recent call last):
        ...
        autotune.errors.UsageError: tune() was given a int. Give it a transformers.Trainer, ...
    """

    exit_code = ExitCode.USAGE


class WorkloadError(UsageError):
    """The model, the data or a column is missing or does not fit the task.

    Example:
        >>> autotune.tune(model=trainer.model, args=trainer.args)
        Traceback (most recent call last):
        ...
        autotune.errors.WorkloadError: There is no training data. Give a train_dataset.
    """


class DeviceError(AutotuneError):
    """A device or a probe is not available."""

    exit_code = ExitCode.DEVICE


class NothingFeasible(AutotuneError):
    """No configuration meets the goal on this machine.

    Example:
        >>> issubclass(autotune.NothingFeasible, autotune.AutotuneError)
        True
    """

    exit_code = ExitCode.INFEASIBLE


class Unconfirmed(AutotuneError):
    """The budget ended before the best configuration was confirmed.

    Example:
        >>> issubclass(autotune.Unconfirmed, autotune.AutotuneError)
        True
    """

    exit_code = ExitCode.UNCONFIRMED


class ExportError(AutotuneError):
    """A file could not be written, or its consumer does not accept it."""


class JournalError(AutotuneError):
    """A run directory cannot be read."""


ERRORS_BY_NAME: dict[str, type[AutotuneError]] = {
    error.__name__: error
    for error in (
        AutotuneError,
        UsageError,
        WorkloadError,
        DeviceError,
        NothingFeasible,
        Unconfirmed,
        ExportError,
        JournalError,
    )
}
"""How an error that crossed a process border by name becomes one of ours again."""
