"""The commands that train with the exported files, in the environment of the trials.

Several ranks are started by torchrun, as the trials were. Several nodes meet the static way: every
node is told its number and the address of the first, so that ranks are numbered in the order of the
nodes, one port is enough, and no host name has to resolve.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from autotune.export.bundle import Bundle, Node

ACCELERATE = "accelerate launch --config_file accelerate.yaml"

_INTERFACES = {"cpu": ("GLOO_SOCKET_IFNAME",), "cuda": ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
"""Kind of device → variables that name the interface of its process groups."""


def commands(bundle: Bundle, script: str) -> tuple[str, ...]:
    """One shell line for each node, variables included; all of them together train.

    Args:
        bundle: What is trained, and on which machines.
        script: `trainer.py`, `accelerator.py`, or the place of a script of the user's own.
    """
    if not bundle.has_ranks:
        start = ACCELERATE if script == "accelerator.py" else "python"
        return (f"{_assigned(bundle.launch_environment)}{start} {shlex.quote(script)}",)
    if bundle.num_nodes == 1:
        return (f"{_assigned(bundle.launch_environment)}{_torchrun(bundle, script)}",)
    address = shlex.quote(bundle.nodes[0].address)
    return tuple(
        _assigned(_of_node(bundle, node)) + _torchrun(bundle, script, str(number), address)
        for number, node in enumerate(bundle.nodes)
    )


def slurm(bundle: Bundle, script: str) -> str | None:
    """The one line for several nodes that Slurm allots, a task on each; None for one machine."""
    if bundle.num_nodes == 1:
        return None
    values = _of_node(bundle, bundle.nodes[0])
    if len({node.interface for node in bundle.nodes}) > 1:
        # The nodes have no interface of one name, and the line is the same for all.
        values = {n: v for n, v in values.items() if not n.endswith("_SOCKET_IFNAME")}
    # Which machines they are is known only where the command runs.
    first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    line = _assigned(values) + _torchrun(bundle, script, '"$SLURM_NODEID"', first)
    return f"srun --nodes {bundle.num_nodes} --ntasks-per-node 1 bash -c {shlex.quote(line)}"


def environment(bundle: Bundle) -> str:
    """The variables of the trials as a shell writes them before a command; empty without any."""
    return _assigned(bundle.launch_environment).rstrip()


def _torchrun(bundle: Bundle, script: str, number: str = "", address: str = "") -> str:
    options = [f"--nproc-per-node {bundle.ranks_per_node}"]
    if bundle.num_nodes > 1:
        options = [
            f"--nnodes {bundle.num_nodes}",
            *options,
            f"--node-rank {number}",
            f"--master-addr {address}",
            f"--master-port {bundle.rendezvous_port}",
        ]
    return f"torchrun {' '.join(options)} {shlex.quote(script)}"


def _of_node(bundle: Bundle, node: Node) -> dict[str, str]:
    """The variables of one node: its exchange goes through the interface of the trials."""
    values = bundle.launch_environment
    if node.interface is not None:
        names = _INTERFACES.get(bundle.device_type, _INTERFACES["cpu"])
        values.update(dict.fromkeys(names, node.interface))
    return dict(sorted(values.items()))


def _assigned(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)} " for name, value in values.items())
