"""Runs scripts on several ranks of this machine, started by PyTorch's own launcher.

Every script is run unchanged and watched on each rank. Whoever calls this is a child of
`autotune.export.child.ask`, which has the time limit; launcher and ranks end with it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.export.bundle import Bundle
from autotune.export.document import read
from autotune.export.running.seen import Seen, from_json
from probes.errors import RANK_KILLED
from probes.ranks.launch import Ranks, rank_command

REQUEST = "request.json"
_RANK = "autotune.export.running.rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksHere:
    """How the scripts of a configuration can be tried on this machine."""

    num_ranks: int
    world_size: int
    """How many the configuration has."""
    lack: str | None = None
    """Why there are not more, in words that follow `since`; None where all of them can be."""
    num_steps: int = 1
    """Optimizer steps of the try. A parameter without a gradient is noticed by ranks that exchange
    gradients in the second step."""

    @property
    def steps(self) -> str:
        """The try in words: how many steps, on how many ranks, and why not on all."""
        text = f"{self.num_steps} optimizer step{'s' if self.num_steps > 1 else ''}"
        if self.world_size == 1:
            return text
        if self.lack is None:
            return f"{text} on {self.num_ranks} ranks"
        return f"{text} on {self.num_ranks} of {self.world_size} ranks, since {self.lack}"


def ranks_here(bundle: Bundle) -> RanksHere:
    """How the scripts of a bundle can be tried on this machine.

    Accelerators take one rank each. CPUs take any number, but for those of further nodes only where
    there is memory for them: the trials had it on every node for that node's own.
    """
    world_size = bundle.configuration.world_size
    num_steps = 2 if bundle.has_ranks and not bundle.uses_local_sgd else 1
    num_devices = count_devices(bundle.device_type)
    if world_size == 1:
        return RanksHere(num_ranks=1, world_size=1)
    if num_devices is not None and num_devices < world_size:
        noun = "device" if num_devices == 1 else "devices"
        return RanksHere(
            num_ranks=max(1, num_devices),
            world_size=world_size,
            lack=f"this machine has {num_devices} {bundle.device_type} {noun}",
            num_steps=num_steps,
        )
    if bundle.num_nodes > 1 and num_devices is None:
        import psutil

        need_bytes = read(bundle.document).recommendation.measured.memory.total_bytes * world_size
        if need_bytes > psutil.virtual_memory().available:
            return RanksHere(
                num_ranks=bundle.ranks_per_node,
                world_size=world_size,
                lack="this machine has no memory for more",
                num_steps=num_steps,
            )
    return RanksHere(num_ranks=world_size, world_size=world_size, num_steps=num_steps)


def count_devices(device_type: str) -> int | None:
    """Devices of a kind that can hold a rank each; None for CPUs, which can hold many."""
    if device_type == "cpu":
        return None
    import torch

    module = getattr(torch, device_type, None)
    count = getattr(module, "device_count", None)
    return int(count()) if count is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Where goes what `datasets` stores of a script that is only tried."""

    scratch: Path
    """A directory that is gone afterwards."""
    is_hub: bool
    """The data is downloaded, and stays where all downloads are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRun:
    """A script to run on all ranks."""

    script: Path
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedResult:
    """What became of a script."""

    accounts: tuple[Seen, ...] = ()
    """Of each rank, in their order; empty where one failed."""
    failure: str | None = None
    """What went wrong first, and on which rank."""


def run(
    runs: Sequence[RankedRun],
    *,
    num_ranks: int,
    scratch: Path,
    watch_recomputation: bool = False,
    caches: Caches | None = None,
    hook: str | None = None,
) -> tuple[RankedResult, ...]:
    """Runs scripts one after the other, all in one start of the ranks.

    Args:
        runs: The scripts; after one that fails none is run.
        num_ranks: How many ranks to start.
        scratch: A directory for what the ranks leave behind.
        watch_recomputation: Also watch which modules run during the backward passes.
        caches: Where `datasets` is to store things; None leaves it where it always does.
        hook: `module:function` of a context manager that is entered on every rank.

    Returns:
        What became of each script, in their order.
    """
    with tempfile.TemporaryDirectory(dir=scratch, prefix="ranks-") as place:
        request = {
            "runs": [{"script": str(r.script), "flags": list(r.flags)} for r in runs],
            "watch_recomputation": watch_recomputation,
            "caches": {"scratch": str(caches.scratch), "is_hub": caches.is_hub} if caches else None,
            "hook": hook,
        }
        (Path(place) / REQUEST).write_text(json.dumps(request), encoding="utf-8")
        code = _start(num_ranks, place)
        results: list[RankedResult] = []
        for number in range(len(runs)):
            results.append(_result(Path(place), number, num_ranks, code))
            if results[-1].failure is not None:
                missing = RankedResult(failure="the script before it failed")
                return (*results, *[missing] * (len(runs) - len(results)))
        return tuple(results)


def _start(num_ranks: int, place: str) -> int:
    """Starts the ranks and waits for them; returns the launcher's exit code."""
    command = rank_command(_RANK, [place], Ranks(num_processes=num_ranks))
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def _result(place: Path, number: int, num_ranks: int, code: int) -> RankedResult:
    failures = [json.loads(path.read_text()) for path in place.glob(f"failure-{number}-*.json")]
    if failures:
        # The others fail because their partner is gone.
        first = min(failures, key=lambda failure: float(failure["at_unix_s"]))
        return RankedResult(failure=f"on rank {first['rank']}: {first['failure']}")
    paths = [place / account_name(number, rank) for rank in range(num_ranks)]
    if not all(path.is_file() for path in paths):
        how = "was killed" if code == RANK_KILLED else "ended without a word"
        return RankedResult(failure=f"a rank {how}")
    return RankedResult(accounts=tuple(from_json(path.read_text()) for path in paths))


def account_name(number: int, rank: int) -> str:
    """The file in which a rank tells what it did in the n-th script."""
    return f"account-{number}-{rank}.json"


def failure_name(number: int, rank: int) -> str:
    """The file in which a rank tells why the n-th script failed."""
    return f"failure-{number}-{rank}.json"
