"""Turns what foreign libraries raise about a model or a dataset into our errors, at the border."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autotune.errors import AutotuneError, WorkloadError


@contextmanager
def foreign_errors(subject: str, *, remedy: str, doing: str = "loaded") -> Iterator[None]:
    """Raises a `WorkloadError` about `subject` for whatever goes wrong inside.

    Args:
        subject: What was being loaded, as the start of a sentence.
        remedy: What to do where the error itself suggests nothing better.
        doing: What failed, as a participle.

    Raises:
        WorkloadError: Something inside failed; memory that runs out and interrupts pass through.
    """
    try:
        yield
    except (AutotuneError, MemoryError):
        raise
    except Exception as error:
        text = " ".join(str(e) for e in chain(error))
        if "trust_remote_code" in text:
            raise WorkloadError(
                f"{subject} comes with Python code of its own.",
                "Read that code, and allow it with --trust-remote-code.",
            ) from error
        names = {type(e).__name__ for e in chain(error)}
        if "GatedRepoError" in names:
            raise WorkloadError(
                f"{subject} is gated: the hub gives it only to those who accepted its terms.",
                "Accept them on the page of the model, and log in with `hf auth login`.",
            ) from error
        if "RepositoryNotFoundError" in names:
            raise WorkloadError(
                f"{subject} is neither here nor on the hub.",
                "Check the name; what is private needs `hf auth login`.",
            ) from error
        if "SafetensorError" in names or "UnpicklingError" in names:
            raise WorkloadError(
                f"{subject} has damaged weights: {root_cause(error)}",
                "Copy or download them again.",
            ) from error
        if is_unreachable(error):
            raise WorkloadError(
                f"{subject} is not here, and the hub cannot be reached.",
                "Give the path of a local copy, or try again with a network connection.",
            ) from error
        raise WorkloadError(f"{subject} cannot be {doing}: {root_cause(error)}", remedy) from error


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and everything that led to it, the outermost first."""
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def root_cause(error: BaseException, most_characters: int = 300) -> str:
    """The first line of the error that started it all, as a sentence."""
    first = list(chain(error))[-1]
    line = next((line.strip() for line in str(first).splitlines() if line.strip()), "")
    if not line:
        return f"{type(first).__name__}."
    line = line if len(line) <= most_characters else line[: most_characters - 1] + "…"
    return line if line[-1] in ".!?…" else f"{line}."


def is_unreachable(error: BaseException) -> bool:
    """Whether the hub could not be asked: no connection, or offline by choice."""
    names = {
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
        "ConnectError",
        "ConnectionError",
        "ConnectTimeout",
        "MaxRetryError",
        "NameResolutionError",
        "gaierror",
    }
    return any(type(e).__name__ in names for e in chain(error))
