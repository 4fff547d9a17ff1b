"""Two nodes with their agents: real processes, in two network namespaces where the machine has them."""

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

import psutil
import pytest

from probes.agents import host_meeting, serve
from probes.errors import ProbeError
from probes.launch import NODES_FAILED, RANK_KILLED, Ranks
from probes.nodes import Node, node_of_this_process
from tests.testing import groups, links

LOST_AFTER_S = 3.0
PLAY = [sys.executable, "-m", "tests.probes.node_scenes"]


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
def play(place: Path, *scenes: str, code: int = 0, namespaces: bool = False) -> Iterator[Play]:
    """Both nodes at their scenes; whatever still runs at the end of the block is ended."""
    lead = [*PLAY, "lead", str(place), str(code), str(LOST_AFTER_S), *scenes]
    other = [*PLAY, "serve", str(LOST_AFTER_S)]
    with contextlib.ExitStack() as stack:
        if namespaces:
            nodes = stack.enter_context(links.shaped(1000))
            started = Play(
                nodes.start(0, lead, nodes.environment(0)),
                nodes.start(1, other, nodes.environment(1)),
            )
        else:
            port = stack.enter_context(free_port())
            started = Play(
                links.start(lead, links.node_environment(0, "127.0.0.1", port)),
                links.start(other, links.node_environment(1, "127.0.0.1", port)),
            )
        try:
            yield started
        finally:
            for process in (started.lead, started.serve):
                process.kill()
                process.communicate()


def test_groups_run_on_both_nodes_and_agents_outlive_a_killed_rank(tmp_path: Path) -> None:
    has_namespaces = links.why_not() is None
    with play(tmp_path, "sum", "wait", "sum", code=7, namespaces=has_namespaces) as nodes:
        assert nodes.said() == [2, 0]
        assert nodes.said() == [0, ""]
        documents = [groups.said(tmp_path / "0", rank)["variables"] for rank in range(2)]
        assert [seen["GROUP_RANK"] for seen in documents] == ["0", "1"]
        assert [seen["LOCAL_RANK"] for seen in documents] == ["0", "0"]
        assert [seen["MINE"] for seen in documents] == ["yours too"] * 2
        wires = ["wire0", "wire1"] if has_namespaces else ["lo", "lo"]
        assert [seen["GLOO_SOCKET_IFNAME"] for seen in documents] == wires
        ranks = groups.processes(tmp_path / "1")
        ranks[1].kill()
        assert nodes.said() == [RANK_KILLED, "Node 1: Rank 1 was ended by SIGKILL."]
        assert groups.are_gone(ranks)
        assert nodes.said() == [0, ""]
        assert [(tmp_path / "2" / f"sum{rank}").read_text() for rank in range(2)] == ["2", "2"]
        assert nodes.serve.wait(groups.LIMIT_S) == 7
        assert nodes.lead.wait(groups.LIMIT_S) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_killed_agent_is_told_and_takes_its_ranks_along(tmp_path: Path) -> None:
    with play(tmp_path, "wait") as nodes:
        assert nodes.said() == [2, 0]
        ranks = groups.processes(tmp_path / "0")
        nodes.serve.kill()
        code, last_line = nodes.said()
        assert code == NODES_FAILED
        assert str(last_line).startswith("Node 1 was not heard of for ")
        assert groups.wait_for(lambda: groups.are_gone(ranks))
        assert nodes.lead.wait(groups.LIMIT_S) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_agents_leave_when_node_0_is_gone(tmp_path: Path, number: signal.Signals) -> None:
    with play(tmp_path, "wait") as nodes:
        assert nodes.said() == [2, 0]
        ranks = groups.processes(tmp_path / "0")
        nodes.lead.send_signal(number)
        _, err = nodes.serve.communicate(timeout=groups.LIMIT_S)
        assert nodes.serve.returncode == 3
        assert "Node 0 is gone: it" in err.splitlines()[-1]
        assert groups.wait_for(lambda: groups.are_gone(ranks[1:]))
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
        with pytest.raises(KeyError), host_meeting(first) as meeting:
            meeting.gather()
            raise KeyError("a fault of node 0")
        (found,) = links.await_all([other], time_limit_s=groups.LIMIT_S)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "Node 0: 'a fault of node 0'"
