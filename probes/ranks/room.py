"""Whether a machine has room for so many ranks, before any of them is started."""

from __future__ import annotations

from probes.errors import ProbeError

MOST_RANKS_PER_CORE = 4
"""Ranks that share a core compute in turn: with more of them, starting alone takes minutes, and
what is measured is the queue."""


def check_room(
    num_local: int, num_cores: float, *, num_nodes: int = 1, place: str = "here"
) -> None:
    """Refuses more ranks than the cores of a node can sensibly take, with a device each or not.

    Args:
        num_local: Ranks on the node.
        num_cores: Cores that its processes may use.
        num_nodes: Nodes in all, each of which gets as many.
        place: The node's name in a message.

    Raises:
        ProbeError: There are more.
    """
    most = max(MOST_RANKS_PER_CORE, int(MOST_RANKS_PER_CORE * num_cores))
    if num_local <= most:
        return
    each = " on each node" if num_nodes > 1 else ""
    cores = "1 core" if num_cores == 1 else f"{num_cores:g} cores"
    raise ProbeError(
        f"{num_local} processes{each} are far more than the {cores} {place}.",
        f"Take at most {most * num_nodes} processes; one a core is what can be fast.",
        is_usage=True,
    )
