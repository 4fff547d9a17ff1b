"""The variables that trials run under, and that an exported launch command repeats."""

from __future__ import annotations

import os
from collections.abc import Mapping

from probes.ranks.launch import threads_of_rank

THREADS = "OMP_NUM_THREADS"
RECORDED_VARIABLES = (
    THREADS,
    "MKL_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "GOMP_SPINCOUNT",
    "MALLOC_ARENA_MAX",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "LD_PRELOAD",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "CUDA_DEVICE_ORDER",
    "ACCELERATE_MIXED_PRECISION",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
)
"""Variables that change speed or memory: recorded, shown and exported where they are set."""


def trial_environment(num_threads: int, num_local_ranks: int = 1) -> dict[str, str]:
    """The variables of one rank that has a machine to itself.

    Args:
        num_threads: Threads that a machine computes with where the user has not chosen a number.
        num_local_ranks: Processes a machine that the user means to train with. A number of threads
            of the user's own is that of each of them.
    """
    recorded = {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ}
    chosen = recorded.get(THREADS, "")
    total = int(chosen) * num_local_ranks if chosen.isdigit() else num_threads
    return {**recorded, THREADS: str(max(1, total))}


def shared(environment: Mapping[str, str], num_local_ranks: int) -> dict[str, str]:
    """The variables of each of several ranks on a machine: together they have as many threads."""
    threads = environment.get(THREADS, "")
    if num_local_ranks == 1 or not threads.isdigit():
        return dict(environment)
    return {**environment, THREADS: str(threads_of_rank(int(threads), num_local_ranks))}
