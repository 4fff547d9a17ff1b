"""A command that was started once on each of several machines: node 0 leads, the others follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autotune.display import output
from autotune.errors import AutotuneError, DeviceError, UsageError
from probes.errors import ProbeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines that a run has, as its request names them."""

    num: int = 1
    meeting: str | None = None
    """Where their agents wait."""
    least_bytes: int | None = None
    """Memory of the smallest device of all, which decides for every rank."""


def across_nodes(processes: int, lead: Callable[[Nodes], int]) -> int:
    """Runs a command on node 0 and lends it the other nodes; on these, does what node 0 orders.

    Args:
        processes: Ranks in all. One stays on node 0.
        lead: The command.

    Returns:
        The exit code, the same on every node.

    Raises:
        AutotuneError: The nodes do not come together, or do not fit together.
    """
    with in_our_words():
        from probes.memory import read_num_cores
        from probes.ranks.nodes import compare, node_of_this_process
        from probes.ranks.room import check_room

        node = node_of_this_process()
        if node is None:
            check_room(processes, read_num_cores())
            return lead(Nodes())
        from probes.ranks import agents

        if node.rank > 0:
            return agents.serve(node, on_word=output.talk)
        with agents.host_meeting(node) as meeting:
            if processes > 1 and processes % node.num_nodes:
                raise UsageError(
                    f"{processes} processes cannot be spread evenly over {node.num_nodes} nodes.",
                    f"Use a multiple of {node.num_nodes} for --processes, or 1.",
                )
            facts = meeting.gather()
            for finding in compare(facts, num_local=max(1, processes // node.num_nodes)):
                output.talk(f"· {output.one_line(f'{finding.cause} {finding.remedy or str()}')}")
            nodes = Nodes(
                num=node.num_nodes,
                meeting=meeting.address,
                least_bytes=min(size for one in facts for size in one.device_bytes),
            )
            try:
                code = lead(nodes if processes > 1 else Nodes())
            except AutotuneError as error:
                meeting.dismiss(int(error.exit_code), str(error))
                raise
            meeting.dismiss(code)
            return code


@contextmanager
def in_our_words() -> Iterator[None]:
    """Turns what a probe says to people into an error of this program."""
    try:
        yield
    except ProbeError as error:
        kind = UsageError if error.is_usage else DeviceError
        raise kind(error.cause, error.remedy) from error
