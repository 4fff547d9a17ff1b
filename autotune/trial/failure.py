"""Tells running out of memory apart from every other fault: by type first, by text only then.

Works on exceptions of any training library without importing one, so that the engine can use it.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.errors import AutotuneError
from autotune.outcome import Failed, OutOfMemory
from probes.kills import MemorySign

Where: TypeAlias = Literal["device", "host"]

_DEVICE_TEXTS = (
    r"\bCUDA (driver )?error: out of memory",
    r"\bCUDA out of memory",
    r"\bHIP (error: )?out of memory",
    r"\bXPU out of memory",
    r"\bMPS backend out of memory",
    r"\bCUBLAS_STATUS_ALLOC_FAILED\b",
    r"\bCUDNN_STATUS_ALLOC_FAILED\b",
    r"\bcudaErrorMemoryAllocation\b",
    r"\bNCCL error\b.*\bout of memory",
    # Allocators that fail inside their own bookkeeping: Tegra's NVML assertion, and the mapping of
    # expandable segments.
    r"NVML_SUCCESS == r INTERNAL ASSERT FAILED",
    r"handles_\.at\(i\) INTERNAL ASSERT FAILED at .*CUDACachingAllocator",
    r"\bUR_RESULT_ERROR_OUT_OF_(DEVICE|RESOURCES|DEVICE_MEMORY)\b",
)
_HOST_TEXTS = (
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)",
    r"\bUnable to allocate .* for an array\b",
    r"\bCannot allocate memory\b",
    r"\bstd::bad_alloc\b",
)
_MAYBE_DEVICE_TEXTS = (r"\bCUBLAS_STATUS_NOT_INITIALIZED\b", r"\bCUDNN_STATUS_NOT_INITIALIZED\b")
_KILLED_LOADER = r"\bDataLoader worker .* is killed by signal: Killed\b"
_MAYBE_HOST_TEXTS = (
    _KILLED_LOADER,
    # oneDNN says no more than this when its own allocation is refused.
    r"\bcould not create a primitive\b",
)
_TEXTS: Sequence[tuple[Where, bool, Sequence[str]]] = (
    ("device", True, _DEVICE_TEXTS),
    ("host", True, _HOST_TEXTS),
    ("device", False, _MAYBE_DEVICE_TEXTS),
    ("host", False, _MAYBE_HOST_TEXTS),
)
_NO_MEMORY = re.compile(r"\bCannot allocate memory\b")
_RANK_GONE = re.compile(
    r"/gloo/transport/.*\b(Connection closed by peer|Connection reset by peer|Read error|"
    r"Write error|Broken pipe|Connection refused|Timed out waiting)\b",
    re.DOTALL,
)
"""What gloo says where another rank is gone, behind a line of its own source."""
_RANK_GONE_REMEDY = (
    "The logs of the other ranks may say what ended theirs; where a whole node is gone, start "
    "again on every node."
)
_SHARED_MEMORY = re.compile(r"out of shared memory|\bBus error\b|</torch_\w+>.*No space left")
_NO_SPACE = re.compile(r"\bNo space left on device\b")
_KILLED_REMEDY = (
    "Somebody ended it by SIGKILL, and the system says that it was not for memory: it may be tried "
    "once more."
)
_SHARED_MEMORY_REMEDY = (
    "Use fewer data loader workers, or a larger /dev/shm; a smaller batch will not help."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVerdict:
    """That an error is about memory: which, how sure, and in what words."""

    where: Where
    is_certain: bool
    text: str


def memory_verdict(error: BaseException) -> MemoryVerdict | None:
    """Whether an exception, or one that led to it, means out of memory; None where it does not."""
    for link in chain(error):
        verdict = _verdict(link)
        if verdict is not None:
            return verdict
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything that led to it, outermost first, exception groups unfolded."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(link.exceptions)
        waiting.append(link.__cause__)
        if not link.__suppress_context__:
            waiting.append(link.__context__)


def _verdict(error: BaseException) -> MemoryVerdict | None:
    text = _text(error)

    def found(where: Where, *, is_certain: bool = True) -> MemoryVerdict:
        return MemoryVerdict(where=where, is_certain=is_certain, text=text)

    types = type(error).__mro__
    if any(t.__name__ == "HostBudgetExceeded" for t in types):
        return found("host")
    if any(t.__name__ == "OutOfMemoryError" and t.__module__.startswith("torch") for t in types):
        return found("device")
    if isinstance(error, MemoryError):
        return found("host")
    if isinstance(error, OSError):
        is_memory = error.errno == errno.ENOMEM or (
            error.errno is None and _NO_MEMORY.search(text) is not None
        )
        return found("host") if is_memory else None
    # Only these types come from allocators; the same words in a KeyError are somebody's data.
    if not isinstance(error, RuntimeError):
        return None
    for where, is_certain, patterns in _TEXTS:
        if any(re.search(pattern, text, re.DOTALL) for pattern in patterns):
            return found(where, is_certain=is_certain)
    return None


def outcome_of(
    error: BaseException, *, limit_bytes: int | None = None, sign: MemorySign = "unknown"
) -> OutOfMemory | Failed:
    """Turns an exception of a trial into its outcome.

    Args:
        error: What was raised.
        limit_bytes: What the trial might have occupied.
        sign: What points to memory, where a process of the trial was killed.
    """
    verdict = memory_verdict(error)
    if verdict is not None and sign == "none" and re.search(_KILLED_LOADER, verdict.text):
        return Failed(cause=describe(error), remedy=_KILLED_REMEDY, is_killed=True)
    if verdict is not None:
        return OutOfMemory(
            where=verdict.where,
            cause=_first_line(verdict.text) or type(error).__name__,
            needed_at_least_bytes=next(
                (link.needed_bytes for link in chain(error) if hasattr(link, "needed_bytes")), None
            ),
            limit_bytes=limit_bytes,
            is_certain=verdict.is_certain,
        )
    if isinstance(error, AutotuneError):
        return Failed(cause=error.cause, remedy=error.remedy)
    gone = next((m for link in chain(error) if (m := _RANK_GONE.search(_text(link)))), None)
    if gone is not None:
        return Failed(
            cause=f"Another rank is gone or does not answer ({gone[1]}).", remedy=_RANK_GONE_REMEDY
        )
    return Failed(cause=describe(error), remedy=_remedy(error))


def describe(error: BaseException) -> str:
    """One line: what the exception says, with its type, and what it was raised from."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    links = [error]
    while (cause := links[-1].__cause__) is not None and cause not in links:
        links.append(cause)
    said = _typed(error)
    return f"{said} (from {_typed(links[-1])})" if len(links) > 1 else said


