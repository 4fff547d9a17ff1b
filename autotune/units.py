"""Bytes, times and rates as people write and read them."""

from __future__ import annotations

import math
import re

_BYTES = {
    "": 1,
    "B": 1,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = r"(\d+(?:\.\d+)?)"


def parse_bytes(text: str) -> int:
    """Reads a size such as `6GiB`, `1.5 GB`, `512MiB` or plain bytes.

    Raises:
        ValueError: It is not a size, or not a positive one; the message says what would be.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([A-Za-z]*)", text.strip())
    unit = match[2].upper() if match else ""
    if match is None or unit not in _BYTES:
        if match is not None and unit in ("K", "M", "G", "T"):
            raise ValueError(
                f"{text!r} has half a unit: write {match[1]}{unit}iB or {match[1]}{unit}B"
            )
        raise ValueError(f"{text!r} is not a size: write for example 6GiB, 512MiB or 4000000000")
    size = float(match[1]) * _BYTES[unit]
    if math.isinf(size):
        raise ValueError(
            f"{_shortened(text)!r} is not a size of any machine: write for example 6GiB"
        )
    num_bytes = int(size)
    if num_bytes < 1:
        raise ValueError(f"{text!r} is no memory at all")
    return num_bytes


def _shortened(text: str, most_characters: int = 20) -> str:
    return text if len(text) <= most_characters else f"{text[: most_characters - 1]}…"


def parse_seconds(text: str) -> float:
    """Reads a time such as `10m`, `90s`, `1h30m` or plain seconds.

    Raises:
        ValueError: It is not a time, or not a positive one; the message says what would be.
    """
    parts = re.findall(rf"{_NUMBER}\s*(h|min|m|s|)", text.strip())
    if not parts or not re.fullmatch(rf"(?:{_NUMBER}\s*(?:h|min|m|s|)\s*)+", text.strip()):
        raise ValueError(f"{text!r} is not a time: write for example 10m, 90s or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ValueError(f"{text!r} is no time at all")
    if math.isinf(seconds):
        raise ValueError(
            f"{_shortened(text)!r} is not a time that anybody has: write for example 10m"
        )
    return seconds


UNKNOWN = "–"
"""Written where a figure is none: not a number, or without end."""


def format_bytes(num_bytes: float) -> str:
    """A size in binary units, three figures: `3.81 GiB`, `512 MiB`."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{_three_figures(value)} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1024
    return f"{_three_figures(value)} TiB"


def format_bytes_at_least(num_bytes: int) -> str:
    """A size in three figures that is no less than `num_bytes`."""
    unit = 1024 ** max(0, min(4, (max(num_bytes, 1).bit_length() - 1) // 10))
    figures = 10 ** max(0, 3 - len(str(num_bytes // unit)))
    return format_bytes(math.ceil(num_bytes / unit * figures) / figures * unit)


def format_seconds(seconds: float) -> str:
    """A time for reading: `0.42 s`, `12.3 s`, `4:05 min`, `2:03 h`."""
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{_three_figures(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d} h"


def format_short_time(seconds: float) -> str:
    """A time of an exchange, by thousands: `51.2 µs`, `1.2 ms`, `0.34 s`."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return format_quantity(seconds * 1e6, "µs") if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def format_clock(seconds: float) -> str:
    """Time since a start: `04:05`, or `1:04:05` past an hour."""
    if not math.isfinite(seconds):
        return UNKNOWN
    whole = max(0, int(seconds))
    clock = f"{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 3600}:{clock}" if whole >= 3600 else clock


def format_rate(per_s: float) -> str:
    """A rate in three figures, large ones by their thousands: `12.3`, `41.8k`, `3.20M`."""
    scaled, prefix = _scaled(per_s, from_magnitude=1e4)
    return f"{_three_figures(scaled)}{prefix}"


def format_quantity(value: float, unit: str) -> str:
    """A value with its unit, by thousands: `4.69 GB/s`, `1.05 TFLOP/s`."""
    scaled, prefix = _scaled(value, from_magnitude=1e3)
    return f"{_three_figures(scaled)} {prefix}{unit}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things: `1 trial`, `3 trials`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def format_change(ratio: float) -> str:
    """A ratio as a change in per cent: 1.41 is `+41 %`, 0.9 is `−10 %`."""
    if not math.isfinite(ratio):
        return UNKNOWN
    per_cent = (ratio - 1) * 100
    sign = "−" if per_cent <= -0.05 else "+" if per_cent >= 0.05 else "±"
    magnitude = abs(per_cent)
    return f"{sign}{magnitude:.0f} %" if magnitude >= 9.95 else f"{sign}{magnitude:.1f} %"


def _scaled(value: float, *, from_magnitude: float) -> tuple[float, str]:
    magnitude = abs(value)
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if magnitude >= factor and magnitude >= from_magnitude:
            return value / factor, prefix
    return value, ""


def _three_figures(value: float) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
