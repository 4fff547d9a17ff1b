"""A run on two machines: two network namespaces with a slow link, and what is lost on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.folding import fold
from autotune.journal import read
from autotune.outcome import Failed, Measured, OutOfMemory
from autotune.search.link import link_in
from autotune.view import RunView
from probes.kills import read_memory_kills
from tests.autotune.trial.processes import wait_for
from tests.testing import jobs, links

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(links.why_not() is not None, reason=str(links.why_not())),
]
LIMIT_S = 300.0


@pytest.fixture
def nodes() -> Iterator[links.TwoNodes]:
    with links.shaped(50) as nodes:
        yield nodes


def command(place: Path) -> list[str]:
    spec = jobs.classifier(place)
    assert spec.model_config is not None
    return [
        *(sys.executable, "-m", "autotune", "tune", "--display", "none", "--name", "two"),
        *("--model-config", spec.model_config, "--dataset", str(spec.dataset)),
        *("--task", spec.task, "--text-column", "text", "--label-column", "label"),
        *("--max-length", "16", "--global-batch-size", "8", "--processes", "2"),
        *("--run-dir", str(place / "runs"), "--budget", "15m"),
    ]


def until(
    journal: Path, agents: list[subprocess.Popen[str]], holds: Callable[[RunView], bool]
) -> RunView:
    """The run as soon as something holds of it."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if journal.exists():
            view = fold(read(journal))
            if holds(view):
                return view
        for agent in agents:
            assert agent.poll() is None, agent.communicate()
        time.sleep(0.2)
    raise AssertionError(f"not within {LIMIT_S:.0f} s")


def num_finished(view: RunView) -> int:
    return sum(t.outcome is not None and t.configuration.world_size == 2 for t in view.trials)


def is_measuring(view: RunView) -> bool:
    """Whether a trial after the first has got as far as its measurement."""
    return (
        num_finished(view) == 1
        and view.running is not None
        and view.running.configuration.world_size == 2
    )


def is_rank_one(process: psutil.Process) -> bool:
    try:
        return process.environ().get("RANK") == "1" and process.parent() is not None
    except psutil.Error:
        # It has ended meanwhile.
        return False


def test_a_rank_and_then_a_machine_is_lost(tmp_path: Path, nodes: links.TwoNodes) -> None:
    words = command(tmp_path)
    agents = [
        nodes.start(node, words, {**nodes.environment(node), "OMP_NUM_THREADS": "1"})
        for node in (0, 1)
    ]
    journal = tmp_path / "runs" / "two" / "journal.jsonl"
    started: list[psutil.Process] = []
    try:
        view = until(journal, agents, is_measuring)
        first = view.trials[0]
        assert isinstance(first.outcome, Measured), first.outcome
        assert first.outcome.exchange is not None
        assert first.configuration.world_size == 2
        # What lies between the machines was timed before, on the same ranks.
        link = link_in(view)
        assert link is not None
        assert (link.num_ranks, link.num_nodes, link.backend) == (2, 2, "gloo")
        assert link.interface is not None
        assert link.interface.name == nodes.interfaces[0]

        # A rank of the other machine is killed: its trial has an outcome, its agent lives on.
        ranks = [
            process
            for process in psutil.Process(agents[1].pid).children(recursive=True)
            if is_rank_one(process)
        ]
        ranks[-1].kill()
        view = until(journal, agents, lambda view: num_finished(view) >= 2)
        lost = view.trials[1].outcome
        if read_memory_kills() is None:
            assert isinstance(lost, OutOfMemory), lost
            assert not lost.is_certain
        else:
            assert isinstance(lost, Failed), lost
            assert lost.is_killed
        view = until(journal, agents, lambda view: num_finished(view) >= 3)
        assert isinstance(view.trials[2].outcome, Measured), view.trials[2].outcome

        # The other machine is gone: said, with what can be done, and nothing is left running.
        started = [
            process
            for agent in agents
            for process in psutil.Process(agent.pid).children(recursive=True)
        ]
        os.killpg(agents[1].pid, signal.SIGKILL)
        agents[1].communicate()
        _, said = agents[0].communicate(timeout=LIMIT_S)
        assert agents[0].returncode == 3, said
        assert "A node of this run is gone. Node 1 was not heard of for " in said
        assert "--resume again on every node" in said
        assert "frame #" not in said
        # No trial was begun without that machine.
        assert all(trial.outcome is not None for trial in fold(read(journal)).trials)
        assert wait_for(lambda: not any(process.is_running() for process in started))
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.communicate()
