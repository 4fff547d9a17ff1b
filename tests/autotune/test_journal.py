from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune import journal
from autotune.errors import JournalError
from autotune.events import NoteAdded, RunStarted, TrialProgressed
from autotune.journal import Journal, follow, read
from autotune.run_directory import RunDirectory
from tests.testing import runs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def _write(path: Path, *texts: str) -> None:
    with Journal(path, path.with_name("progress.json")) as writer:
        for text in texts:
            writer.append(NoteAdded(text=text))


def _texts(path: Path) -> list[str]:
    return [r.event.text for r in read(path) if isinstance(r.event, NoteAdded)]


def test_what_is_appended_is_on_disk_at_once_and_numbered(path: Path) -> None:
    with Journal(path, path.with_name("progress.json")) as writer:
        writer.append(NoteAdded(text="one"))
        assert _texts(path) == ["one"]
        writer.append(NoteAdded(text="two"))
    assert [record.seq for record in read(path)] == [0, 1]


def test_a_later_writer_goes_on_with_numbers_and_clock(path: Path) -> None:
    started = runs.started("one")
    old = RunStarted(
        run="one",
        created_unix_s=started.created_unix_s - 100,
        request=started.request,
        versions={},
        process=1,
        host="host",
    )
    progress = path.with_name("progress.json")
    with Journal(path, progress) as writer:
        writer.append(old)
    with Journal(path, progress) as writer:
        record = writer.append(NoteAdded(text="later"))
    assert record.seq == 1
    assert 100 <= record.t_s < 160


def test_a_cut_last_line_is_kept_aside_and_the_rest_goes_on(path: Path) -> None:
    _write(path, "one", "two")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert _texts(path) == ["one"]
    _write(path, "three")
    assert _texts(path) == ["one", "three"]
    assert [record.seq for record in read(path)] == [0, 1]
    first = whole.index(b"\n") + 1
    assert path.with_suffix(".cut").read_bytes() == whole[first:-10]


def test_a_line_without_its_newline_counts_as_cut(path: Path) -> None:
    _write(path, "one", "two")
    path.write_bytes(path.read_bytes()[:-1])
    assert _texts(path) == ["one"]


def test_an_unknown_event_is_passed_over_and_stays(path: Path) -> None:
    _write(path, "one")
    strange = {"seq": 1, "t_s": 1.0, "event": {"kind": "from_the_future"}, "schema_version": 9}
    with path.open("a") as file:
        file.write(json.dumps(strange) + "\n")
    assert _texts(path) == ["one"]
    _write(path, "two")
    assert b"from_the_future" in path.read_bytes()
    assert _texts(path) == ["one", "two"]


def test_a_damaged_line_in_the_middle_is_named(path: Path) -> None:
    _write(path, "one", "two", "three")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"seq": 1, "t_\n' + lines[2])
    with pytest.raises(JournalError, match=f"Line 2 of {path} is damaged"):
        read(path)


def test_no_journal_is_an_empty_one(path: Path) -> None:
    assert read(path) == []


def test_progress_is_coalesced_but_every_stage_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("autotune.journal.time.monotonic", lambda: now_s)
    progress = path.with_name("progress.json")
    told: list[tuple[str, int | None]] = []
    with Journal(path, progress) as writer:
        for tenth, (stage, step) in enumerate(
            [("memory", 0), ("memory", 1), ("memory", 2), ("warm-up", 0), ("speed", 0)]
        ):
            now_s = 100.0 + tenth * 0.1
            writer.append(TrialProgressed(number=0, stage=stage, step=step))
            event = json.loads(progress.read_text())["event"]
            told.append((event["stage"], event["step"]))
    assert told == [("memory", 0), ("memory", 0), ("memory", 2), ("warm-up", 0), ("speed", 0)]
    assert read(path) == [], "progress is not history"


def test_following_yields_what_is_there_and_what_comes_and_ends_after_the_rest(path: Path) -> None:
    _write(path, "one", "two")
    seen: list[str | None] = []
    is_over = False
    records = follow(path, poll_s=0.0, should_stop=lambda: is_over, start_seq=1)
    for record in records:
        event = record.event if record is not None else None
        seen.append(event.text if isinstance(event, NoteAdded) else None)
        if seen[-1] is None and not is_over:
            _write(path, "three")
            is_over = True
    assert seen == ["two", None, "three"]


def test_following_waits_for_the_rest_of_a_line(path: Path) -> None:
    _write(path, "one")
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    records = follow(path, poll_s=0.0)
    assert next(records) is None
    path.write_bytes(whole)
    record = next(records)
    assert record is not None
    assert record.event == NoteAdded(text="one")


def test_following_survives_a_writer_that_cuts_a_torn_line_off(path: Path) -> None:
    _write(path, "one", "two, which is torn")
    path.write_bytes(path.read_bytes()[:-5])
    records = follow(path, poll_s=0.0)
    first = next(records)
    assert first is not None
    assert next(records) is None
    _write(path, "three")
    record = next(records)
    assert record is not None
    assert record.event == NoteAdded(text="three")


def test_following_starts_before_there_is_a_journal(path: Path) -> None:
    records = follow(path, path.with_name("progress.json"), poll_s=0.0)
    assert next(records) is None
    _write(path, "one")
    record = next(records)
    assert record is not None
    assert record.seq == 0


def test_progress_is_followed_and_told_once(path: Path) -> None:
    progress = path.with_name("progress.json")
    with Journal(path, progress) as writer:
        writer.append(TrialProgressed(number=0, stage="memory"))
    records = follow(path, progress, poll_s=0.0)
    record = next(records)
    assert record is not None
    assert record.event == TrialProgressed(number=0, stage="memory")
    assert next(records) is None
    progress.unlink()
    assert next(records) is None
    assert journal.PROGRESS_INTERVAL_S == 0.2


def test_following_tells_a_damaged_line_once_others_stand_behind_it(path: Path) -> None:
    _write(path, "one", "two", "three")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\n", b'{"seq": 1, "t_\n']))
    tail = journal.Tail(path)
    assert [record.seq for record in tail.read()] == [0]
    assert (tail.damaged_line, tail.is_at_end) == (None, True)
    with path.open("ab") as file:
        file.write(lines[2])
    assert [record.seq for record in tail.read()] == [2]
    assert tail.damaged_line == 3
    assert tail.read() == []
    path.write_bytes(b"".join(lines))
    path.write_bytes(lines[0])
    assert [record.seq for record in tail.read()] == [0]
    assert tail.damaged_line is None, "another journal is in its place"


def test_a_damaged_line_at_the_end_of_a_slice_does_not_hold_the_reader_up(path: Path) -> None:
    _write(path, "one", "two")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"x" * 5000 + b"\n", lines[1]]))
    tail = journal.Tail(path)
    seqs: list[int] = []
    for _ in range(1000):
        seqs += [record.seq for record in tail.read(100)]
        if tail.is_at_end:
            break
    assert (seqs, tail.damaged_line, tail.is_at_end) == ([0, 1], 2, True)


def test_a_journal_is_missing_where_trials_have_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "one")
    run.create()
    assert journal.missing(run) is None
    run.trial(3).mkdir()
    lost = journal.missing(run)
    assert lost is not None
    assert lost.cause == (
        f"The journal {run.journal} is missing, though trials have run: the directory is damaged."
    )
    run.journal.touch()
    lost = journal.missing(run)
    assert lost is not None
    assert "is empty, though" in lost.cause
    _write(run.journal, "one")
    assert journal.missing(run) is None
