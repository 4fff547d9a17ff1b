from __future__ import annotations

from pathlib import Path

import pytest

from probes.kills import KillWatch, read_memory_kills, read_memory_pressure

CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 total=1\n"
SHORT = "some avg10=80.00 avg60=9.00 avg300=1.00 total=9\nfull avg10=42.50 avg60=1.00 total=9\n"


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("own", "events"),
    [
        ("0::/pod/job\n", "sys/fs/cgroup/pod/job/memory.events"),
        ("4:memory:/pod/job\n", "sys/fs/cgroup/memory/pod/job/memory.oom_control"),
    ],
    ids=["version 2", "version 1"],
)
def test_the_own_control_group_counts_before_the_host(
    tmp_path: Path, own: str, events: str
) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": own,
            "proc/vmstat": "nr_free_pages 5\noom_kill 7\n",
            events: "low 0\noom 1\noom_kill 2\n",
        },
    )
    assert read_memory_kills(root) == 2
    watch = KillWatch(root)
    # Another group of the host ran out meanwhile.
    _write(root, {"proc/vmstat": "oom_kill 8\n"})
    assert watch.sign() == "none"
    _write(root, {events: "low 0\noom 2\noom_kill 3\n"})
    assert watch.sign() == "kernel"


def test_without_groups_the_host_counts_and_pressure_is_a_sign_too(tmp_path: Path) -> None:
    root = _write(tmp_path, {"proc/vmstat": "oom_kill 7\n", "proc/pressure/memory": CALM})
    assert (read_memory_kills(root), read_memory_pressure(root)) == (7, 0.0)
    watch = KillWatch(root)
    assert watch.sign() == "none"
    _write(root, {"proc/pressure/memory": SHORT})
    assert (read_memory_pressure(root), watch.sign()) == (42.5, "pressure")
    _write(root, {"proc/vmstat": "oom_kill 8\n"})
    assert watch.sign() == "kernel"


def test_where_nobody_counts_nothing_is_known(tmp_path: Path) -> None:
    assert read_memory_kills(tmp_path) is None
    assert read_memory_pressure(tmp_path) is None
    assert KillWatch(tmp_path).sign() == "unknown"
