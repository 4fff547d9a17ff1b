"""What counts as out of memory, and what only looks like it."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autotune.errors import WorkloadError
from autotune.outcome import Failed, OutOfMemory
from autotune.trial.failure import chain, describe, memory_verdict, outcome_of, outcome_of_exit
from autotune.trial.readings.live_bytes import HostBudgetExceeded
from probes.kills import MemorySign

MORE_SHARED_MEMORY = (
    "Use fewer data loader workers, or a larger /dev/shm; a smaller batch will not help."
)
FULL_DISK = "[Errno 28] No space left on device"


def at_device(text: str, *, is_certain: bool = True) -> OutOfMemory:
    return OutOfMemory(where="device", cause=text, is_certain=is_certain)


@pytest.mark.parametrize(
    ("error", "is_certain"),
    [
        (torch.OutOfMemoryError("whatever it says"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("XPU out of memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB)"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("level_zero: UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `x`"), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_device_memory(error: Exception, is_certain: bool) -> None:
    assert outcome_of(error) == at_device(str(error), is_certain=is_certain)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("CUDA out of memory"),
        ValueError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("the words out of memory alone"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        TypeError("std::bad_alloc"),
    ],
    ids=str,
)
def test_look_alikes_are_faults_of_the_code(error: Exception) -> None:
    assert outcome_of(error) == Failed(cause=f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(
    "text",
    [
        "DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
        "unable to write to file </torch_4711_1>: No space left on device (28)",
    ],
)
def test_full_shared_memory_wants_no_smaller_batch(text: str) -> None:
    assert outcome_of(RuntimeError(text)) == Failed(
        cause=f"RuntimeError: {text}", remedy=MORE_SHARED_MEMORY
    )


@pytest.mark.parametrize("args", [(errno.ENOSPC, "No space left on device"), (FULL_DISK,)])
def test_a_full_disk_wants_space_however_it_was_raised(args: tuple[object, ...]) -> None:
    assert outcome_of(OSError(*args)) == Failed(
        cause=f"OSError: {FULL_DISK}",
        remedy="Free some disk space, or choose another --run-dir.",
    )


def with_cause(inner: Exception) -> Exception:
    outer = ValueError("the step failed")
    outer.__cause__ = inner
    return outer


def with_context(inner: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception:  # noqa: BLE001
            raise ValueError("the step failed")  # noqa: B904
    except ValueError as error:
        return error


def grouped(inner: Exception) -> Exception:
    return ExceptionGroup("two things", [ValueError("a"), ExceptionGroup("one", [inner])])


def deep(inner: Exception) -> Exception:
    return with_cause(with_context(grouped(inner)))


@pytest.mark.parametrize("wrap", [with_cause, with_context, grouped, deep])
def test_memory_is_found_through_chains(wrap: Callable[[Exception], Exception]) -> None:
    verdict = memory_verdict(wrap(MemoryError("Unable to allocate 1 GiB")))
    assert verdict is not None
    assert (verdict.where, verdict.is_certain) == ("host", True)
    assert verdict.text == "Unable to allocate 1 GiB"


def test_a_context_that_was_left_behind_on_purpose_does_not_count() -> None:
    def raise_it() -> None:
        try:
            raise MemoryError("a cache did not fit")
        except MemoryError:
            raise ValueError("labels must lie in [0, 4)") from None

    with pytest.raises(ValueError, match="labels") as caught:
        raise_it()
    assert outcome_of(caught.value) == Failed(cause="ValueError: labels must lie in [0, 4)")


def test_chains_that_bite_their_tail_end() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert list(chain(first)) == [first, second]
    assert describe(first) == "ValueError: 1 (from ValueError: 2)"


def test_a_failure_says_what_it_was_raised_from() -> None:
    error = with_cause(KeyError("labels"))
    assert outcome_of(error) == Failed(
        cause="ValueError: the step failed (from KeyError: 'labels')"
    )
    assert describe(grouped(TypeError("b"))) == "ValueError: a"
    assert describe(RuntimeError()) == "RuntimeError"


def test_long_messages_are_cut_to_their_first_line() -> None:
    cause = describe(ValueError("\n" + "x" * 400 + "\nsecond"))
    assert cause == "ValueError: " + "x" * 299 + "…"


def test_our_own_errors_keep_their_remedy() -> None:
    assert outcome_of(WorkloadError("No rows.", "Give some.")) == Failed(
        cause="No rows.", remedy="Give some."
    )


def test_numpy_says_how_much_it_wanted() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty((2**40, 2**20), dtype=np.uint8)
    outcome = outcome_of(caught.value)
    assert isinstance(outcome, OutOfMemory)
    assert outcome.where == "host"
    assert outcome.cause.startswith("Unable to allocate 1.00 EiB for an array with shape")


def test_a_refused_fork_is_memory_and_other_system_errors_are_not() -> None:
    assert isinstance(outcome_of(OSError(errno.ENOMEM, "Cannot allocate memory")), OutOfMemory)
    assert isinstance(outcome_of(OSError("[Errno 12] Cannot allocate memory")), OutOfMemory)
    other = outcome_of(OSError(errno.EACCES, "Cannot allocate memory for you"))
    assert isinstance(other, Failed)


def test_the_budget_is_host_memory_with_what_is_needed() -> None:
    error = HostBudgetExceeded("above the limit", 4096)
    assert outcome_of(with_cause(error), limit_bytes=1024) == OutOfMemory(
        where="host", cause="above the limit", needed_at_least_bytes=4096, limit_bytes=1024
    )


class _Raising(Dataset[int]):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (ValueError("a bad row\nwith details"), Failed(cause="ValueError: a bad row")),
        (MemoryError("no more"), OutOfMemory(where="host", cause="MemoryError: no more")),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"),
            OutOfMemory(
                where="host",
                cause="RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes",
            ),
        ),
    ],
)
def test_errors_of_loader_processes_keep_their_own_words(
    error: Exception, meant: Failed | OutOfMemory
) -> None:
    loader = DataLoader(_Raising(error), num_workers=1)
    with pytest.raises(type(error)) as caught:
        next(iter(loader))
    assert str(caught.value).startswith("Caught ")
    assert outcome_of(caught.value) == meant


@pytest.mark.parametrize(
    "text",
    ["DataLoader worker (pid 4711) is killed by signal: Killed. ", "could not create a primitive"],
)
def test_a_killed_loader_and_a_refused_kernel_only_suggest_memory(text: str) -> None:
    outcome = outcome_of(RuntimeError(text))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.where, outcome.is_certain) == ("host", False)


@pytest.mark.parametrize("return_code", [-9, 137])
def test_a_killed_process_only_suggests_memory(return_code: int) -> None:
    outcome = outcome_of_exit(return_code, "step 3")
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.where, outcome.is_certain) == ("host", False)


@pytest.mark.parametrize("sign", ["kernel", "pressure"])
def test_a_killed_process_suggests_memory_where_the_system_was_short_of_it(
    sign: MemorySign,
) -> None:
    outcome = outcome_of_exit(-9, "step 3", sign=sign)
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.where, outcome.is_certain) == ("host", False)


def test_a_process_killed_by_somebody_has_failed_and_is_no_memory() -> None:
    outcome = outcome_of_exit(-9, "step 3", sign="none")
    assert outcome == Failed(
        cause="The process was killed from outside.",
        remedy="Somebody ended it by SIGKILL, and the system says that it was not for memory: it "
        "may be tried once more.",
        is_killed=True,
    )
    loader = RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. ")
    assert isinstance(outcome_of(loader, sign="kernel"), OutOfMemory)
    killed = outcome_of(loader, sign="none")
    assert isinstance(killed, Failed)
    assert killed.is_killed
    # Other signs of memory stay what they are, whatever the kernel counted.
    assert isinstance(outcome_of(MemoryError(), sign="none"), OutOfMemory)
    assert outcome_of_exit(-11, "loading", sign="kernel") == Failed(
        cause="The process died of SIGSEGV. It last said: loading"
    )


@pytest.mark.parametrize("return_code", [-11, 139])
def test_a_crash_is_no_memory_whatever_the_log_says(return_code: int) -> None:
    outcome = outcome_of_exit(return_code, "CUDA out of memory\nloading\n\n")
    assert outcome == Failed(cause="The process died of SIGSEGV. It last said: loading")


def test_a_layer_used_twice_under_reentrant_checkpointing_is_no_memory_and_has_a_remedy() -> None:
    outcome = outcome_of(
        RuntimeError(
            "Expected to mark a variable ready only once. This error is caused by one of the "
            "following reasons: 1) Use of a module parameter outside the `forward` function."
        )
    )
    assert isinstance(outcome, Failed)
    assert outcome.remedy is not None
    assert outcome.remedy.endswith("checkpoint with use_reentrant=False.")


def test_a_bus_error_of_the_process_itself_is_shared_memory() -> None:
    assert outcome_of_exit(-signal.SIGBUS) == Failed(
        cause="The process died of SIGBUS.", remedy=MORE_SHARED_MEMORY
    )


@pytest.mark.parametrize("return_code", [0, 1, 3, 128, 255])
def test_exit_codes_that_are_no_signals(return_code: int) -> None:
    assert outcome_of_exit(return_code) == Failed(
        cause=f"The process ended with exit code {return_code} without an answer."
    )


def test_an_abort_is_memory_only_where_the_allocator_said_so_last() -> None:
    words = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad"
    outcome = outcome_of_exit(-signal.SIGABRT, words)
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.where, outcome.is_certain) == ("host", False)
    assert isinstance(outcome_of_exit(1, words), Failed)
    assert isinstance(outcome_of_exit(-signal.SIGABRT, words + "\n1\n2\n3"), Failed)


def test_a_rank_that_is_gone_is_told_in_words() -> None:
    outcome = outcome_of(
        RuntimeError(
            "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Read error "
            "[10.0.0.2]:40312: Connection reset by peer. GLHF!"
        )
    )
    assert isinstance(outcome, Failed)
    assert outcome.cause == "Another rank is gone or does not answer (Connection reset by peer)."
    assert outcome.remedy is not None
    assert outcome.remedy.endswith("start again on every node.")
