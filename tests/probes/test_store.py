from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from probes import store
from probes.machine import Device, Finding, Host, Machine, Reading

MACHINE = Machine(
    host=Host(
        name="box",
        processor="CPU",
        num_cores=1.5,
        total_bytes=8 * 2**30,
        available_bytes=4 * 2**30,
        limit_from="control group /job",
        platform="Linux",
        num_threads=1,
    ),
    devices=(
        Device(
            kind="cpu",
            index=0,
            name="CPU",
            total_bytes=8 * 2**30,
            free_bytes=4 * 2**30,
            memory_from="host",
        ),
    ),
    readings=(
        Reading(
            name="matmul float32",
            unit="flop_per_s",
            value=2.0e9,
            samples=(1.0e9, 2.0e9, 3.0e9),
            half_iqr=0.5e9,
            note="512 × 512 matrices",
        ),
    ),
    findings=(Finding(cause="It only pretends.", lasts=True),),
    versions=(("torch", "2.13.0"),),
    probed_unix_s=12.5,
    digest="0123456789abcdef",
)


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    assert store.save(MACHINE, tmp_path / "deep/er") is None
    assert store.load(MACHINE.digest, tmp_path / "deep/er") == MACHINE
    assert [path.name for path in (tmp_path / "deep/er/machines").iterdir()] == [
        "0123456789abcdef.json"
    ]


def test_another_digest_is_another_machine(tmp_path: Path) -> None:
    store.save(MACHINE, tmp_path)
    assert store.load("fedcba9876543210", tmp_path) is None


def test_a_file_under_a_foreign_name_is_not_taken(tmp_path: Path) -> None:
    store.save(MACHINE, tmp_path)
    file = tmp_path / "machines/0123456789abcdef.json"
    file.rename(file.with_name("fedcba9876543210.json"))
    assert store.load("fedcba9876543210", tmp_path) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: b"\x00\xff" + text,
        lambda text: b"{}",
        lambda text: text.replace(b'"devices"', b'"device"'),
        lambda text: text.replace(b"4294967296", b'"much"'),
    ],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: object) -> None:
    store.save(MACHINE, tmp_path)
    file = tmp_path / "machines/0123456789abcdef.json"
    assert callable(damage)
    file.write_bytes(damage(file.read_bytes()))
    assert store.load(MACHINE.digest, tmp_path) is None
    store.save(MACHINE, tmp_path)
    assert store.load(MACHINE.digest, tmp_path) == MACHINE


def test_nowhere_to_keep_is_no_fault() -> None:
    assert store.save(MACHINE, None) is None
    assert store.load(MACHINE.digest, None) is None


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    finding = store.save(MACHINE, blocked)
    assert finding is not None
    assert not finding.is_problem
    assert str(blocked) in finding.cause
    assert finding.remedy is not None
    assert "AUTOTUNE_CACHE_DIR" in finding.remedy


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(20):
        store.save(replace(MACHINE, digest=f"{number:016x}"), tmp_path)
        os.utime(tmp_path / f"machines/{number:016x}.json", (number, number))
    left = sorted(path.stem for path in (tmp_path / "machines").iterdir())
    assert left == [f"{number:016x}" for number in range(4, 20)]


def test_the_place_follows_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert store.cache_directory({"AUTOTUNE_CACHE_DIR": "/own"}) == Path("/own")
    if sys.platform != "linux":
        return
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.cache_directory({"XDG_CACHE_HOME": "/shared"}) == Path("/shared/autotune")
    assert store.cache_directory({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache/autotune"
    assert store.cache_directory({}) == tmp_path / ".cache/autotune"


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert store.cache_directory({}) is None
    assert store.cache_directory({"AUTOTUNE_CACHE_DIR": "/own"}) == Path("/own")
