"""Reading a run directory again and again, each time only what is new."""

from __future__ import annotations

from pathlib import Path

from autotune import journal
from autotune.journal import Tail
from autotune.run_directory import RunDirectory
from autotune.view import fold
from tests.tui import stories
from tui.run_now import NUM_LINES, RunNow, RunReader


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
    run = stories.write(tmp_path, stories.searching(2))
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
    run = stories.write(tmp_path, stories.searching(1))
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
    assert now.error is not None
    assert "directory" in now.error


def test_a_tail_takes_a_line_that_is_longer_than_a_slice(tmp_path: Path) -> None:
    run = stories.write(tmp_path, stories.searching())
    whole = Tail(run.journal).read()
    tail = Tail(run.journal)
    pieces = []
    while not tail.is_at_end:
        pieces += tail.read(50)
    assert pieces == whole
