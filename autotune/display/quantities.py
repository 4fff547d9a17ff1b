"""Readings and devices in words, as every display writes them."""

from __future__ import annotations

from autotune.display.output import one_line
from autotune.units import format_bytes, format_quantity, format_seconds
from probes.machine import Device, Reading


def quantity(reading: Reading) -> str:
    """The median of a reading with its unit."""
    match reading.unit:
        case "bytes":
            return format_bytes(reading.value)
        case "bytes_per_s":
            return format_quantity(reading.value, "B/s")
        case "flop_per_s":
            return format_quantity(reading.value, "FLOP/s")
        case "s":
            return format_seconds(reading.value)
        case "celsius":
            return f"{reading.value:.0f} °C"
        case "W":
            return f"{reading.value:.0f} W"
        case _:
            return f"{reading.value:g}"


def spread(reading: Reading) -> str:
    """Half the distance between the quartiles, in per cent of the median; `–` of one sample."""
    if not reading.value or len(reading.samples) < 2:
        return "–"
    return f"{100 * reading.half_iqr / reading.value:.1f} %"


def device(device: Device) -> str:
    """A device with its memory and its company."""
    text = (
        f"{one_line(device.name)}, {format_bytes(device.free_bytes)} free of "
        f"{format_bytes(device.total_bytes)} ({one_line(device.memory_from)})"
    )
    if device.allocation_refused and device.allocatable_bytes is not None:
        text += f", {format_bytes(device.allocatable_bytes)} could be had"
    if device.mig:
        text += ", MIG instance"
    if device.driver:
        text += f", driver {device.driver}"
    if device.processes:
        text += f", {len(device.processes)} other processes"
    return text
