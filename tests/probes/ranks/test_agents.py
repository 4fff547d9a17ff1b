"""Two nodes with their agents, as real processes on the loopback."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from probes.errors import NODES_FAILED, RANK_KILLED, ProbeError
from probes.ranks.agents import host_meeting, serve
from probes.ranks.launch import Ranks
from probes.ranks.nodes import Node, node_of_this_process
from tests.testing import groups, links

pytestmark = pytest.mark.long

LOST_AFTER_S = 3.0
PLAY = [sys.executable, "-m", "tests.probes.ranks.node_scenes"]


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody else was given; it is free again inside of the block."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    yield port


@dataclass
class Play:
    """A leading node and another one."""

    lead: subprocess.Popen[str]
    serve: subprocess.Popen[str]

    def said(self) -> list[object]:
        """The next line of the leading node."""
        assert self.lead.stdout is not None
        line: list[object] = json.loads(self.lead.stdout.readline())
        return line


@contextlib.contextmanager
def play(place: Path, *scenes: str) -> Iterator[Play]:
    """Both nodes at their scenes; whatever still runs at the end of the block is ended."""
    with free_port() as port:
        started = Play(
            links.start(
                [*PLAY, "lead", str(place), "0", str(LOST_AFTER_S), *scenes],
                links.node_environment(0, "127.0.0.1", port),
            ),
            links.start(
                [*PLAY, "serve", str(LOST_AFTER_S)], links.node_environment(1, "127.0.0.1", port)
            ),
        )
    try:
        yield started
    finally:
        for process in (started.lead, started.serve):
            process.kill()
            process.communicate()


linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends children with their parent"
)


@linux_only
def test_an_agent_outlives_a_killed_rank_and_node_0_a_killed_agent(tmp_path: Path) -> None:
    with play(tmp_path, "wait", "wait") as nodes:
        assert nodes.said() == [2, 0]
        documents = [groups.said(tmp_path / "0", rank)["variables"] for rank in range(2)]
        assert [seen["GROUP_RANK"] for seen in documents] == ["0", "1"]
        assert [seen["LOCAL_RANK"] for seen in documents] == ["0", "0"]
        assert [seen["MINE"] for seen in documents] == ["yours too"] * 2
        # Towards node 0, which the host's own name need not lead to.
        assert [seen["GLOO_SOCKET_IFNAME"] for seen in documents] == ["lo", "lo"]
        ranks = groups.processes(tmp_path / "0")
        ranks[1].kill()
        assert nodes.said() == [RANK_KILLED, f"Node 1: Rank 1 was ended by SIGKILL{groups.WHY}."]
        assert groups.are_gone(ranks)
        ranks = groups.processes(tmp_path / "1")
        nodes.serve.kill()
        code, last_line = nodes.said()
        assert code == NODES_FAILED
        assert str(last_line).startswith("Node 1 was not heard of for ")
        assert groups.wait_for(lambda: groups.are_gone(ranks))
        assert nodes.lead.wait(groups.LIMIT_S) == 0


@linux_only
def test_an_agent_leaves_when_nothing_is_heard_of_node_0(tmp_path: Path) -> None:
    with play(tmp_path, "wait") as nodes:
        assert nodes.said() == [2, 0]
        ranks = groups.processes(tmp_path / "0")
        nodes.lead.send_signal(signal.SIGSTOP)
        _, err = nodes.serve.communicate(timeout=groups.LIMIT_S)
        assert nodes.serve.returncode == 3
        assert "Node 0 is gone: it was not heard of for " in err.splitlines()[-1]
        assert groups.wait_for(lambda: groups.are_gone(ranks[1:]))
    assert groups.wait_for(lambda: groups.are_gone(ranks))


@linux_only
def test_an_agent_tells_in_words_and_without_frames_that_node_0_was_killed(tmp_path: Path) -> None:
    with play(tmp_path, "wait") as nodes:
        assert nodes.said() == [2, 0]
        ranks = groups.processes(tmp_path / "0")
        nodes.lead.kill()
        _, err = nodes.serve.communicate(timeout=groups.LIMIT_S)
        assert nodes.serve.returncode == 3
        assert err.splitlines()[-1].split(":")[0].endswith("Node 0 is gone")
        assert "frame #" not in err
        assert groups.wait_for(lambda: groups.are_gone(ranks))


def node(port: int, rank: int = 0) -> Node:
    return Node(rank=rank, num_nodes=2, meeting=f"127.0.0.1:{port}/test", has_store=False)


def test_nobody_joins(tmp_path: Path) -> None:
    with free_port() as port, host_meeting(node(port)) as meeting:
        with pytest.raises(ProbeError, match=r"^Node 1 did not join within 1 s\. Start the same"):
            meeting.gather(time_limit_s=1)
        ranks = Ranks(num_processes=2, num_nodes=2, meeting=meeting.address, join_limit_s=2)
        wrapper = groups.start(tmp_path, "report", ranks=ranks)
        (found,) = links.await_all([wrapper], time_limit_s=groups.LIMIT_S)
        assert found.returncode == NODES_FAILED
        assert found.stderr.splitlines()[-1].startswith("Node 1 did not join within 2 s.")
    with pytest.raises(ProbeError, match=rf"Node 0 does not answer at 127.0.0.1:{port} within"):
        serve(node(port, rank=1), join_limit_s=1)


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ProbeError, match=rf"cannot meet at 127.0.0.1:{port}") as raised,
            host_meeting(node(port)),
        ):
            pass
    assert "MASTER_PORT" in raised.value.remedy


def test_without_a_farewell_the_others_leave_with_an_error() -> None:
    with free_port() as port:
        other = links.start([*PLAY, "serve", "30"], links.node_environment(1, "127.0.0.1", port))
        first = node_of_this_process(links.node_environment(0, "127.0.0.1", port))
        assert first is not None

        def fail() -> None:
            with host_meeting(first) as meeting:
                meeting.gather()
                raise KeyError("a fault of node 0")

        with pytest.raises(KeyError):
            fail()
        (found,) = links.await_all([other], time_limit_s=groups.LIMIT_S)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "Node 0: 'a fault of node 0'"
