"""Real groups of ranks: what they see, how they end, that nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from probes.errors import RANK_FAILED, RANK_KILLED
from probes.ranks.launch import (
    GRACE_S,
    Ranks,
    rank_command,
    root_failure,
    threads_of_rank,
    without_launch,
)
from tests.testing import groups, links

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends children with their parent"
)


def ended(process: subprocess.Popen[str]) -> links.Ended:
    (found,) = links.await_all([process], time_limit_s=groups.LIMIT_S)
    return found


def test_ranks_see_what_torchrun_sets_and_nothing_of_the_job_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    monkeypatch.setenv("SLURM_PROCID", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ranks = Ranks(num_processes=2, variables=(("OMP_NUM_THREADS", "3"), ("MINE", "a b")))
    arguments = ["${local_rank}", "cost $$5", "--", "-x", '{"a": 1}']
    found = ended(groups.start(tmp_path, "together", *arguments, ranks=ranks))
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert sorted(found.stdout.splitlines()) == ["rank 0 says so", "rank 1 says so"]
    documents = [groups.said(tmp_path, rank) for rank in range(2)]
    for rank, document in enumerate(documents):
        assert document["arguments"] == [str(tmp_path), "together", *arguments]
        seen = document["variables"]
        assert seen["RANK"] == seen["LOCAL_RANK"] == str(rank)
        assert seen["WORLD_SIZE"] == seen["LOCAL_WORLD_SIZE"] == "2"
        assert seen["MASTER_ADDR"] == "127.0.0.1"
        assert seen["OMP_NUM_THREADS"] == "3"
        assert seen["MINE"] == "a b"
        assert not [name for name in seen if name.startswith("SLURM_")]
        # A process group of both, and a store beside it.
        said = json.loads((tmp_path / f"said{rank}.json").read_text())
        assert said == ["2 from 0", "2 from 1"]
    assert len({document["variables"]["MASTER_PORT"] for document in documents}) == 1


def test_a_killed_rank_is_named_and_ends_even_those_that_heed_no_signal(tmp_path: Path) -> None:
    wrapper = groups.start(tmp_path, "deaf")
    ranks = groups.processes(tmp_path)
    start_s = time.monotonic()
    ranks[1].kill()
    found = ended(wrapper)
    assert time.monotonic() - start_s < 4 * GRACE_S
    assert found.returncode == RANK_KILLED
    assert found.stderr.splitlines()[-1] == f"Rank 1 was ended by SIGKILL{groups.WHY}."
    assert groups.are_gone(ranks)


def test_the_code_of_a_failed_rank_is_told(tmp_path: Path) -> None:
    found = ended(groups.start(tmp_path, "fail"))
    assert found.returncode == RANK_FAILED
    assert found.stderr.splitlines()[-1] == "Rank 1 ended with code 3."
    assert not psutil.pid_exists(groups.said(tmp_path, 0)["pid"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_whole_group(tmp_path: Path, number: signal.Signals) -> None:
    wrapper = groups.start(tmp_path, "wait")
    ranks = groups.processes(tmp_path)
    wrapper.send_signal(number)
    assert ended(wrapper).returncode == 128 + number
    assert groups.are_gone(ranks)


def _kill_wrapper(parent: psutil.Process) -> None:
    (wrapper,) = parent.children()
    wrapper.kill()


@linux_only
@pytest.mark.parametrize("act", [psutil.Process.kill, _kill_wrapper], ids=["parent", "wrapper"])
def test_nothing_outlives_the_wrapper_or_its_parent(
    tmp_path: Path, act: Callable[[psutil.Process], None]
) -> None:
    code = (
        "import subprocess, sys\n"
        "from probes.ranks.launch import Ranks, rank_command\n"
        f"command = rank_command({groups.SCENES!r}, sys.argv[1:], Ranks(num_processes=2))\n"
        "subprocess.run(command, check=False)"
    )
    parent = links.start([sys.executable, "-c", code, str(tmp_path), "deaf"])
    tree = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children()]
    ranks = groups.processes(tmp_path)
    act(tree[0])
    assert groups.wait_for(lambda: groups.are_gone(ranks))
    ended(parent)


def test_impossible_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="no such group"):
        Ranks(num_processes=0)
    with pytest.raises(ValueError, match="do not spread"):
        Ranks(num_processes=3, num_nodes=2, meeting="here:1/x")
    with pytest.raises(ValueError, match="need a meeting"):
        Ranks(num_processes=2, num_nodes=2)


def test_threads_of_one_process_are_shared() -> None:
    assert [threads_of_rank(8, ranks) for ranks in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


def test_the_variables_of_a_launcher_are_left_out() -> None:
    environment = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "x",
        "MASTER_ADDR": "here",
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "5",
    }
    assert without_launch(environment) == {"OMP_NUM_THREADS": "4"}


def test_the_wrapper_leaves_when_its_parent_is_gone_already() -> None:
    command = rank_command(groups.SCENES, ["nowhere", "report"], Ranks(num_processes=1))
    command[4] = command[4].replace(str(os.getpid()), "1", 1)
    found = ended(links.start(command))
    assert (found.returncode, found.stdout) == (1 if sys.platform == "linux" else 0, "")


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({0: (signal.SIGABRT, 0), 1: (signal.SIGKILL, 0)}, (1, -signal.SIGKILL)),
        ({0: (signal.SIGTERM, 0), 1: (signal.SIGABRT, 1)}, (1, -signal.SIGABRT)),
        ({0: (signal.SIGABRT, 0), 1: (signal.SIGKILL, 30)}, (0, -signal.SIGABRT)),
    ],
)
def test_a_rank_that_only_lost_its_partner_is_not_the_one_that_failed(
    failures: dict[int, tuple[signal.Signals, int]], expected: tuple[int, int], tmp_path: Path
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    told = {}
    for rank, (number, at_s) in failures.items():
        told[rank] = ProcessFailure(rank, 1, -number, str(tmp_path / "none"))
        told[rank].timestamp = at_s
    assert root_failure(ChildFailedError("ranks", told)) == expected
