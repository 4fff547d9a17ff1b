"""How NVIDIA devices are connected: NVLink, PCIe, and what lies between two of them."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from probes.devices.nvml import Fault, ask, known
from probes.link import Wires
from probes.reading import Finding

_MAX_NVLINKS = 32
"""More than any device has; a link that is not there is not known to NVML."""

_WAYS: Final = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "the host bridge",
    40: "the same NUMA node",
    50: "the link between processors",
}
"""NVML's levels of topology, from near to far."""


def look(binding: ModuleType | None = None) -> tuple[Wires, ...]:
    """Asks NVML how its devices are connected; empty without NVML.

    Args:
        binding: A module with the functions of `pynvml`; None imports the installed one.
    """
    if binding is None:
        try:
            import pynvml
        except ImportError:
            return ()
        binding = pynvml
    if isinstance(ask(binding, "nvmlInit"), Fault):
        return ()
    try:
        count = known(ask(binding, "nvmlDeviceGetCount")) or 0
        handles = [known(ask(binding, "nvmlDeviceGetHandleByIndex", i)) for i in range(count)]
        return tuple(
            _wires(binding, index, handles)
            for index, handle in enumerate(handles)
            if handle is not None
        )
    finally:
        ask(binding, "nvmlShutdown")


def narrow(wires: Wires) -> Finding | None:
    """What is to be said of a device on fewer PCIe lanes than it and its slot could have.

    Args:
        wires: What NVML tells of the device.
    """
    if wires.pcie_width is None or wires.max_pcie_width is None:
        return None
    if wires.pcie_width >= wires.max_pcie_width:
        return None
    return Finding(
        cause=(
            f"Device {wires.device_index} runs on {wires.pcie_width} PCIe lanes of "
            f"{wires.max_pcie_width}: copies and exchanges through the host are slower."
        ),
        remedy="Check the slot, the riser and the firmware's settings, or ask the provider.",
        lasts=True,
    )


def _wires(binding: ModuleType, index: int, handles: list[object]) -> Wires:
    handle = handles[index]
    return Wires(
        device_index=index,
        num_nvlinks=_num_nvlinks(binding, handle),
        pcie_generation=known(ask(binding, "nvmlDeviceGetCurrPcieLinkGeneration", handle)),
        pcie_width=known(ask(binding, "nvmlDeviceGetCurrPcieLinkWidth", handle)),
        max_pcie_generation=known(ask(binding, "nvmlDeviceGetMaxPcieLinkGeneration", handle)),
        max_pcie_width=known(ask(binding, "nvmlDeviceGetMaxPcieLinkWidth", handle)),
        peers=tuple(_peers(binding, index, handles)),
    )


def _num_nvlinks(binding: ModuleType, handle: object) -> int | None:
    states = []
    for number in range(_MAX_NVLINKS):
        state = ask(binding, "nvmlDeviceGetNvLinkState", handle, number)
        if isinstance(state, Fault):
            break
        states.append(state)
    return sum(state == 1 for state in states) if states else None


def _peers(binding: ModuleType, index: int, handles: list[object]) -> list[tuple[int, str]]:
    found = []
    for other, handle in enumerate(handles):
        if other == index or handle is None:
            continue
        level = ask(binding, "nvmlDeviceGetTopologyCommonAncestor", handles[index], handle)
        if level in _WAYS:
            found.append((other, _WAYS[level]))
    return found
