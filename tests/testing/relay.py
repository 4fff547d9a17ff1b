"""A link with latency between two network namespaces: two TUN devices, this process between them.

`python -m tests.testing.relay NAMESPACE0 NAMESPACE1 BITS_PER_S ONE_WAY_S MTU` prints `up` once the
devices are there, and carries packets until it is ended. Each direction has its own wire: a packet
leaves it after those before it, takes its length over the rate, and arrives the delay later.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

from probes.lifetime import die_with_parent

DEVICE = "wire{node}"
_NEW_NETWORK = 0x40000000
_SET_DEVICE = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_QUEUE_S = 0.2
"""A packet that would wait longer is dropped, as a router with a short queue does."""
_MAX_PACKET_BYTES = 65536
_PACKETS_AT_ONCE = 64


def open_device(namespace: str, name: str) -> int:
    """A TUN device in a namespace; this process stays in its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
        return device
    finally:
        libc.setns(home, _NEW_NETWORK)
        os.close(there)
        os.close(home)


class Wire:
    """One direction."""

    def __init__(self, source: int, target: int, bits_per_s: float, delay_s: float) -> None:
        self.source = source
        self._target = target
        self._s_per_byte = 8 / bits_per_s
        self._delay_s = delay_s
        self._free_s = 0.0
        self._on_way: deque[tuple[float, bytes]] = deque()

    def take(self) -> None:
        """Puts what waits at the near end on the wire."""
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(self.source, _MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            now_s = time.monotonic()
            start_s = max(now_s, self._free_s)
            if start_s - now_s <= _QUEUE_S:
                self._free_s = start_s + len(packet) * self._s_per_byte
                self._on_way.append((self._free_s + self._delay_s, packet))

    def deliver(self) -> None:
        """Hands over what has arrived."""
        now_s = time.monotonic()
        while self._on_way and self._on_way[0][0] <= now_s:
            _, packet = self._on_way.popleft()
            with contextlib.suppress(OSError):
                os.write(self._target, packet)

    def next_s(self) -> float:
        """When the next packet arrives."""
        return self._on_way[0][0] if self._on_way else float("inf")


def main() -> None:
    die_with_parent()
    *namespaces, bits_per_s, delay_s, _ = sys.argv[1:]
    ends = [open_device(name, DEVICE.format(node=n)) for n, name in enumerate(namespaces)]
    wires = [
        Wire(ends[0], ends[1], float(bits_per_s), float(delay_s)),
        Wire(ends[1], ends[0], float(bits_per_s), float(delay_s)),
    ]
    print("up", flush=True)
    while True:
        wait_s = min(wire.next_s() for wire in wires) - time.monotonic()
        ready, _, _ = select.select(ends, [], [], max(0.0, min(1.0, wait_s)))
        for wire in wires:
            if wire.source in ready:
                wire.take()
            wire.deliver()


if __name__ == "__main__":
    main()
