"""Where the agents of several nodes meet: a store that all know, and what is said there.

Node 0 says in one place what is to be run (`Order`) and that it lives (`Lead`), each other node in
one of its own how it stands (`NodeState`). Everybody reads and writes a few times a second; whoever
does not change what he says for a while is lost.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from probes.errors import ProbeError
from probes.wording import first_line

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

CPP_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""Says from what level on the C++ parts of torch print; read once, when torch is imported."""
TICK_S = 0.25
"""Time between two looks at what the others say."""
CALL_LIMIT_S = 30.0
"""How long one call of the store may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What node 0 wants to be run on all nodes."""

    number: int
    """Counts from 1."""
    module: str
    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    num_processes: int
    num_nodes: int
    endpoint: str
    """The store of the group, as `host:port`."""
    join_limit_s: float
    beat: int = 0
    """Counts up as long as the group's wrapper on node 0 lives."""
    is_over: bool = False
    """Nothing is to be run any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """How a node stands."""

    beat: int = 0
    order: int = 0
    """Number of the order that the rest is about."""
    state: Literal["waiting", "running", "ended", "left"] = "waiting"
    code: int | None = None
    """How its share of the order ended."""
    last_line: str = ""
    """What its share said last on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """That node 0 lives, and at the end what the others are to leave with."""

    beat: int
    code: int | None = None
    """Exit code; None as long as there is more to come."""
    cause: str = ""


_ORDER: TypeAdapter[Order] = TypeAdapter(Order)
_STATE: TypeAdapter[NodeState] = TypeAdapter(NodeState)
_LEAD: TypeAdapter[Lead] = TypeAdapter(Lead)


class Line:
    """One process's connection to the meeting. Its calls may come from several threads.

    Every call raises a RuntimeError, as torch's errors of stores are, where the store is gone.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def close(self) -> None:
        """Lets go of the store, which ends with the process that opened it, or with this."""
        del self._store

    def put_lead(self, lead: Lead) -> None:
        """Says that node 0 lives."""
        self._store.set("lead", _LEAD.dump_json(lead).decode())

    def put_order(self, order: Order) -> None:
        """Says what is to be run."""
        self._store.set("order", _ORDER.dump_json(order).decode())

    def put_state(self, rank: int, state: NodeState) -> None:
        """Says how a node stands."""
        self._store.set(f"node/{rank}", _STATE.dump_json(state).decode())

    def next_number(self) -> int:
        """A number for an order that none had before."""
        return int(self._store.add("orders", 1))

    def read(self) -> tuple[Lead, Order | None]:
        """What node 0 says, and its latest order."""
        lead, order = self._store.multi_get(["lead", "order"])
        return _LEAD.validate_json(lead), _ORDER.validate_json(order) if order else None

    def states(self, ranks: list[int]) -> list[NodeState]:
        """How some nodes that have joined stand."""
        found = self._store.multi_get([f"node/{rank}" for rank in ranks])
        return [_STATE.validate_json(text) for text in found]

    def open(self) -> None:
        """Makes the places that everybody reads."""
        self._store.set("order", "")
        self.put_lead(Lead(beat=0))

    def is_open(self) -> bool:
        """Whether node 0 is there."""
        return bool(self._store.check(["lead"]))

    def has_joined(self, rank: int) -> bool:
        """Whether a node is there."""
        return bool(self._store.check([f"node/{rank}", f"facts/{rank}"]))

    def put_facts(self, rank: int, facts: str) -> None:
        """What a node tells of itself when it joins."""
        self._store.set(f"facts/{rank}", facts)

    def facts(self, rank: int) -> bytes:
        """What a node that has joined told of itself."""
        return bytes(self._store.get(f"facts/{rank}"))


def split(address: str) -> tuple[str, int, str]:
    """Host, port and name of a meeting told as `host:port/name`."""
    place, _, name = address.partition("/")
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port), name


@contextmanager
def quiet_stores(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Around the first import of torch: what its C++ parts warn of later is not printed.

    A store whose host is gone warns with the frames of its own stack; whoever uses it gets an
    exception all the same, and has words for that.
    """
    before = environment.get(CPP_LEVEL)
    environment.setdefault(CPP_LEVEL, "ERROR")
    try:
        yield
    finally:
        if before is None:
            environment.pop(CPP_LEVEL, None)


def host_line(address: str) -> tuple[Line, TCPStore]:
    """Opens the store of a meeting in this process, which must keep it.

    Raises:
        ProbeError: The port is in use.
    """
    with quiet_stores():
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port, name = split(address)
    try:
        store: TCPStore = TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=CALL_LIMIT_S),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise ProbeError(
            f"The nodes cannot meet at {host}:{port}: {first_line(error)}.",
            "Set MASTER_PORT to a free port, and MASTER_ADDR to an address of node 0, "
            "the same on every node.",
        ) from error
    return _line(store, name), store


def join_line(address: str, *, time_limit_s: float) -> Line:
    """Connects to the store of a meeting, as soon as there is one.

    Raises:
        ProbeError: Nobody answers within the time.
    """
    with quiet_stores():
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port, name = split(address)
    deadline_s = time.monotonic() + time_limit_s
    reason = _await_listener(host, port, deadline_s)
    if reason is None:
        try:
            store: TCPStore = TCPStore(
                host,
                port,
                is_master=False,
                timeout=timedelta(seconds=CALL_LIMIT_S),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            reason = first_line(error)
        else:
            return _line(store, name)
    raise ProbeError(
        f"Node 0 does not answer at {host}:{port} within {time_limit_s:g} s: {reason}.",
        "Start the same command on every node, and check that this node reaches that address "
        "and port.",
    )


def _line(store: TCPStore, name: str) -> Line:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return Line(PrefixStore(f"autotune-meeting/{name}", store))


def _await_listener(host: str, port: int, deadline_s: float) -> str | None:
    """Why nobody listens at an address until the deadline; None once somebody does."""
    while True:
        remaining_s = deadline_s - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(5.0, remaining_s))).close()
        except OSError as error:
            if time.monotonic() >= deadline_s:
                return error.strerror or first_line(error)
        else:
            return None
        time.sleep(TICK_S)
