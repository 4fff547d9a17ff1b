"""Reading a run directory again and again, each time only what is new."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from textual.message import Message

from autotune import journal
from autotune.display import standing
from autotune.display.quiet import is_quiet
from autotune.errors import JournalError
from autotune.events import NoteAdded, record_adapter
from autotune.folding import fold
from autotune.journal import Tail
from autotune.run_directory import RunDirectory
from tests.testing import runs
from tests.tui import stories
from tui import words
from tui.bridge import RunChanged, watch_run
from tui.last_words import last_words
from tui.run_now import NUM_LINES, RunNow, RunReader
from tui.trials import copying


def read_all(reader: RunReader) -> RunNow:
    for _ in range(10_000):
        reader.look()
        if reader.now.is_read:
            return reader.now
    raise AssertionError("the journal has no end")


def test_the_reader_tells_what_folding_the_journal_tells(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    now = read_all(RunReader(run))
    assert now.view == fold(journal.read(run.journal))
    assert now.form == "finished"
    assert now.num_records == stories.num_events("finished")
    assert now.lines[-1].text == "run ended: recommendation made"


def test_a_look_reads_what_is_new_and_nothing_tells_of_nothing(tmp_path: Path) -> None:
    run = stories.write(tmp_path, stories.searching(2), alive=True)
    reader = RunReader(run)
    before = read_all(reader)
    assert reader.look() is None
    stories.append(run, stories.running_trial(), first_seq=before.num_records)
    now = reader.look()
    assert now is not None
    assert now.num_records == before.num_records + 1
    assert now.view.running is not None
    assert now.view.trials[:2] == before.view.trials


def test_a_line_that_is_not_whole_waits_for_its_end(tmp_path: Path) -> None:
    run = stories.write(tmp_path, stories.searching(1), alive=True)
    reader = RunReader(run)
    before = read_all(reader)
    whole = run.journal.read_bytes()
    stories.append(run, stories.running_trial(), first_seq=before.num_records)
    line = run.journal.read_bytes()[len(whole) :]
    run.journal.write_bytes(whole + line[:20])
    assert reader.look() is None
    with run.journal.open("ab") as file:
        file.write(line[20:])
    now = reader.look()
    assert now is not None
    assert now.view.running is not None


def test_a_run_that_starts_over_is_read_from_its_start(tmp_path: Path) -> None:
    run = stories.write(tmp_path, stories.searching())
    reader = RunReader(run)
    assert len(read_all(reader).view.trials) == len(stories.TRIALS)
    run.journal.rename(run.journal.with_suffix(".old"))
    stories.append(run, stories.searching(1))
    now = reader.look()
    assert now is not None
    assert [trial.number for trial in now.view.trials] == [0]
    assert not any("trial 5" in line.text for line in now.lines)


def test_forms_and_words_of_a_run(tmp_path: Path) -> None:
    assert RunNow().form == "empty"
    told = {}
    for form in stories.FORMS:
        now = read_all(RunReader(stories.make(tmp_path / form, form)))
        told[form] = (now.form, now.state, now.is_gone)
    assert told == {
        "empty": ("empty", "not started", False),
        "running": ("running", "running", False),
        "failed": ("failed", "killed", True),
        "finished": ("finished", "finished", False),
    }
    gave_up = stories.write(tmp_path, [*stories.searching(), *stories.gave_up()], name="gave-up")
    now = read_all(RunReader(gave_up))
    assert (now.form, now.state) == ("failed", "unconfirmed")


def test_progress_alone_brings_no_lines_and_no_records(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "running")
    reader = RunReader(run)
    before = read_all(reader)
    stories.show_progress(run, stories.progress(step=5), seq=before.num_records)
    now = reader.look()
    assert now is not None
    assert now.view.progress is not None
    assert now.view.progress.step == 5
    assert (now.num_records, now.lines) == (before.num_records, before.lines)


def test_a_long_journal_is_read_in_slices_and_keeps_the_last_words(tmp_path: Path) -> None:
    run = stories.write(tmp_path, stories.many_trials(400))
    reader = RunReader(run)
    first = reader.look()
    assert first is not None
    assert not first.is_read
    assert not first.lines
    now = read_all(reader)
    assert len(now.view.trials) == 400
    assert len(now.lines) <= NUM_LINES
    assert "trial 399" in now.lines[-1].text


def test_a_directory_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.journal.mkdir(parents=True)
    now = RunReader(run).look()
    assert now is not None
    assert now.trouble is not None
    assert now.trouble.cause == f"{run.journal} cannot be read: Is a directory."
    assert now.form == "failed"


def damage(run: RunDirectory, number: int) -> None:
    """Puts something in the place of a line, counted from 1, that is none."""
    lines = run.journal.read_bytes().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1][:30] + b"\n"
    run.journal.write_bytes(b"".join(lines))


def test_a_damaged_line_is_told_and_hides_no_other(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    whole = read_all(RunReader(run))
    damage(run, 12)
    with pytest.raises(JournalError) as refused:
        journal.read(run.journal)
    reader = RunReader(run)
    now = read_all(reader)
    assert now.trouble is not None
    assert (now.trouble.cause, now.trouble.remedy) == (refused.value.cause, refused.value.remedy)
    assert last_words(now, 0)[-1] == f"  next   autotune tui {run.called}"
    assert now.trouble.what == "journal damaged"
    assert (now.state, now.num_records) == ("finished", whole.num_records - 1)
    assert reader.look() is None, "it is no news a second time"
    assert words.state(now) == "✓ finished, journal damaged"
    assert words.what_ended_it(now)[0].startswith(f"Line 12 of {run.journal}")
    (lost,) = (trial for trial in now.view.trials if trial.state == "lost")
    assert (
        copying.outcome(lost, now)
        .splitlines()[0]
        .endswith("lost, nothing tells how it ended, and the journal is damaged")
    )


def test_a_last_line_that_makes_no_sense_waits_for_the_writer_that_cuts_it_off(
    tmp_path: Path,
) -> None:
    run = stories.write(tmp_path, stories.searching(2))
    reader = RunReader(run)
    before = read_all(reader)
    good = run.journal.read_bytes()
    with run.journal.open("ab") as file:
        file.write(b'{"seq": 99, "t_\n')
    assert reader.look() is None
    assert read_all(RunReader(run)).trouble is None, "so it is for who reads it first"
    # As a new engine does: it cuts, and writes at once.
    run.journal.write_bytes(good)
    stories.append(run, stories.running_trial(), first_seq=before.num_records)
    now = reader.look()
    assert now is not None
    assert (now.trouble, now.num_records) == (None, before.num_records + 1)
    with run.journal.open("ab") as file:
        file.write(b"\0\0\0\n")
        file.write(record_adapter().dump_json(stories.records([NoteAdded(text="on")], 40)[0]))
        file.write(b"\n")
    now = reader.look()
    assert now is not None
    assert now.trouble is not None
    assert now.trouble.cause.startswith(f"Line {before.num_records + 2} of ")
    assert [note.text for note in now.view.notes] == ["on"]


def test_an_event_that_makes_no_sense_is_told_as_long_as_it_stands_there(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    text = run.journal.read_text()
    run.journal.write_text(text.replace('"micro_batch_size":16', '"micro_batch_size":0'))
    reader = RunReader(run)
    now = read_all(reader)
    for _ in range(3):
        reader.look()
    assert reader.now.trouble == now.trouble is not None
    assert "makes no sense: micro_batch_size must be at least 1" in now.trouble.cause
    assert {trial.number for trial in now.view.trials} >= {0, 2, 3}
    assert now.state == "finished"


def test_progress_that_cannot_be_read_loses_no_event(tmp_path: Path) -> None:
    run = stories.write(tmp_path, stories.searching(2))
    run.progress.mkdir()
    now = read_all(RunReader(run))
    assert (len(now.view.trials), now.trouble) == (2, None)


def test_a_journal_that_is_missing_is_told_from_one_that_is_not_there_yet(tmp_path: Path) -> None:
    run = stories.write(tmp_path, [])
    now_s = run.request.stat().st_mtime

    def look(age_s: float) -> RunNow:
        return read_all(RunReader(run, unix_time=lambda: now_s + age_s))

    assert (look(1).state, look(1).form) == ("not started", "empty")
    run.engine_log.touch()
    assert (look(1).state, look(1).form) == ("starting", "empty")
    assert "being started" in words.no_trials(look(1))
    late = look(standing.START_PATIENCE_S + 1)
    assert (late.state, late.form) == ("killed", "failed")
    cause, remedy = words.what_ended_it(late)
    assert cause == "The engine is gone: it ended before its first word."
    assert remedy.startswith(f"{run.engine_log} may say why; autotune tune --resume --name ")
    stories.come_alive(run)
    assert (look(1).state, words.running(look(1))) == ("running", "the engine starts")
    run.lease.unlink()
    run.trial(0).mkdir()
    for what, prepare in (("empty", run.journal.touch), ("missing", run.journal.unlink)):
        prepare()
        now = look(1)
        assert now.trouble is not None
        assert f"The journal {run.journal} is {what}, though trials have run" in now.trouble.cause
        assert (now.form, now.state) == ("failed", "damaged")
        assert words.state(now) == "✗ journal missing"
        assert now.trouble.cause in words.no_trials(now)


def test_a_directory_that_is_gone_says_so_and_keeps_what_was_read(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "running")
    reader = RunReader(run, monotonic=itertools.count().__next__)
    read_all(reader)
    shutil.rmtree(run.path)
    now = reader.look()
    assert now is not None
    assert words.state(now) == "✗ directory gone"
    assert words.what_ended_it(now)[0] == f"The run's directory {run.path} is gone."
    assert words.how_to_go_on(now) == ""
    assert len(now.view.trials) == len(stories.TRIALS) + 1


def test_what_ran_when_its_engine_was_killed_is_lost_and_runs_no_more(tmp_path: Path) -> None:
    events = [*stories.searching(), *stories.running_trial()]
    run = stories.write(tmp_path, events, latest=stories.progress(stage="speed"), alive=True)
    reader = RunReader(run, monotonic=itertools.count().__next__)
    alive = read_all(reader)
    assert alive.view.running is not None
    assert is_quiet(alive.view)
    run.lease.unlink()
    now = reader.look()
    assert now is not None
    assert (now.view.running, now.view.progress, is_quiet(now.view)) == (None, None, False)
    assert now.view.trials[-1].state == "lost"
    assert now.view.num_search_trials == len(stories.TRIALS)
    reader.look()
    assert reader.now.view is now.view, "the same as long as nothing happens"
    # Another engine takes the run up: the trial is as good as never begun.
    stories.come_alive(run)
    again = [runs.started(run.name, resumed=True), *stories.running_trial()]
    stories.append(run, again, first_seq=now.num_records)
    now = reader.look()
    assert now is not None
    assert now.view.running is not None
    assert [trial.state for trial in now.view.trials].count("lost") == 0


def test_an_error_that_nobody_thought_of_is_told_and_ends_no_thread(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "finished")
    posted: list[RunNow] = []

    def post(message: Message) -> None:
        assert isinstance(message, RunChanged)
        posted.append(message.now)

    with patch("tui.run_now.fold", side_effect=KeyError("odd")):
        watch = watch_run(run, post)
        watch.open()
        try:
            deadline_s = time.monotonic() + 30
            while not posted:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
        finally:
            watch.close()
    assert posted[0].trouble is not None
    assert "KeyError: 'odd'" in posted[0].trouble.cause
    assert posted[0].is_read


def test_news_of_one_run_never_stands_for_news_of_another(tmp_path: Path) -> None:
    one, other = (RunNow(directory=RunDirectory(tmp_path / name)) for name in ("one", "other"))
    assert RunChanged(one).can_replace(RunChanged(one))
    assert not RunChanged(one).can_replace(RunChanged(other))


def test_a_tail_takes_a_line_that_is_longer_than_a_slice(tmp_path: Path) -> None:
    run = stories.write(tmp_path, stories.searching())
    whole = Tail(run.journal).read()
    tail = Tail(run.journal)
    pieces = []
    while not tail.is_at_end:
        pieces += tail.read(50)
    assert pieces == whole
