"""Tells running out of memory apart from every other fault: by type first, by text only then.

Works on exceptions of any training library without importing one, so that the engine can use it.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.outcome import Failed, OutOfMemory

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
_SHARED_MEMORY_TEXT = re.compile(r"out of shared memory|\bBus error\b")
_REQUESTED_BYTES = re.compile(r"tried to allocate (\d+) bytes", re.IGNORECASE)
_REQUESTED_UNITS = re.compile(r"tried to allocate ([\d.]+) ([KMGT]i?B)", re.IGNORECASE)
_UNIT_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVerdict:
    """That an error is about memory: which, how sure, and what was asked for."""

    where: Where
    is_certain: bool
    text: str
    requested_bytes: int | None


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
    text = " ".join(str(argument) for argument in error.args) or str(error)
    requested_bytes = _requested(text)
    where: Where

    def found(where: Where, *, is_certain: bool = True) -> MemoryVerdict:
        return MemoryVerdict(
            where=where, is_certain=is_certain, text=text, requested_bytes=requested_bytes
        )

    types = type(error).__mro__
    if any(t.__name__ == "HostBudgetExceeded" for t in types):
        return found("host")
    if any(t.__name__ == "OutOfMemoryError" and t.__module__.startswith("torch") for t in types):
        return found("device")
    if isinstance(error, MemoryError):
        return found("host")
    if isinstance(error, OSError):
        return found("host") if error.errno == errno.ENOMEM else None
    # Only these types come from allocators; the same words in a KeyError are somebody's data.
    if not isinstance(error, RuntimeError):
        return None
    for patterns, place in ((_DEVICE_TEXTS, "device"), (_HOST_TEXTS, "host")):
        where = "device" if place == "device" else "host"
        if any(re.search(p, text, re.DOTALL) for p in patterns):
            return found(where)
    if any(re.search(p, text) for p in _MAYBE_DEVICE_TEXTS):
        return found("device", is_certain=False)
    return None


def _requested(text: str) -> int | None:
    if match := _REQUESTED_BYTES.search(text):
        return int(match[1])
    if match := _REQUESTED_UNITS.search(text):
        return int(float(match[1]) * _UNIT_BYTES[match[2][0].upper()])
    return None


def outcome_of(error: BaseException, *, limit_bytes: int | None = None) -> OutOfMemory | Failed:
    """Turns an exception of a trial into its outcome."""
    verdict = memory_verdict(error)
    if verdict is not None:
        return OutOfMemory(
            where=verdict.where,
            cause=_first_sentence(verdict.text) or type(error).__name__,
            needed_at_least_bytes=next(
                (link.needed_bytes for link in chain(error) if hasattr(link, "needed_bytes")), None
            ),
            limit_bytes=limit_bytes,
            is_certain=verdict.is_certain,
        )
    return Failed(cause=describe(error), remedy=_remedy(error))


def describe(error: BaseException) -> str:
    """One line: what the innermost exception says, with its type."""
    text = _first_sentence(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _remedy(error: BaseException) -> str | None:
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "Free some disk space, or choose another --run-dir."
    if _SHARED_MEMORY_TEXT.search(text):
        return "Use fewer data loader workers, or a larger /dev/shm; a smaller batch will not help."
    if "no padding token is defined" in text:
        return "Name a padding token (--pad-token eos); until then the micro-batch size is 1."
    if "Expected more than 1 value per channel" in text:
        return (
            "Batch normalisation needs two rows: drop the last batch (dataloader_drop_last) "
            "or choose a size that leaves no single row over."
        )
    return None


def _first_sentence(text: str, limit: int = 300) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def outcome_of_exit(return_code: int, log_tail: str = "") -> OutOfMemory | Failed:
    """The outcome of a process that died without an answer.

    The log is quoted, never searched for the words "out of memory": a program may log anything.

    Args:
        return_code: As `subprocess` reports it: negative for a signal.
        log_tail: The last lines it printed.
    """
    killed_by = -return_code if return_code < 0 else return_code - 128 if return_code > 128 else 0
    if killed_by == signal.SIGKILL:
        return OutOfMemory(
            where="host",
            cause="The process was killed from outside, probably by the system for its memory.",
            is_certain=False,
        )
    last = next((line.strip() for line in reversed(log_tail.splitlines()) if line.strip()), "")
    if killed_by:
        name = signal.Signals(killed_by).name if killed_by in set(signal.Signals) else killed_by
        cause = f"The process died of {name}."
    else:
        cause = f"The process ended with exit code {return_code} without an answer."
    return Failed(cause=f"{cause} It last said: {_first_sentence(last)}" if last else cause)
