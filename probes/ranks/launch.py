"""Starts one module on every rank of a group, by PyTorch's own launcher.

The launcher runs in a process of its own, one on each node: the *wrapper*, whose command
`rank_command` makes. Each rank is a plain `python -m MODULE` with the variables that torchrun sets.
Nothing is restarted, and nothing is left: a rank ends with its wrapper, the wrapper with its
parent; where one rank dies the others are ended within seconds. Rank 0 runs on node 0, where the
wrapper was started.

The ranks meet at a store that the wrapper opens on a free port before anybody is told of it, so
that no port can be in use.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from probes.errors import NODES_FAILED, NOT_FOR_MEMORY, RANK_FAILED, RANK_KILLED, ProbeError
from probes.kills import KillWatch
from probes.lifetime import die_with_parent, leashed
from probes.wording import first_line

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from probes.ranks.meeting import Order

JOIN_LIMIT_S = 60.0
"""How long the nodes wait for each other where the caller does not say."""
LOST_AFTER_S = 15.0
"""Silence after which a node counts as lost."""
GRACE_S = 5.0
"""How long a rank may take to heed SIGTERM before it is killed."""

LAUNCH_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables by which a launcher makes a process a rank."""
LAUNCH_PREFIXES = (
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC",
    "PET_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MV2_",
)
"""How further ones begin."""


