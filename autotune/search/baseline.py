"""The configuration that a run starts from: the user's own, or the default one."""

from __future__ import annotations

from dataclasses import replace

from autotune.configuration import Configuration, default_baseline, divisors
from autotune.errors import UsageError
from autotune.request import Request
from autotune.search.session import Session
from autotune.sharing import check_shared, starting_global_batch_size
from autotune.units import counted
from autotune.workload.facts import WorkloadFacts


def baseline_of(session: Session, request: Request, facts: WorkloadFacts) -> Configuration:
    """The user's present configuration, or the default one for the global batch size.

    Raises:
        UsageError: Micro-batch and global batch size do not go together, or there are fewer rows
            than ranks.
    """
    own = facts.baseline
    if own is not None:
        return _rebased(own, request.goal.global_batch_size or own.global_batch_size)
    micro = request.baseline_micro_batch_size
    wanted = starting_global_batch_size(request.goal, micro, request.processes)
    rows = facts.num_rows
    if rows is not None and rows < request.processes:
        raise UsageError(
            f"The data has {counted(rows, 'row')}, fewer than the {request.processes} processes.",
            f"Use --processes {max(1, rows)} or less, or more data.",
        )
    if rows is not None and wanted > rows:
        session.warn(
            f"The data has {rows} rows, fewer than the global batch size {wanted}: every "
            "optimizer step would train on all of them.",
            f"Use --global-batch-size {rows} or less, or more data.",
        )
        if micro is None or micro > rows:
            check_shared(wanted, None, request.processes)
            shares = divisors(wanted // request.processes)
            micro = max(d for d in shares if d * request.processes <= rows)
    check_shared(wanted, micro, request.processes)
    if micro is None:
        return default_baseline(wanted, request.processes)
    return Configuration(
        micro_batch_size=micro,
        accumulation_steps=wanted // micro // request.processes,
        world_size=request.processes,
    )


def _rebased(own: Configuration, global_batch_size: int) -> Configuration:
    """The job's own configuration, or the one nearest below it that makes the global batch.

    Raises:
        UsageError: The ranks cannot share the global batch evenly.
    """
    per_device, rest = divmod(global_batch_size, own.world_size)
    if rest:
        raise UsageError(
            f"The global batch size {global_batch_size} cannot be shared by {own.world_size} "
            "ranks.",
            f"Use a multiple of {own.world_size}.",
        )
    micro = max(d for d in divisors(per_device) if d <= own.micro_batch_size)
    return replace(own, micro_batch_size=micro, accumulation_steps=per_device // micro)
