"""Memory and cores that the kernel will really let a process have.

A container sees the whole host in `/proc/meminfo` and is killed at its control group's limit, so
the smallest limit of all groups above the process counts, and the process's own limits with it.
Where a kernel has neither `/proc` nor control groups, psutil answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_FROM_BYTES = 2**62
"""Version 1 writes "no limit" as the largest page-aligned number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes that a new process may reach, and who says so."""

    total_bytes: int
    available_bytes: int
    limit_from: str
    """`host`, `control group PATH` or the name of the process's own limit."""


def read_memory(
    root: Path = Path("/"), *, process_limits: Mapping[str, int] | None = None
) -> HostMemory:
    """Reads what a new process started from here can occupy.

    Available is the least over the host and every control group from the process's own up to the
    root: the limit less what is used, with the file cache that the kernel gives back at once.

    Args:
        root: Where `proc` and `sys` are looked for.
        process_limits: Limits that a child inherits, by name; None asks the kernel.
    """
    total_bytes, available_bytes = _host(root)
    limit_from = "host"
    for path, limit_bytes, used_bytes in _memory_groups(root):
        available_bytes = min(available_bytes, limit_bytes - used_bytes)
        if limit_bytes < total_bytes:
            total_bytes, limit_from = limit_bytes, f"control group {path}"
    for name, limit_bytes in (
        inherited_limits() if process_limits is None else process_limits
    ).items():
        available_bytes = min(available_bytes, limit_bytes)
        if limit_bytes < total_bytes:
            total_bytes, limit_from = limit_bytes, name
    return HostMemory(
        total_bytes=total_bytes, available_bytes=max(0, available_bytes), limit_from=limit_from
    )


def read_num_cores(root: Path = Path("/"), *, num_allowed: int | None = None) -> float:
    """Reads how many cores a process may use, quota of the control groups counted.

    Args:
        root: Where `proc` and `sys` are looked for.
        num_allowed: Cores in the process's affinity; None asks the kernel.
    """
    num_cores = float(_num_in_affinity() if num_allowed is None else num_allowed)
    for group in _groups(root, "cpu"):
        if group.version == 2:
            quota_us, _, period_us = (read_text(group.directory / "cpu.max") or "max").partition(
                " "
            )
        else:
            quota_us = read_text(group.directory / "cpu.cfs_quota_us") or "-1"
            period_us = read_text(group.directory / "cpu.cfs_period_us") or ""
        if quota_us.isdigit() and period_us.isdigit() and int(period_us) > 0:
            num_cores = min(num_cores, int(quota_us) / int(period_us))
    return num_cores


def read_host_total_bytes(root: Path = Path("/")) -> int:
    """Reads the host's own memory, whatever a process may have of it.

    Args:
        root: Where `proc` is looked for.
    """
    return _host(root)[0]


def read_text(path: Path) -> str | None:
    """Reads a file of the kernel's; None where it is not there or may not be read.

    Args:
        path: The file.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def inherited_limits() -> dict[str, int]:
    """Limits of this process that bound the memory of its children too, in bytes."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return {}
    limits = {}
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):
        number = getattr(resource, name, None)
        if number is None:
            continue
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            limits[name] = soft
    return limits


def _host(root: Path) -> tuple[int, int]:
    fields = dict(
        line.split(":", 1)
        for line in (read_text(root / "proc/meminfo") or "").splitlines()
        if ":" in line
    )

    def of(name: str) -> int | None:
        words = fields.get(name, "").split()
        return int(words[0]) * 1024 if words and words[0].isdigit() else None

    total_bytes = of("MemTotal")
    available_bytes = of("MemAvailable")
    if total_bytes is None or available_bytes is None:
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)
    return total_bytes, available_bytes


def memory_group_directories(root: Path = Path("/")) -> Iterator[Path]:
    """Directories of the control groups that bound the memory of this process, its own first.

    Args:
        root: Where `proc` and `sys` are looked for.
    """
    for group in _groups(root, "memory"):
        yield group.directory


@dataclass(frozen=True, slots=True)
class _Group:
    version: int
    path: str
    directory: Path


def _groups(root: Path, controller: str) -> Iterator[_Group]:
    """The control groups that bound this process, its own first, then every one above."""
    mounts = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        words = line.split(":", 2)
        if len(words) != 3:
            continue
        _, controllers, path = words
        if not controllers:
            version, directories = 2, [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            version, directories = 1, [mounts / name for name in {controllers, controller}]
        else:
            continue
        # A process moved out of its namespace sees its path through "..": only the root is ours.
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            parts = []
        for length in range(len(parts), -1, -1):
            own = "/".join(parts[:length])
            for directory in directories:
                if (directory / own).is_dir():
                    yield _Group(version, f"/{own}", directory / own)


def _memory_groups(root: Path) -> Iterator[tuple[str, int, int]]:
    """Path, limit and unreclaimable use of every group that has a limit."""
    for group in _groups(root, "memory"):
        directory = group.directory
        statistics = _pairs(directory / "memory.stat")
        if group.version == 2:
            # Above memory.high the kernel slows the process down until nothing moves.
            limits = [_number(directory / "memory.max"), _number(directory / "memory.high")]
            used_bytes = _number(directory / "memory.current") or 0
            cache_bytes = statistics.get("inactive_file", 0)
        else:
            # Limits of groups that the namespace hides are still told in memory.stat.
            limits = [
                _number(directory / "memory.limit_in_bytes"),
                statistics.get("hierarchical_memory_limit"),
            ]
            used_bytes = _number(directory / "memory.usage_in_bytes") or 0
            cache_bytes = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
        set_bytes = [
            limit for limit in limits if limit is not None and limit < _UNLIMITED_FROM_BYTES
        ]
        if set_bytes:
            yield group.path, min(set_bytes), max(0, used_bytes - cache_bytes)


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text is not None and text.isdigit() else None


def _pairs(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in (read_text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _num_in_affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
