"""Whether a process that was killed was killed by the system, for want of memory.

The kernel counts such kills, for every control group and for the whole host. A service that kills
before the kernel has to acts on the time that processes wait for memory, which is counted too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from probes.memory import memory_group_directories, read_text

MemorySign = Literal["kernel", "pressure", "none", "unknown"]
"""What points to memory: the kernel's count went up; processes waited for memory; nothing does; or
nobody counts here."""
PRESSURE_PERCENT = 10.0
"""Part of ten seconds in which everything stood still for want of memory that counts as a sign."""


class KillWatch:
    """Remembers the kernel's counts, to tell later what killed a process. Costs two small reads.

    Args:
        root: Where `proc` and `sys` are looked for.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = read_memory_kills(root)

    def sign(self) -> MemorySign:
        """What points to memory, for a process that was killed since this was made."""
        now = read_memory_kills(self._root)
        if now is not None and self._before is not None and now > self._before:
            return "kernel"
        pressure = read_memory_pressure(self._root)
        if pressure is not None and pressure >= PRESSURE_PERCENT:
            return "pressure"
        return "unknown" if now is None or self._before is None else "none"


def read_memory_kills(root: Path = Path("/")) -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not count.

    The count of the process's own control group is taken where there is one: it holds what is
    killed for the group's limit and what is killed for the host's.

    Args:
        root: Where `proc` and `sys` are looked for.
    """
    for directory in memory_group_directories(root):
        for name in ("memory.events", "memory.oom_control"):
            count = _field(directory / name, "oom_kill")
            if count is not None:
                return count
    return _field(root / "proc/vmstat", "oom_kill")


def read_memory_pressure(root: Path = Path("/")) -> float | None:
    """Percent of the last ten seconds in which every process waited for memory.

    Args:
        root: Where `proc` is looked for.
    """
    for line in (read_text(root / "proc/pressure/memory") or "").splitlines():
        if line.startswith("full "):
            for word in line.split():
                name, _, value = word.partition("=")
                if name == "avg10":
                    return float(value)
    return None


def _field(path: Path, name: str) -> int | None:
    for line in (read_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
