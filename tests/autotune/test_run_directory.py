from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.run_directory import (
    RunDirectory,
    checked_name,
    find,
    list_runs,
    new_name,
    write_atomically,
    write_json,
)


def _run(root: Path, name: str, *, age_s: float = 0.0) -> RunDirectory:
    run = RunDirectory(root / name)
    run.create()
    write_json(run.request, {})
    stamp = time.time() - age_s
    os.utime(run.request, (stamp, stamp))
    return run


def test_a_run_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    run = _run(tmp_path / "runs", "one")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert run.control.is_dir()
    assert run.name == "one"
    assert run.trial(7) == run.path / "trials" / "007"


def test_a_place_that_is_no_directory_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written: Not a directory") as caught:
        RunDirectory(tmp_path / "file" / "one").create()
    assert "--run-dir" in (caught.value.remedy or "")


def test_runs_are_listed_oldest_first_and_found_by_name_path_and_last(tmp_path: Path) -> None:
    new = _run(tmp_path, "a-new", age_s=1)
    old = _run(tmp_path, "b-old", age_s=9)
    (tmp_path / "no-run").mkdir()
    assert list_runs(tmp_path) == [old, new]
    assert find(tmp_path, "b-old") == old
    assert find(tmp_path / "elsewhere", str(new.path)) == new
    assert find(tmp_path, "last") == new
    assert list_runs(tmp_path / "missing") == []


def test_a_run_that_is_missing_names_the_newest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find(tmp_path, "one")
    listing = f"`autotune runs --run-dir {tmp_path}`"
    assert caught.value.remedy == f"Runs there: none yet. {listing} lists them all."
    _run(tmp_path, "two")
    with pytest.raises(UsageError, match="There is no run 'one'") as caught:
        find(tmp_path, "one")
    assert "Runs there: two." in (caught.value.remedy or "")


def test_new_names_are_free_and_fit_a_file_system(tmp_path: Path) -> None:
    date = time.strftime("%Y%m%d")
    assert new_name(tmp_path, "gpt2") == f"gpt2-{date}-1"
    (tmp_path / f"gpt2-{date}-1").mkdir()
    assert new_name(tmp_path, "gpt2") == f"gpt2-{date}-2"
    assert new_name(tmp_path, "a/b c\x1b") == f"a-b-c-{date}-1"
    assert new_name(tmp_path, "..") == f"run-{date}-1"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, "old", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \udc80")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]
    write_json(path, {"a": "é"})
    assert path.read_text() == '{\n  "a": "é"\n}\n'


def test_a_directory_that_is_gone_is_not_made_anew_where_that_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "file", "text", make_directory=False)
    assert [*tmp_path.iterdir()] == []
    write_atomically(tmp_path / "file", "text", make_directory=False)
    assert (tmp_path / "file").read_text() == "text"


def test_commands_name_a_run_so_that_they_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = RunDirectory(Path("autotune-runs", "one"))
    assert (usual.called, usual.root_options) == ("one", ())
    assert usual.resume_command == "autotune tune --resume --name one"
    other = RunDirectory(Path("my runs", "one"))
    assert (other.called, other.root_options) == ("my runs/one", ("--run-dir", "my runs"))
    assert other.resume_command == "autotune tune --resume --name one --run-dir 'my runs'"
    monkeypatch.setenv("AUTOTUNE_RUN_DIR", "elsewhere")
    assert usual.called == "autotune-runs/one", "its name would be looked for elsewhere"
    assert usual.root_options == ("--run-dir", "autotune-runs")


def test_a_run_has_its_name_from_wherever_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path, "one")
    for place, word in ((run.path, "."), (run.control, "..")):
        monkeypatch.chdir(place)
        assert find(Path("autotune-runs"), word) == run


def test_a_name_is_one_plain_part_of_a_path() -> None:
    assert checked_name("größe 2 (漢)") == "größe 2 (漢)"
    for name in ("", " ", ".", "..", ".hidden", "a/b", "a\\b", "a\nb", "a\x1b[0m", "é" * 101):
        with pytest.raises(UsageError, match="A run cannot be called"):
            checked_name(name)


def test_what_cannot_be_read_hides_no_run(tmp_path: Path) -> None:
    one = _run(tmp_path, "one")
    # Its request is a link that leads to itself, and nothing can be told of it.
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "request.json").symlink_to("request.json")
    (tmp_path / "three" / "request.json").mkdir(parents=True)
    assert list_runs(tmp_path) == [one]
    assert list_runs(tmp_path / ("x" * 300)) == []


def test_a_long_model_name_makes_a_name_that_fits(tmp_path: Path) -> None:
    assert checked_name(new_name(tmp_path, "x" * 255))


def test_a_run_that_never_began_can_be_discarded(tmp_path: Path) -> None:
    run = _run(tmp_path, "one")
    (run.path / "journal.jsonl.20260101-000000").touch()
    run.discard_unbegun()
    assert run.path.is_dir(), "it holds the story of an earlier run"
    (run.path / "journal.jsonl.20260101-000000").unlink()
    run.discard_unbegun()
    assert not run.path.exists()
