"""The commands that train with the exported files, in the environment of the trials.

Several ranks are started by torchrun, as the trials were. Several nodes meet the static way: every
node is told its number and the address of the first, so that ranks are numbered in the order of the
nodes, one port is enough, and no host name has to resolve.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Mapping

from autotune.export.bundle import Bundle

ACCELERATE = "accelerate launch --config_file accelerate.yaml"

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def commands(bundle: Bundle, script: str) -> tuple[str, ...]:
    """One shell line for each node, variables included; all of them together train.

    Args:
        bundle: What is trained, and on which machines.
        script: `trainer.py`, `accelerator.py`, or the place of a script of the user's own.
    """
    values = bundle.launch_environment
    if not bundle.has_ranks:
        start = ACCELERATE if script == "accelerator.py" else "python"
        return (f"{_assigned(values)}{start} {shlex.quote(script)}",)
    if bundle.num_nodes == 1:
        return (_assigned(values) + _torchrun(bundle, script),)
    address = shlex.quote(host(bundle))
    return tuple(
        _assigned(_of_node(bundle, node)) + _torchrun(bundle, script, str(node), address)
        for node in range(bundle.num_nodes)
    )


def slurm(bundle: Bundle, script: str) -> str | None:
    """The one line for several nodes that Slurm allots, a task on each; None for one machine."""
    if bundle.num_nodes == 1:
        return None
    values = _of_node(bundle, 0)
    if len(set(bundle.interfaces)) > 1:
        # The line is the same for all nodes, and their interfaces are not.
        values = {name: value for name, value in values.items() if name not in (_GLOO, _NCCL)}
    # Which machines they are is known only where the command runs.
    first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    line = _assigned(values) + _torchrun(bundle, script, '"$SLURM_NODEID"', first)
    return f"srun --nodes {bundle.num_nodes} --ntasks-per-node 1 bash -c {shlex.quote(line)}"


def host(bundle: Bundle) -> str:
    """The first node as it stands before a colon and a port."""
    address = str(bundle.address)
    return f"[{address}]" if ":" in address else address


def environment(bundle: Bundle) -> str:
    """The variables of the trials as a shell writes them before a command; empty without any."""
    return _assigned(bundle.launch_environment).rstrip()


def _torchrun(bundle: Bundle, script: str, node: str = "", address: str = "") -> str:
    options = [f"--nproc-per-node {bundle.ranks_per_node}"]
    if bundle.num_nodes > 1:
        options = [
            f"--nnodes {bundle.num_nodes}",
            *options,
            f"--node-rank {node}",
            f"--master-addr {address}",
            f"--master-port {bundle.rendezvous_port}",
        ]
    return f"torchrun {' '.join(options)} {shlex.quote(script)}"


def _of_node(bundle: Bundle, node: int) -> dict[str, str]:
    """The variables of one node: its exchange goes through the interface of the trials."""
    values = bundle.launch_environment
    if bundle.interfaces:
        names = (_GLOO, _NCCL) if bundle.device_type == "cuda" else (_GLOO,)
        values.update(dict.fromkeys(names, bundle.interfaces[node]))
    return dict(sorted(values.items()))


def _assigned(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)} " for name, value in values.items())


def verify(bundle: Bundle, script: str) -> None:
    """Has torchrun's own parser read the commands, and compares what it understood.

    Raises:
        ValueError: An option is not understood as it was meant.
    """
    if not bundle.has_ranks:
        return
    from torch.distributed.run import get_args_parser

    for node, line in enumerate(commands(bundle, script)):
        words = shlex.split(line)
        start = words.index("torchrun")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                read = get_args_parser().parse_args(words[start + 1 :])
            except SystemExit as end:
                raise ValueError(
                    f"torchrun does not understand {line!r}: {said.getvalue()}"
                ) from end
        meant = {"nproc_per_node": str(bundle.ranks_per_node), "training_script": script}
        if bundle.num_nodes > 1:
            meant["nnodes"] = str(bundle.num_nodes)
            meant["node_rank"] = str(node)
            meant["master_addr"] = host(bundle)
            meant["master_port"] = str(bundle.rendezvous_port)
        for name, value in meant.items():
            if str(getattr(read, name)) != value:
                raise ValueError(f"torchrun reads {name} of {line!r} as {getattr(read, name)!r}")
