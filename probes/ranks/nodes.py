"""Which of several nodes this process is, and what the nodes tell each other of themselves."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from probes.devices import nvml
from probes.devices.joined import assumed
from probes.errors import ProbeError
from probes.present import present
from probes.ranks import interfaces
from probes.ranks.room import check_room
from probes.reading import Finding
from probes.wording import mib

COMPARED = ("torch", "transformers", "accelerate")
"""Libraries of which all nodes need the same version."""
_FIRST_PORT = 20000
_NUM_PORTS = 20000
"""Below them lie the ports of services, above those that the kernel hands out by itself."""
_SAME_SIZE_RATIO = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One of several processes that the user started, one on each node."""

    rank: int
    num_nodes: int
    meeting: str
    """Where they meet, as `host:port/name`; the name tells one start of the job from another."""
    has_store: bool
    """The launcher that started them keeps a store there; otherwise node 0 opens one."""


def node_of_this_process(environment: Mapping[str, str] = os.environ) -> Node | None:
    """Which of several nodes this is, where torchrun or srun started one process on each.

    Args:
        environment: Variables of this process.

    Returns:
        The node; None for a process on its own.

    Raises:
        ProbeError: Several processes were started on one node.
    """
    if _count(environment, "WORLD_SIZE") > 1 and "LOCAL_WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    # Within a batch script, but outside of srun, only the figures of the whole job are set.
    if _count(environment, "SLURM_STEP_NUM_TASKS") > 1:
        return _of_srun(environment)
    return None


def _count(environment: Mapping[str, str], name: str) -> int:
    """A number of processes; 1 where the variable is empty or says nothing that is one."""
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 1


