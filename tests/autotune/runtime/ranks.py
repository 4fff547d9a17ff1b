"""Starts a module of this folder on real ranks, and what such a module needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

Facts: TypeAlias = dict[str, Any]
ROOT = Path(__file__).parents[3]


def run(
    script: Sequence[str], directory: Path, *, num_ranks: int = 2, time_limit_s: float = 280
) -> subprocess.CompletedProcess[str]:
    """Runs a script, or `-m` and a module, with its arguments on so many gloo ranks."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(num_ranks), *script),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=time_limit_s,
    )


def facts_of(module: str, directory: Path, *, num_ranks: int = 2) -> list[Facts]:
    """What the job in a module of this folder found, by rank."""
    ended = run(["-m", f"{__package__}.{module}"], directory, num_ranks=num_ranks)
    assert ended.returncode == 0, ended.stderr
    return [
        json.loads((directory / f"rank{rank}.json").read_text(encoding="utf-8"))
        for rank in range(num_ranks)
    ]


def write_facts(facts: Facts) -> None:
    """Leaves what this rank found where `facts_of` looks for it."""
    Path(f"rank{os.environ['RANK']}.json").write_text(json.dumps(facts), encoding="utf-8")


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All elements in one row, of their own."""
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])


def spread(tensors: Sequence[torch.Tensor]) -> float:
    """Largest difference of any element between the ranks."""
    mine = flat(tensors)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return max(float((other - every[0]).abs().max()) for other in every)


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Largest difference of any element."""
    return float((first - second).detach().abs().max())


@contextmanager
def counted() -> Iterator[list[int]]:
    """The elements of each all-reduce that Python starts."""
    sizes: list[int] = []
    original = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.numel())
        return original(tensor, *args, **kwargs)

    dist.all_reduce = all_reduce
    try:
        yield sizes
    finally:
        dist.all_reduce = original
