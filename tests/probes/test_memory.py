from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from probes.memory import inherited_limits, read_memory, read_num_cores
from tests.testing.shared import case_folder

GIB = 2**30


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       64000000 kB\nMemFree:  1 kB\nMemAvailable:   48000000 kB\n"


def _cases() -> list[str]:
    folder = Path(__file__).parents[2].parent / "shared/cases/21-cgroup-limits/cases"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ["(absent)"]


@pytest.mark.parametrize("case", _cases())
def test_recorded_control_groups(case: str) -> None:
    root = case_folder("21-cgroup-limits") / "cases" / case
    expected = json.loads((root / "expect.json").read_text())
    memory = read_memory(root, process_limits={})
    assert memory.total_bytes == expected["total"]
    assert memory.available_bytes == expected["available_at_most"]
    assert read_num_cores(root, num_allowed=64) == expected.get("cpus", 64)


def test_the_limit_names_the_group_that_sets_it(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/pod/job\n",
            "sys/fs/cgroup/pod/job/memory.max": f"{8 * GIB}",
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}",
            "sys/fs/cgroup/pod/memory.current": f"{GIB}",
        },
    )
    memory = read_memory(root, process_limits={})
    assert (memory.total_bytes, memory.available_bytes) == (4 * GIB, 3 * GIB)
    assert memory.limit_from == "control group /pod"


def test_the_soft_limit_of_version_two_counts(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": "max",
            "sys/fs/cgroup/job/memory.high": f"{2 * GIB}",
        },
    )
    assert read_memory(root, process_limits={}).total_bytes == 2 * GIB


def test_version_one_tells_limits_that_the_namespace_hides(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}",
            "sys/fs/cgroup/memory/memory.stat": (
                f"inactive_file 0\ntotal_inactive_file {GIB // 2}\n"
                f"hierarchical_memory_limit {4 * GIB}\n"
            ),
        },
    )
    memory = read_memory(root, process_limits={})
    assert (memory.total_bytes, memory.available_bytes) == (4 * GIB, 4 * GIB - GIB // 2)


def test_hybrid_hierarchy_keeps_version_two_apart(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/unified/job/memory.max": f"{GIB}",
        },
    )
    assert read_memory(root, process_limits={}).total_bytes == GIB


def test_use_above_the_limit_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{GIB}",
            "sys/fs/cgroup/memory.current": f"{2 * GIB}",
        },
    )
    assert read_memory(root, process_limits={}).available_bytes == 0


@pytest.mark.parametrize("text", ["", "nonsense", "0::", "1:memory", "::::", "0::/../../other"])
def test_strange_group_lines_leave_the_host(tmp_path: Path, text: str) -> None:
    root = _tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": text})
    memory = read_memory(root, process_limits={})
    assert (memory.total_bytes, memory.limit_from) == (64_000_000 * 1024, "host")


def test_the_smallest_process_limit_counts(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"proc/meminfo": MEMINFO})
    memory = read_memory(root, process_limits={"RLIMIT_AS": 3 * GIB, "RLIMIT_DATA": 2 * GIB})
    assert (memory.total_bytes, memory.available_bytes) == (2 * GIB, 2 * GIB)
    assert memory.limit_from == "RLIMIT_DATA"


def test_version_one_quota(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000",
        },
    )
    assert read_num_cores(root, num_allowed=8) == 2.5
    assert read_num_cores(root, num_allowed=2) == 2.0


def test_psutil_answers_where_there_is_no_proc(tmp_path: Path) -> None:
    memory = read_memory(tmp_path, process_limits={})
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.available_bytes < memory.total_bytes


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits there")
def test_a_limit_of_this_process_is_seen_by_its_child() -> None:
    code = (
        "import resource; _, hard = resource.getrlimit(resource.RLIMIT_DATA);"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, hard));"
        "from probes.memory import inherited_limits, read_memory;"
        "print(inherited_limits()['RLIMIT_DATA'], read_memory().available_bytes <= 3 * 2**30)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == [str(3 * GIB), "True"]
    assert all(limit > 0 for limit in inherited_limits().values())


def test_this_machine() -> None:
    memory = read_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes <= psutil.virtual_memory().total
    assert 0 < read_num_cores() <= (psutil.cpu_count() or 1)
