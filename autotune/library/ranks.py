"""One rank asks the engine, and every rank of the job gets its answer.

The ranks' own process group carries one short message before the trials begin. While they run, the
others wait at a store of ours, so that no collective of the job is left hanging until it times out.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from autotune.errors import ERRORS_BY_NAME, AutotuneError, UsageError
from autotune.events import Document

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOK_INTERVAL_S = 0.2
"""Time between two looks at the store."""
CONNECT_S = 60.0
FAREWELL_S = 30.0
"""How long the first rank keeps the store open for the others after its answer."""


def num_ranks() -> int:
    """How many ranks this job has, by its process group.

    Raises:
        UsageError: It was started with several ranks that are not connected yet.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    started = os.environ.get("WORLD_SIZE", "1")
    if started.isdigit() and int(started) > 1:
        raise UsageError(
            f"This process is one of {started} ranks that are not connected yet.",
            "Make the TrainingArguments, or the Trainer, before tune(): that connects them.",
        )
    return 1


def spans_machines(num_ranks: int) -> bool:
    """Whether some of the job's ranks run on other machines, where nothing can be started."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return local.isdigit() and int(local) < num_ranks


def on_first_rank(ask: Callable[[], Document], *, time_limit_s: float) -> Document:
    """Runs `ask` on rank 0 and returns its answer on every rank.

    Raises:
        AutotuneError: What `ask` raised, on every rank; or rank 0 is gone, or took too long.
    """
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    rank, num = dist.get_rank(), dist.get_world_size()
    store: TCPStore | None = None
    place: list[object] = [None]
    if rank == 0:
        host = socket.gethostname()
        store = TCPStore("0.0.0.0", 0, num, is_master=True, wait_for_workers=False)
        place = [(host, store.port)]
    dist.broadcast_object_list(place, src=0)
    if store is not None:
        return _answer(store, ask, num - 1)
    assert isinstance(place[0], tuple)
    return _await(*place[0], time_limit_s=time_limit_s)


def _answer(store: TCPStore, ask: Callable[[], Document], num_others: int) -> Document:
    message: Document = {
        "error": "AutotuneError",
        "cause": "Tuning on rank 0 failed.",
        "remedy": "Its output says why.",
    }
    try:
        answer = ask()
        message = {"answer": answer}
    except KeyboardInterrupt:
        message = {"interrupted": True}
        raise
    except AutotuneError as error:
        message = {"error": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        raise
    finally:
        store.set("answer", json.dumps(message))
        deadline_s = time.monotonic() + FAREWELL_S
        while store.add("taken", 0) < num_others and time.monotonic() < deadline_s:
            time.sleep(0.05)
    return answer


def _await(host: str, port: int, *, time_limit_s: float) -> Document:
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # Rank 0's own name may not resolve on its own machine.
    host = "127.0.0.1" if host == socket.gethostname() else host
    deadline_s = time.monotonic() + time_limit_s
    try:
        store = TCPStore(host, port, timeout=timedelta(seconds=CONNECT_S))
        while not store.check(["answer"]):
            if time.monotonic() > deadline_s:
                store.add("taken", 1)
                raise AutotuneError(
                    f"Rank 0 gave no answer within {time_limit_s:.0f} s.",
                    "Look at its output; a smaller Budget ends sooner.",
                )
            time.sleep(LOOK_INTERVAL_S)
        message = json.loads(store.get("answer"))
        store.add("taken", 1)
    except (dist.DistError, RuntimeError) as error:
        raise AutotuneError(
            f"Rank 0, which was tuning for all ranks, is gone ({type(error).__name__}).",
            "Look at its output, and start the job again.",
        ) from error
    if "answer" in message:
        found: Document = message["answer"]
        return found
    if message.get("interrupted"):
        raise KeyboardInterrupt
    kind = ERRORS_BY_NAME.get(str(message["error"]), AutotuneError)
    raise kind(str(message["cause"]), message["remedy"])
