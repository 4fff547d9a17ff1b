from __future__ import annotations

import socket
from pathlib import Path

import pytest

from probes.errors import ProbeError
from probes.link import Interface
from probes.ranks import interfaces

LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def sysfs(root: Path, name: str, speed: str, *, has_hardware: bool = True) -> None:
    place = root / "sys/class/net" / name
    place.mkdir(parents=True)
    (place / "speed").write_text(f"{speed}\n")
    if has_hardware:
        (place / "device").mkdir()


def test_speed_is_what_the_kernel_tells_of_hardware(tmp_path: Path) -> None:
    sysfs(tmp_path, "eth0", "1000")
    sysfs(tmp_path, "veth0", "10000", has_hardware=False)
    sysfs(tmp_path, "down0", "-1")
    assert interfaces.speed("eth0", tmp_path) == 1e9
    assert interfaces.speed("veth0", tmp_path) is None
    assert interfaces.speed("down0", tmp_path) is None
    assert interfaces.speed("none0", tmp_path) is None


def test_the_loopback_is_there_and_leads_to_itself() -> None:
    found = {one.name: one for one in interfaces.interfaces()}
    assert found[LOOPBACK].address in ("127.0.0.1", "::1")
    towards = interfaces.towards("127.0.0.1", 9)
    assert towards is not None
    assert (towards.name, towards.address) == (LOOPBACK, "127.0.0.1")
    assert interfaces.towards("no such host", 9) is None


def test_named_interfaces_must_be_there() -> None:
    interfaces.check_named({})
    interfaces.check_named({"GLOO_SOCKET_IFNAME": LOOPBACK})
    with pytest.raises(ProbeError, match=r"GLOO_SOCKET_IFNAME names 'none9'") as raised:
        interfaces.check_named({"GLOO_SOCKET_IFNAME": f"{LOOPBACK},none9"})
    assert LOOPBACK in raised.value.remedy
    assert raised.value.is_usage


def test_the_carrier_is_what_sent_the_bytes() -> None:
    before = {"lo": 1000, "eth0": 5000, "eth1": 0}
    after = {"lo": 1500, "eth0": 105_000, "eth1": 300, "new": 2}
    assert interfaces.carrier(before, after, 100_000) == "eth0"
    assert interfaces.carrier(before, after, 1_000_000) is None
    assert interfaces.carrier({}, {}, 1) is None


def test_a_slow_interface_beside_a_fast_one_is_said() -> None:
    slow = Interface(name="eth0", address="10.0.0.1", bits_per_s=100e6)
    fast = Interface(name="eth1", address="10.1.0.1", bits_per_s=10e9)
    finding = interfaces.faster_one(slow, [slow, fast], host="node 1 (b)")
    assert finding is not None
    assert finding.cause == (
        "On node 1 (b) the traffic between ranks goes through eth0 at 100 Mbit/s, and eth1 has "
        "10 Gbit/s."
    )
    assert finding.remedy is not None
    assert finding.remedy.startswith("Set GLOO_SOCKET_IFNAME=eth1")
    assert interfaces.faster_one(fast, [slow, fast], host="b") is None
    unknown = Interface(name="lo", address="127.0.0.1")
    assert interfaces.faster_one(unknown, [unknown, fast], host="b") is None