def _of_torchrun(environment: Mapping[str, str]) -> Node:
    num = int(environment["WORLD_SIZE"])
    local = int(environment["LOCAL_WORLD_SIZE"])
    if local > 1:
        raise _too_many(local, "torchrun --nproc-per-node 1")
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    start = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Node(
        rank=int(environment.get("GROUP_RANK", environment["RANK"])),
        num_nodes=num,
        meeting=_address(environment["MASTER_ADDR"], environment["MASTER_PORT"], f"{run}.{start}"),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _of_srun(environment: Mapping[str, str]) -> Node:
    num_tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    num_nodes = int(environment.get("SLURM_STEP_NUM_NODES", num_tasks))
    if num_tasks != num_nodes:
        raise _too_many(-(-num_tasks // num_nodes), "srun --ntasks-per-node 1")
    job = environment.get("SLURM_JOB_ID", "0")
    step = environment.get("SLURM_STEP_ID", "0")
    hosts = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    port = _FIRST_PORT + (int(job) * 16 + int(step) % 16) % _NUM_PORTS
    return Node(
        rank=int(environment["SLURM_PROCID"]),
        num_nodes=num_nodes,
        meeting=_address(
            environment.get("MASTER_ADDR") or first_host(hosts),
            environment.get("MASTER_PORT") or str(port),
            f"{job}.{step}",
        ),
        has_store=False,
    )


def _too_many(num: int, remedy: str) -> ProbeError:
    return ProbeError(
        f"This is one of {num} processes on its node.",
        f"Start one on each: {remedy}; --processes says how many ranks there are in all.",
        is_usage=True,
    )


def _address(host: str, port: str, name: str) -> str:
    place = f"[{host}]" if ":" in host else host
    return f"{place}:{port}/{name}"


def first_host(hosts: str) -> str:
    """The first host of a list in SLURM's way of writing, such as `gpu[03-05,9],cpu1`.

    Args:
        hosts: The list.
    """
    match = re.match(r"([^,\[]*)(?:\[([^,\-\]]*)[^\]]*\])?([^,\[]*)", hosts)
    return "".join(part or "" for part in match.groups()) if match else hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node tells of itself."""

    host: str
    versions: tuple[tuple[str, str], ...]
    num_cores: float
    device_kind: str
    device_bytes: tuple[int, ...]
    """Memory of each device that a rank could train on."""
    fault: tuple[str, str] | None = None
    """Cause and remedy where the node cannot take part."""


FACTS: TypeAdapter[NodeFacts] = TypeAdapter(NodeFacts)


def facts_of_here(environment: Mapping[str, str] = os.environ) -> NodeFacts:
    """What is to be told of this node. Makes no context on a device.

    Args:
        environment: Variables that the ranks will see.
    """
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in COMPARED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    fault: tuple[str, str] | None = None
    try:
        interfaces.check_named(environment)
    except ProbeError as error:
        fault = (error.cause, error.remedy)
    view = nvml.look()
    machine = present(view, assumed(view, environment), environment=environment)
    return NodeFacts(
        host=socket.gethostname(),
        versions=tuple(versions.items()),
        num_cores=machine.host.num_cores,
        device_kind=machine.device.kind,
        device_bytes=tuple(device.total_bytes for device in machine.devices),
        fault=fault,
    )


def compare(nodes: Sequence[NodeFacts], num_local: int = 1) -> tuple[Finding, ...]:
    """Whether ranks on these nodes can train together, and what is wasted where they can.

    Args:
        nodes: Every node's facts, by its number.
        num_local: Ranks on each node.

    Raises:
        ProbeError: A node cannot take part, software or kinds of device differ, or a node has
            fewer devices than ranks, or far too few cores for them.
    """
    first = nodes[0]
    for rank, node in enumerate(nodes):
        name = f"node {rank} ({node.host})"
        if node.fault is not None:
            cause, remedy = node.fault
            raise ProbeError(f"On {name}: {cause}", remedy, is_usage=True)
        for (library, version), (_, other) in zip(first.versions, node.versions, strict=True):
            if version != other:
                raise ProbeError(
                    f"The nodes have other versions of {library}: {version} on node 0 "
                    f"({first.host}), {other} on {name}.",
                    "Install the same versions on every node.",
                )
        if node.device_kind != first.device_kind:
            raise ProbeError(
                f"Node 0 ({first.host}) trains on {first.device_kind}, {name} on "
                f"{node.device_kind}.",
                "Take nodes with the same kind of device.",
            )
        if node.device_kind != "cpu" and num_local > len(node.device_bytes):
            raise ProbeError(
                f"{num_local} processes on {name}, which has {len(node.device_bytes)} "
                f"{node.device_kind} devices: each process needs its own.",
                f"Take at most {len(node.device_bytes) * len(nodes)} processes.",
                is_usage=True,
            )
        check_room(num_local, node.num_cores, num_nodes=len(nodes), place=f"of {name}")
    return (*_unequal_memory(nodes), *_unequal_cores(nodes))


def _unequal_memory(nodes: Sequence[NodeFacts]) -> list[Finding]:
    sizes = [(min(node.device_bytes), rank, node) for rank, node in enumerate(nodes)]
    least, smallest_rank, smallest = min(sizes, key=lambda size: size[0])
    most, largest_rank, largest = max(sizes, key=lambda size: size[0])
    if least >= _SAME_SIZE_RATIO * most:
        return []
    return [
        Finding(
            cause=(
                f"The nodes differ in memory: {mib(least)} on node {smallest_rank} "
                f"({smallest.host}), {mib(most)} on node {largest_rank} ({largest.host}). Every "
                f"rank runs the same micro-batch size, so the smallest decides and "
                f"{mib(most - least)} stay unused there."
            ),
            remedy="Leave the smallest out if the others do better without it.",
            is_problem=False,
        )
    ]


def _unequal_cores(nodes: Sequence[NodeFacts]) -> list[Finding]:
    if nodes[0].device_kind != "cpu" or len({node.num_cores for node in nodes}) == 1:
        return []
    cores = ", ".join(f"{node.num_cores:g} on node {rank}" for rank, node in enumerate(nodes))
    return [
        Finding(
            cause=f"The nodes differ in cores: {cores}. The slowest rank decides the speed.",
            is_problem=False,
        )
    ]