def without_launch(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that make a process a rank of the job around it."""
    return {
        name: value
        for name, value in environment.items()
        if name not in LAUNCH_VARIABLES and not name.startswith(LAUNCH_PREFIXES)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many ranks a group has, and where they run."""

    num_processes: int
    """In all, spread evenly over the nodes."""
    num_nodes: int = 1
    meeting: str | None = None
    """Where the agents of all nodes meet, as `host:port`; needed for several nodes."""
    variables: tuple[tuple[str, str], ...] = ()
    """Set for every rank on every node, over what the node's own environment says."""
    join_limit_s: float = JOIN_LIMIT_S
    """How long the nodes wait for each other."""
    lost_after_s: float = LOST_AFTER_S
    """Silence after which a node counts as lost, and the group as failed."""

    def __post_init__(self) -> None:
        if self.num_processes < 1:
            raise ValueError(f"num_processes is {self.num_processes}: there is no such group")
        if self.num_nodes < 1 or self.num_processes % self.num_nodes:
            raise ValueError(f"{self.num_processes} processes do not spread over {self.num_nodes}")
        if self.num_nodes > 1 and self.meeting is None:
            raise ValueError("several nodes need a meeting")

    @property
    def num_local(self) -> int:
        """Ranks on each node."""
        return self.num_processes // self.num_nodes


def threads_of_rank(num_threads: int, num_local: int) -> int:
    """Threads that each rank computes with, so that all of a node share what one would use.

    Args:
        num_threads: Threads of one process alone.
        num_local: Ranks on the node.
    """
    return max(1, num_threads // num_local)


def rank_command(module: str, arguments: Sequence[str], ranks: Ranks) -> list[str]:
    """The wrapper's command, to be started by this process; it ends with the thread that does.

    Every rank runs `python -P -u -m MODULE ARGUMENTS` with RANK, LOCAL_RANK, WORLD_SIZE and the
    rest as torchrun sets them. What the ranks print goes to the wrapper's own stdout and stderr.
    The wrapper ends with 0 where all ranks did, with 128 + n after signal n, else with
    `RANK_FAILED`, `RANK_KILLED` or `NODES_FAILED` and a last line on stderr that tells why.

    Args:
        module: Full name of a module that Python can import on every node.
        arguments: What the module finds in `sys.argv`.
        ranks: How many, and where.
    """
    return _command(_Share(parent=os.getpid(), ranks=ranks), module, arguments)


def share_command(order: Order, node_rank: int) -> list[str]:
    """The wrapper's command on another node than the first, which its agent starts.

    Args:
        order: What node 0 asked for.
        node_rank: Number of this node.
    """
    ranks = Ranks(
        num_processes=order.num_processes,
        num_nodes=order.num_nodes,
        meeting=order.endpoint,
        variables=order.variables,
        join_limit_s=order.join_limit_s,
    )
    share = _Share(parent=os.getpid(), ranks=ranks, node_rank=node_rank, endpoint=order.endpoint)
    return _command(share, order.module, order.arguments)


def rank_store(prefix: str, timeout_s: float) -> Store:
    """In a rank: a new client of the launcher's store, under a prefix of its own.

    It is no part of a process group, so that it works before, beside and after one.

    Args:
        prefix: Keeps the keys of different uses apart.
        timeout_s: How long each call waits at most.

    Raises:
        torch.distributed.DistError: The launcher is gone.
    """
    return store_at(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), prefix, timeout_s)


def store_at(address: str, port: int, prefix: str, timeout_s: float) -> Store:
    """The same for a process that knows where the store is, without the variables of a rank."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        address,
        port,
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    return PrefixStore(f"autotune/{prefix}", store)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one wrapper has to do."""

    parent: int
    ranks: Ranks
    node_rank: int = 0
    endpoint: str | None = None
    """The store of the group; None on node 0, which opens it."""


def _command(share: _Share, module: str, arguments: Sequence[str]) -> list[str]:
    return [
        # Nothing in the user's directory may stand in for a module of ours.
        *(sys.executable, "-P", "-m", "probes.ranks.launch", json.dumps(asdict(share))),
        *(module, *arguments),
    ]


def main(arguments: Sequence[str]) -> int:
    """The wrapper: runs this node's share of a group and returns its exit code."""
    document = json.loads(arguments[0])
    variables = tuple((name, value) for name, value in document["ranks"].pop("variables"))
    ranks = Ranks(**document.pop("ranks"), variables=variables)
    share = _Share(**document, ranks=ranks)
    die_with_parent(share.parent)
    inner = without_launch(os.environ) | dict(ranks.variables)
    # The launcher would set the same and warn of it.
    inner.setdefault("OMP_NUM_THREADS", "1")
    for name in set(os.environ) - set(inner):
        del os.environ[name]
    os.environ.update(inner)
    module, *rest = arguments[1:]
    from probes.ranks.meeting import quiet_stores

    with quiet_stores():
        import torch.distributed  # noqa: F401  (every way below needs it)
    try:
        if share.endpoint is not None:
            _choose_interface(share.endpoint)
            return _run(share, share.endpoint, module, rest)
        if ranks.num_nodes == 1:
            with _own_store("127.0.0.1") as endpoint:
                return _run(share, endpoint, module, rest)
        return _lead(share, module, rest)
    except ProbeError as error:
        _say(str(error))
        return NODES_FAILED


def _choose_interface(address: str) -> None:
    """Lets gloo use the interface towards node 0, unless one is named.

    By itself it takes the one that the host's own name leads to, often the loopback.
    """
    from probes.ranks import interfaces, meeting

    interfaces.check_named(os.environ)
    host, port, _ = meeting.split(address)
    found = interfaces.towards(host, port)
    if found is not None:
        os.environ.setdefault(interfaces.VARIABLE, found.name)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the wrapper's last word


@contextlib.contextmanager
def _own_store(host: str) -> Iterator[str]:
    """A store of this process on a free port; the launcher finds it there and shares it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store: TCPStore = TCPStore(host, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    yield f"{host}:{store.port}"
    del store


def _run(share: _Share, endpoint: str, module: str, arguments: Sequence[str]) -> int:
    """Runs the ranks of this node until they have ended."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _shorten_grace()
    command = leashed([sys.executable, "-P", "-u", "-m", module, *arguments], os.getpid())
    options = run.parse_args(
        [
            *("--nnodes", str(share.ranks.num_nodes)),
            *("--nproc-per-node", str(share.ranks.num_local)),
            # The nodes keep their numbers: a dynamic rendezvous would sort them by address.
            *("--rdzv-backend", "static", "--node-rank", str(share.node_rank)),
            *("--rdzv-endpoint", endpoint, "--rdzv-id", "ranks"),
            *("--rdzv-conf", f"timeout={max(1, round(share.ranks.join_limit_s))}"),
            *("--max-restarts", "0", "--monitor-interval", "0.1"),
            # Without a directory for logs the launcher leaves none behind.
            *("--log-dir", os.devnull, "--no-python"),
            # The launcher substitutes macros that begin with a dollar.
            *(word.replace("$", "$$") for word in command),
        ]
    )
    kills = KillWatch()
    try:
        run.run(options)
    except ChildFailedError as error:
        return _tell_end(*root_failure(error), kills)
    except SignalException as error:
        return 128 + int(error.sigval)
    except (RuntimeError, ValueError) as error:  # torch's errors of stores are RuntimeErrors
        _say(f"Node {share.node_rank} could not start its ranks: {first_line(error)}.")
        return NODES_FAILED
    return 0


def root_failure(error: ChildFailedError) -> tuple[int, int]:
    """The rank that failed first, and its code.

    A rank that is killed takes those down at once that wait for it, and the launcher, which counts
    in seconds, may see them first. What the launcher itself ends comes by SIGTERM, or later.
    """
    first_rank, first = error.get_first_failure()
    early = [
        (failure.exitcode != -signal.SIGKILL, rank, failure.exitcode)
        for rank, failure in error.failures.items()
        if failure.timestamp <= first.timestamp + 1
        and failure.exitcode < 0
        and failure.exitcode != -signal.SIGTERM
    ]
    if early:
        # One that lost its partner may abort; nothing but somebody else ends a rank by SIGKILL.
        _, rank, code = min(early)
        return rank, code
    return first_rank, first.exitcode


def _tell_end(rank: int, code: int, kills: KillWatch) -> int:
    if code >= 0:
        _say(f"Rank {rank} ended with code {code}.")
        return RANK_FAILED
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    is_other = -code == signal.SIGKILL and kills.sign() == "none"
    _say(f"Rank {rank} was ended by {name}{f', {NOT_FOR_MEMORY}' if is_other else ''}.")
    return RANK_KILLED


def _shorten_grace() -> None:
    """The launcher gives ranks half a minute to heed a signal, wherever it ends them."""
    from torch.distributed.elastic.multiprocessing import PContext

    close = PContext.close

    def close_soon(
        self: PContext, death_sig: signal.Signals | None = None, timeout: float = GRACE_S
    ) -> None:
        close(self, death_sig, int(min(timeout, GRACE_S)))

    PContext.close = close_soon  # type: ignore[method-assign]


def _lead(share: _Share, module: str, arguments: Sequence[str]) -> int:
    """Node 0 of several: calls the agents together, runs its own share and watches the others."""
    from probes.ranks import calling, meeting

    ranks = share.ranks
    assert ranks.meeting is not None
    _choose_interface(ranks.meeting)
    line = meeting.join_line(ranks.meeting, time_limit_s=ranks.join_limit_s)
    with _own_store(meeting.split(ranks.meeting)[0]) as endpoint:
        order = meeting.Order(
            number=line.next_number(),
            module=module,
            arguments=tuple(arguments),
            variables=ranks.variables,
            num_processes=ranks.num_processes,
            num_nodes=ranks.num_nodes,
            endpoint=endpoint,
            join_limit_s=ranks.join_limit_s,
        )
        watch = calling.Call(line, order, on_trouble=_end_ranks, lost_after_s=ranks.lost_after_s)
        with watch as call:
            call.wait_until_running()
            code = _run(share, endpoint, module, arguments)
            trouble = call.explain(code)
    if trouble is None:
        return code
    _say(trouble.text)
    return trouble.code if trouble.code in (RANK_FAILED, RANK_KILLED) else NODES_FAILED


def _end_ranks(since_s: float) -> None:
    """Ends the ranks of this node; the launcher sees that and ends with them.

    Args:
        since_s: Seconds since this was first wanted.
    """
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if since_s > GRACE_S:
                child.kill()
            else:
                child.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
