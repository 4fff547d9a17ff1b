"""When whoever draws must rest: nothing of ours computes inside a measured window."""

from __future__ import annotations

from autotune.view import RunView


def is_quiet(view: RunView) -> bool:
    """Whether speed is being measured on the processor that would have to draw."""
    measuring = view.progress is not None and view.progress.stage == "speed"
    confirming = view.running is not None and view.running.purpose == "confirm"
    return (measuring or confirming) and is_on_cpu(view)


def is_on_cpu(view: RunView) -> bool:
    """Whether trials run on the processor that also draws; so it is assumed until it is known."""
    devices = view.machine.machine.get("devices") if view.machine else None
    if not isinstance(devices, list):
        return True
    return all(isinstance(device, dict) and device.get("kind") == "cpu" for device in devices)
