"""Slow links on one machine: two network namespaces as two nodes, and a shaped link between them.

A rate comes from the kernel (`veth` and a token bucket), a latency from a relay of ours between two
TUN devices, since many kernels lack the queue that delays. Both need root; `why_not` says what else
a machine may lack.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testing.relay import DEVICE

ROOT = Path(__file__).parents[2]
_ADDRESSES = ("10.88.0.1", "10.88.0.2")
_BURST_BYTES = 64 * 1024
_BURST_S = 0.0025
"""What the bucket holds at least, in bytes and in seconds of the rate: so much is sent at once
after a pause, and makes up for as long a pause of whoever sends."""


PING_PONG = """
import json, socket, sys, time
is_server, address = sys.argv[1] == "0", sys.argv[2]
if is_server:
    with socket.create_server((address, 29999)) as server:
        peer, _ = server.accept()
else:
    for _ in range(200):
        try:
            peer = socket.create_connection((address, 29999))
            break
        except OSError:
            time.sleep(0.05)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times_s = []
for _ in range(50):
    if is_server:
        peer.sendall(peer.recv(1))
    else:
        start_s = time.perf_counter()
        peer.sendall(b"x")
        peer.recv(1)
        times_s.append(time.perf_counter() - start_s)
if not is_server:
    print(json.dumps(times_s))
"""
"""Program of a node: `NUMBER ADDRESS`. The second prints the seconds of 50 round trips."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a command on a node."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """Two namespaces with a link between them."""

    namespaces: tuple[str, str]
    addresses: tuple[str, str] = _ADDRESSES
    interfaces: tuple[str, str] = (DEVICE.format(node=0), DEVICE.format(node=1))

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """The command that runs another one on a node, in the place of itself."""
        return ["ip", "netns", "exec", self.namespaces[node], *command]

    def environment(self, node: int, port: int = 29400) -> dict[str, str]:
        """Variables that make a process a node's agent, as torchrun sets them."""
        return node_environment(node, self.addresses[0], port)

    def start(
        self, node: int, command: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a command on a node; its output is to be read or awaited by the caller."""
        return start(self.command(node, command), variables)

    def run(
        self,
        commands: Sequence[Sequence[str]],
        variables: Sequence[Mapping[str, str]] = ({}, {}),
        *,
        time_limit_s: float = 120.0,
    ) -> tuple[Ended, ...]:
        """Runs a command on each node at the same time, and waits for both."""
        started = [
            self.start(node, command, variables[node]) for node, command in enumerate(commands)
        ]
        return await_all(started, time_limit_s=time_limit_s)


def node_environment(node: int, address: str, port: int, num_nodes: int = 2) -> dict[str, str]:
    """Variables that make a process one of several agents, node 0 to open the store."""
    return {
        "RANK": str(node),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(num_nodes),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def start(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts a command in a session of its own, with this package on its path."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})},
        start_new_session=True,
    )


def await_all(
    processes: Sequence[subprocess.Popen[str]], *, time_limit_s: float
) -> tuple[Ended, ...]:
    """Waits for processes and their output; ends all where one takes too long."""
    deadline_s = time.monotonic() + time_limit_s
    ended = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(0.1, deadline_s - time.monotonic()))
            ended.append(Ended(process.returncode, out, err))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return tuple(ended)


@functools.cache
def why_not(*, with_latency: bool = False) -> str | None:
    """Why this machine has no such links; None where it does.

    Args:
        with_latency: The relay is needed too.
    """
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here"
    try:
        with shaped(100):
            pass
        if with_latency:
            os.close(os.open("/dev/net/tun", os.O_RDWR))
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        return f"{' '.join(error.cmd[:3])} fails here: {said[-1] if said else error.returncode}"
    except OSError as error:
        return f"there is no TUN device here: {error.strerror}"
    return None


@contextlib.contextmanager
def shaped(rate_mbit: float) -> Iterator[TwoNodes]:
    """Two nodes with a link of so many Mbit/s each way, headers counted, and next to no latency."""
    with _namespaces() as nodes:
        first, second = nodes.interfaces
        _ip(
            *("-n", nodes.namespaces[0], "link", "add", first, "type", "veth"),
            *("peer", "name", second, "netns", nodes.namespaces[1]),
        )
        _raise(nodes)
        for node in (0, 1):
            _shape(nodes, node, rate_mbit)
        yield nodes


@contextlib.contextmanager
def delayed(rate_mbit: float, round_trip_s: float, *, mtu: int = 9000) -> Iterator[TwoNodes]:
    """Two nodes with a link of so many Mbit/s each way and a latency."""
    with _namespaces() as nodes:
        relay = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.testing.relay", *nodes.namespaces),
                *(str(rate_mbit * 1e6), str(round_trip_s / 2), str(mtu)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with relay:
            try:
                assert relay.stdout is not None
                assert relay.stdout.readline() == "up\n"
                _raise(nodes, mtu=mtu)
                yield nodes
            finally:
                relay.kill()


@contextlib.contextmanager
def _namespaces() -> Iterator[TwoNodes]:
    word = uuid.uuid4().hex[:8]
    nodes = TwoNodes((f"autotune-{word}-0", f"autotune-{word}-1"))
    made = []
    try:
        for name in nodes.namespaces:
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        yield nodes
    finally:
        for name in made:
            _end_processes(name)
            # Devices go with the namespace.
            _ip("netns", "del", name)


def _shape(nodes: TwoNodes, node: int, rate_mbit: float) -> None:
    burst_bytes = max(_BURST_BYTES, round(rate_mbit * 1e6 / 8 * _BURST_S))
    _call(
        *nodes.command(node, ["tc", "qdisc", "add", "dev", nodes.interfaces[node]]),
        *("root", "tbf", "rate", f"{rate_mbit:g}mbit"),
        *("burst", str(burst_bytes), "latency", "50ms"),
    )


def _raise(nodes: TwoNodes, *, mtu: int | None = None) -> None:
    for name, address, interface in zip(
        nodes.namespaces, nodes.addresses, nodes.interfaces, strict=True
    ):
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", interface)
        if mtu is not None:
            _ip("-n", name, "link", "set", interface, "mtu", str(mtu))
        _ip("-n", name, "link", "set", interface, "up")


def _end_processes(namespace: str) -> None:
    for word in _ip("netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(word), signal.SIGKILL)


def _ip(*words: str) -> str:
    return _call("ip", *words)


def _call(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
