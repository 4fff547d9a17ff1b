from __future__ import annotations

import pytest

from autotune import units


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("6GiB", 6 * 1024**3),
        ("1.5 GB", 1_500_000_000),
        ("512mib", 512 * 1024**2),
        ("4000000000", 4_000_000_000),
        ("10B", 10),
    ],
)
def test_sizes_are_read(text: str, num_bytes: int) -> None:
    assert units.parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "6GiG", "1e9", "six", "0", "6 Gi B", "9" * 400]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is (not a size|no memory)"):
        units.parse_bytes(text)


def test_half_a_unit_is_refused_with_both_meanings() -> None:
    with pytest.raises(ValueError, match="write 6GiB or 6GB"):
        units.parse_bytes("6G")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("90s", 90), ("1h30m", 5400), ("45", 45), ("0.5h", 1800), ("2 min", 120)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10 parsecs", "1.5.2", "-3m", "0s", "m10", "9" * 400])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is (not a time|no time)"):
        units.parse_seconds(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (1023, "1023 B"),
        (1024**3 * 3.81, "3.81 GiB"),
        (512 * 1024**2, "512 MiB"),
        (3 * 1024**4, "3.00 TiB"),
    ],
)
def test_sizes_are_written(num_bytes: float, text: str) -> None:
    assert units.format_bytes(num_bytes) == text


def test_times_are_written() -> None:
    assert units.format_seconds(0.42) == "0.42 s"
    assert units.format_seconds(245) == "4:05 min"
    assert units.format_seconds(7380) == "2:03 h"
    assert units.format_clock(245) == "04:05"
    assert units.format_clock(3845) == "1:04:05"


def test_rates_and_quantities_are_written_in_three_figures() -> None:
    assert [units.format_rate(x) for x in (1.234, 12.34, 123.4, 9999, 41_800, 3.2e6)] == [
        "1.23",
        "12.3",
        "123",
        "9999",
        "41.8k",
        "3.20M",
    ]
    assert units.format_quantity(4.69e9, "B/s") == "4.69 GB/s"
    assert units.format_quantity(999, "B/s") == "999 B/s"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.41, "+41 %"), (0.9, "−10 %"), (1.0, "±0.0 %"), (1.0004, "±0.0 %"), (0.985, "−1.5 %")],
)
def test_ratios_are_written_as_changes(ratio: float, text: str) -> None:
    assert units.format_change(ratio) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (999, "999 B"),
        (2**30 * 245 // 100 + 2**22, "2.46 GiB"),
        (26 * 2**30 + 1, "26.1 GiB"),
        (101 * 2**30 + 1, "102 GiB"),
        (24 * 2**30, "24.0 GiB"),
        (300 * 2**20 + 1, "301 MiB"),
    ],
)
def test_a_size_that_is_no_less(num_bytes: int, text: str) -> None:
    assert units.format_bytes_at_least(num_bytes) == text
    assert units.parse_bytes(text.replace(" ", "")) >= num_bytes