def _typed(error: BaseException) -> str:
    name = type(error).__name__
    line = _first_line(_text(error))
    if not line:
        return name
    return line if line.startswith(f"{name}: ") else f"{name}: {line}"


def _text(error: BaseException) -> str:
    """What an exception says; of one that was carried over from another process, its own words."""
    # str() of several arguments would show them as a tuple; a class that speaks for itself may.
    plain = type(error).__str__ is BaseException.__str__
    text = " ".join(str(argument) for argument in error.args) if plain else str(error)
    _, marker, rest = text.rpartition("Traceback (most recent call last):\n")
    if not marker:
        return text
    # Frames are indented; the exception itself begins at the margin.
    lines = rest.splitlines()
    start = next((i for i, line in enumerate(lines) if line[:1].strip()), None)
    return text if start is None else "\n".join(lines[start:])


def _remedy(error: BaseException) -> str | None:
    text = "\n".join(_text(link) for link in chain(error))
    if _SHARED_MEMORY.search(text):
        return _SHARED_MEMORY_REMEDY
    if _NO_SPACE.search(text):
        return "Free some disk space, or choose another --run-dir."
    if "mark a variable ready only once" in text:
        return (
            "A layer that the model uses twice is checkpointed in the reentrant way, which ranks "
            "that exchange gradients cannot follow: checkpoint with use_reentrant=False."
        )
    if "no padding token is defined" in text:
        return "Name a padding token (--pad-token eos); until then the micro-batch size is 1."
    if "Expected more than 1 value per channel" in text:
        return (
            "Batch normalisation needs two rows: drop the last batch (dataloader_drop_last) "
            "or choose a size that leaves no single row over."
        )
    return None


def _first_line(text: str, limit: int = 300) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def outcome_of_exit(
    return_code: int, log_tail: str = "", *, sign: MemorySign = "unknown"
) -> OutOfMemory | Failed:
    """The outcome of a process that died without an answer.

    The log is quoted, never searched for the words "out of memory": a program may log anything.

    Args:
        return_code: As `subprocess` reports it: negative for a signal.
        log_tail: The last lines it printed.
        sign: What points to memory, where it was killed.
    """
    killed_by = _signal(return_code)
    if killed_by == signal.SIGKILL:
        return _killed(sign)
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    # A C++ program that nobody catches this in aborts, with these words as its last ones.
    if killed_by == signal.SIGABRT and any("'std::bad_alloc'" in line for line in lines[-3:]):
        return OutOfMemory(
            where="host",
            cause="The process aborted, since the allocator refused it memory (std::bad_alloc).",
            is_certain=False,
        )
    if killed_by is not None:
        cause = f"The process died of {killed_by.name}."
    else:
        cause = f"The process ended with exit code {return_code} without an answer."
    return Failed(
        cause=f"{cause} It last said: {_first_line(lines[-1])}" if lines else cause,
        remedy=_SHARED_MEMORY_REMEDY if killed_by == signal.SIGBUS else None,
    )


def _killed(sign: MemorySign) -> OutOfMemory | Failed:
    match sign:
        case "none":
            return Failed(
                cause="The process was killed from outside.", remedy=_KILLED_REMEDY, is_killed=True
            )
        case "kernel":
            who = "killed from outside, where the system killed for want of memory"
        case "pressure":
            who = "killed from outside, probably for its memory: the machine was short of it"
        case "unknown":
            who = "killed from outside, probably by the system for its memory"
    return OutOfMemory(where="host", cause=f"The process was {who}.", is_certain=False)


def _signal(return_code: int) -> signal.Signals | None:
    """The signal that ended a process; shells report 128 and more for one."""
    number = -return_code if return_code < 0 else return_code - 128
    return signal.Signals(number) if number in {s.value for s in signal.Signals} else None
