"""Network interfaces: which there are, which one leads to an address, which one carried bytes."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from probes.errors import ProbeError
from probes.link import Interface
from probes.memory import read_text
from probes.reading import Finding

VARIABLE = "GLOO_SOCKET_IFNAME"
"""Names the interface that gloo binds to."""
LINK_VARIABLES = (VARIABLE, "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE")
"""Variables that decide which way the traffic between ranks takes."""

_FASTER_RATIO = 2.0
"""An interface this much faster than the one in use is worth a word."""


def interfaces(root: Path = Path("/")) -> tuple[Interface, ...]:
    """The interfaces that have an address, the loopback among them.

    Args:
        root: Where `sys` is looked for.
    """
    import psutil

    found = []
    for name, addresses in psutil.net_if_addrs().items():
        known = [a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
        if known:
            address = known[0].partition("%")[0]
            found.append(Interface(name=name, address=address, bits_per_s=speed(name, root)))
    return tuple(found)


def speed(name: str, root: Path = Path("/")) -> float | None:
    """Bits a second that the kernel tells of an interface; None where it does not.

    Interfaces without hardware behind them report figures that mean nothing.

    Args:
        name: The interface's.
        root: Where `sys` is looked for.
    """
    place = root / "sys/class/net" / name
    if not (place / "device").exists():
        return None
    text = read_text(place / "speed")
    if text is None or not re.fullmatch(r"\d+", text) or int(text) == 0:
        return None
    return int(text) * 1e6


def towards(host: str, port: int) -> Interface | None:
    """The interface by which an address is reached, without sending anything.

    Args:
        host: A name or an address; this machine's own lead to the interface that bears them.
        port: Any port there.
    """
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, place in places:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(place)
                own = str(probe.getsockname()[0])
            except OSError:
                continue
        return _bearing(own)
    return None


def _bearing(address: str) -> Interface | None:
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.partition("%")[0] == address for a in addresses):
            return Interface(name=name, address=address, bits_per_s=speed(name))
    return None


def check_named(environment: Mapping[str, str]) -> None:
    """Checks that the interfaces which the environment names for gloo are there.

    Raises:
        ProbeError: One is not.
    """
    value = environment.get(VARIABLE)
    if value is None:
        return
    there = sorted(interface.name for interface in interfaces())
    for name in value.split(","):
        if name not in there:
            raise ProbeError(
                f"{VARIABLE} names {name!r}, and there is no such interface with an address here.",
                f"There are {', '.join(there)}; unset {VARIABLE} to let one be chosen.",
                is_usage=True,
            )


def sent_bytes() -> dict[str, int]:
    """Bytes that each interface has sent since it came up."""
    import psutil

    return {name: count.bytes_sent for name, count in psutil.net_io_counters(pernic=True).items()}


def carrier(
    before: Mapping[str, int], after: Mapping[str, int], expected_bytes: float
) -> str | None:
    """The interface that carried what ranks sent meanwhile; None where none did.

    Args:
        before: What `sent_bytes` said.
        after: What it says now.
        expected_bytes: What one rank sent at least.
    """
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    name = max(grown, key=lambda name: grown[name], default=None)
    return name if name is not None and grown[name] >= expected_bytes / 2 else None


def faster_one(used: Interface, there: Sequence[Interface], *, host: str) -> Finding | None:
    """What is to be said where the traffic takes a slow interface although a fast one is there.

    Args:
        used: The interface that carries the traffic.
        there: All of them.
        host: The machine's name.
    """
    if used.bits_per_s is None:
        return None
    best = max(there, key=lambda one: one.bits_per_s or 0.0, default=used)
    if (best.bits_per_s or 0.0) < _FASTER_RATIO * used.bits_per_s:
        return None
    assert best.bits_per_s is not None
    return Finding(
        cause=(
            f"On {host} the traffic between ranks goes through {used.name} at "
            f"{_rate(used.bits_per_s)}, and {best.name} has {_rate(best.bits_per_s)}."
        ),
        remedy=f"Set {VARIABLE}={best.name} there, if the other nodes are reached through it.",
    )


def _rate(bits_per_s: float) -> str:
    if bits_per_s >= 1e9:
        return f"{bits_per_s / 1e9:g} Gbit/s"
    return f"{bits_per_s / 1e6:g} Mbit/s"
