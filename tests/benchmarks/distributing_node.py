"""Measures every way of training one job over one link, in turn; started on each node of the link.

Node 0, or the only one, leaves what it found as JSON in the file that it is given.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from autotune.configuration import Configuration
from autotune.errors import AutotuneError
from autotune.goal import Goal
from autotune.journal import Journal
from autotune.outcome import Exchange
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.search.preparation import worker_pool
from autotune.search.session import Session
from autotune.trial.environment import trial_environment
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import MeasureSpeed, SpeedMeasured
from autotune.workload.spec import WorkloadSpec
from probes.known import known_machine
from probes.ranks.agents import host_meeting, serve
from probes.ranks.launch import without_launch
from probes.ranks.nodes import node_of_this_process

ONE = (
    Configuration(micro_batch_size=16, accumulation_steps=1),
    Configuration(micro_batch_size=8, accumulation_steps=2),
)
DDP = (
    Configuration(micro_batch_size=8, accumulation_steps=1, world_size=2),
    Configuration(micro_batch_size=4, accumulation_steps=2, world_size=2),
)
LOCAL = tuple(replace(DDP[0], local_sgd_steps=steps) for steps in (2, 4, 8, 16, 32))
TIME_LIMIT_S = 300.0
NUM_NODES = 2
STEPS = 8
"""Timed steps of a configuration in a round; whole rounds of local SGD are at least as many."""


def main(out: Path, num_rounds: int) -> int:
    """Leads, or lends its rank."""
    node = node_of_this_process()
    if node is not None:
        _keep_to_own_cores(node.rank)
    if node is not None and node.rank > 0:
        return serve(node)
    if node is None:
        found = measure(out.parent, num_rounds, num_nodes=1, meeting=None)
    else:
        with host_meeting(node) as meeting:
            meeting.gather()
            found = measure(out.parent, num_rounds, num_nodes=NUM_NODES, meeting=meeting.address)
            meeting.dismiss(0)
    out.write_text(json.dumps(found))
    return 0


def _keep_to_own_cores(node: int) -> None:
    """Nodes on one machine share no core, as nodes never do: else one's waiting slows the other."""
    cores = sorted(os.sched_getaffinity(0))
    own = cores[node::NUM_NODES]
    if own:
        os.sched_setaffinity(0, own)


def measure(
    directory: Path, num_rounds: int, *, num_nodes: int, meeting: str | None
) -> dict[str, object]:
    """Seconds a step of every configuration, by round, and what the exchange of each round was."""
    step_s: dict[str, list[float]] = {str(c): [] for c in (*ONE, *DDP, *LOCAL)}
    trial_s: dict[str, list[float]] = {"1": [], "2": []}
    exchanges: list[Exchange] = []
    with _pool(directory, num_nodes, meeting) as pool:
        for number in range(num_rounds):
            groups = [ONE, (*DDP, *LOCAL)]
            for configuration in [c for g in groups[:: 1 if number % 2 else -1] for c in g]:
                start_s = time.perf_counter()
                reply = _ask(pool, configuration, directory)
                if configuration.local_sgd_steps == 1:
                    trial_s[str(configuration.world_size)].append(time.perf_counter() - start_s)
                assert reply.speed is not None
                step_s[str(configuration)].append(reply.speed.step_s)
                if configuration == DDP[0] and reply.exchange is not None:
                    exchanges.append(reply.exchange)
    return {
        "step_s": step_s,
        "trial_s": trial_s,
        "exchanges": [asdict(exchange) for exchange in exchanges],
    }


@contextmanager
def _pool(directory: Path, num_nodes: int, meeting: str | None) -> Iterator[WorkerPool]:
    run = RunDirectory(directory / "distributing")
    run.create()
    request = Request(
        workload=WorkloadSpec(task="causal-lm", demo=True),
        goal=Goal(global_batch_size=16),
        processes=2,
        num_nodes=num_nodes,
        meeting=meeting,
    )
    machine = known_machine()
    for name in set(os.environ) - set(without_launch(os.environ)):
        del os.environ[name]
    environment = trial_environment(machine.host.num_threads)
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=3600.0)
        with worker_pool(session, request, machine, environment) as pool:
            yield pool


def _ask(pool: WorkerPool, configuration: Configuration, directory: Path) -> SpeedMeasured:
    # Starting ranks is no part of a trial; the number of threads is the same for both.
    pool.warm(configuration.world_size)
    reply = pool.ask(
        MeasureSpeed(
            configuration=configuration,
            min_steps=STEPS,
            max_steps=STEPS,
            max_seconds=TIME_LIMIT_S,
            with_phases=False,
            with_exchange=configuration == DDP[0],
        ),
        log=directory / "output.log",
        time_limit_s=TIME_LIMIT_S,
    )
    if not isinstance(reply, SpeedMeasured):
        raise AutotuneError(f"{configuration} could not be measured: {reply}")
    return reply


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
