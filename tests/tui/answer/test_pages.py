"""The answer of a run in rows that fit, or what keeps it from having one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.content import Content

from autotune.events import ConfirmationContinued, Event, RunEnded
from autotune.folding import fold
from autotune.outcome import Failed, Stopped
from autotune.run_directory import RunDirectory
from autotune.view import RunView
from tests.testing import runs
from tests.tui import answers, stories
from tui.answer import files, pages, verdict, without
from tui.answer.changes import settings
from tui.answer.read import Answer, answer_of
from tui.run_now import RunNow

RUN = RunDirectory(Path("my runs", "one"))
WIDTHS = (56, 64, 78, 98, 138)


def _joined(rows: Iterable[Content]) -> str:
    return " ".join(" ".join(row.plain for row in rows).split())


def _answer(**options: object) -> Answer:
    found = answer_of(answers.document(**options))  # type: ignore[arg-type]
    assert isinstance(found, Answer)
    return found


def _now(events: list[Event], *, is_alive: bool = False) -> RunNow:
    view = fold(runs.records(events))
    return RunNow(directory=RUN, view=view, is_alive=is_alive, is_read=True)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_row_is_wider_than_its_place(width: int) -> None:
    answer = _answer()
    rows: list[Content] = [
        *pages.head(answer, answers.confirmed(), width),
        *pages.evidence(answer, RunView(confirmed=answers.confirmed()), width),
        *pages.limits(answer, RunView(), width),
        *(pages.offer(o, answer, RunView(), width, is_taken=False) for o in answer.offers),
        *pages.unfinished(_now(stories.searching(), is_alive=True), width),
        *pages.ended(_now(answers.infeasible()), width),
        *pages.ended(_now(stories.searching()), width),
        *pages.changes(answer, answer.offers[0], width),
    ]
    assert [row.plain for row in rows if cell_len(row.plain) > width] == []


def test_the_difference_comes_first() -> None:
    answer = _answer()
    assert verdict.headline(answer, RunView()) == "use 32×2 instead of 8×8"
    text = _joined(pages.head(answer, answers.confirmed(), 138))
    assert text == (
        "speed +67 % (95 %: +62 % to +73 %, 6 pairs): 41.8 samples/s instead of 25.0 "
        "memory peak 3.50 GiB of 4.00 GiB, 12 % free "
        "learning the same global batch of 64: every step trains on the same rows"
    )
    changed = [(c.name, c.before, c.after) for c in settings(runs.BASELINE, runs.TOO_LARGE)]
    assert changed == [
        ("per_device_train_batch_size", "8", "64"),
        ("gradient_accumulation_steps", "8", "1"),
        ("gradient_checkpointing", "off", "every 2nd layer"),
        ("global batch size", "64", "64"),
    ]


def test_ranks_and_averaging_are_changes_too() -> None:
    one = runs.BASELINE
    two = type(one)(micro_batch_size=8, accumulation_steps=4, world_size=2, local_sgd_steps=16)
    changes = {c.name: (c.before, c.after) for c in settings(one, two) if c.is_change}
    assert changes["processes"] == ("1", "2")
    assert changes["local SGD steps"] == ("off", "16")


def test_ties_assumptions_and_keeping_what_there_is() -> None:
    tie = _answer(is_tie=True)
    assert verdict.speed(tie, answers.confirmed(is_tie=True)).startswith("as fast as what you have")
    averaged = _answer(efficiency=0.95)
    assert verdict.learning(averaged).endswith("teaches 95 % (86 to 100 %, assumed)")
    same = _answer(chosen=stories.TRIALS[0][0])
    searched = fold(stories.records(stories.searching()))
    best = "keep 8×8: what you have is the best that was found"
    assert verdict.headline(same, searched) == best
    # Then it is no more than what was there to be measured.
    assert verdict.headline(same, RunView()) == "keep 8×8: nothing else was measured"
    assert verdict.speed(same, None) == "41.8 samples/s (95 %: 41.0 to 42.6)"
    assert "nothing: it is what you have now" in _joined(pages.changes(same, same.offers[0], 78))
    assert verdict.sureness(None) == "not measured again"


def test_what_the_files_set_for_evaluation_is_among_the_changes() -> None:
    for place, first in ((0, "nothing of training: it is what you have now"), (2, "32")):
        document = answers.document(stories.TRIALS[place][0])
        document["recommendation"]["evaluation"] = {"per_device_eval_batch_size": 32}  # type: ignore[index, call-overload]
        answer = answer_of(document)
        assert isinstance(answer, Answer)
        text = _joined(pages.changes(answer, answer.offers[0], 78))
        assert f"{first} " in text
        assert "per_device_eval_batch_size → 32, which touches evaluation only" in text


def test_evidence_names_the_trials_of_the_search() -> None:
    events = [
        *stories.searching(2),
        *runs.trial(7, runs.BEST, runs.measured(41.8, 2 * runs.GIB), "confirm"),
        *runs.trial(8, runs.BASELINE, runs.measured(25.0, runs.GIB), "confirm"),
        replace(answers.confirmed(), number=7, baseline_number=8),
    ]
    view = fold(stories.records(events))
    assert [row[0] for row in verdict.evidence(view)] == [
        "#0 baseline (repeat #8)",
        "#1 chosen (repeat #7)",
    ]
    once = replace(view, confirmed=answers.confirmed())
    assert [row[0] for row in verdict.evidence(once)] == ["#0 baseline", "#2 chosen"]


def test_alternatives_are_held_against_the_answer() -> None:
    answer = _answer()
    rows = [
        pages.offer(one, answer, RunView(), 78, is_taken=one.kind == "least memory").plain
        for one in answer.offers
    ]
    assert [" ".join(row.split()) for row in rows] == [
        "○ the answer 32×2: recommended here",
        "● least memory 16×4: −3.8 % speed, −1.50 GiB memory",
        "○ closest to the baseline 8×8: −40 % speed, −2.50 GiB memory",
    ]


def test_what_the_search_measured_is_held_against_what_the_search_measured() -> None:
    """The answer was measured at 40.0 by the search, and confirmed at 41.8."""
    answer = _answer()
    events = runs.trial(2, answer.configuration, runs.measured(40.0, 3 * runs.GIB))
    view = fold(stories.records([*stories.opening(), *events]))
    least, base = answer.alternatives
    assert verdict.against(least, answer, view) == "+0.5 % speed, −1.50 GiB memory"
    assert verdict.against(base, answer, view) == "−40 % speed, −2.50 GiB memory", "both confirmed"


def test_an_answer_that_cannot_be_read_says_where() -> None:
    document = answers.document()
    document["recommendation"]["measured"] = {}  # type: ignore[index,call-overload]
    found = answer_of(document)
    assert isinstance(found, str)
    assert found.startswith("The recommendation cannot be read (measured")
    assert answer_of(None) is None
    assert answer_of({"recommendation": None}) is None


def test_a_run_in_which_nothing_fits_tells_why_by_count_and_what_would() -> None:
    text = _joined(pages.ended(_now(answers.infeasible()), 138))
    assert text.startswith("✗ None of 12 configurations works: 2 ran out of memory.")
    assert "▲ 2 out of memory" in text
    assert "✗ 1 failed" in text
    assert "nearest to fit #1 1×64, checkpointing every layer needs 1.50 GiB or more" in text
    assert "9 ruled out: micro-batch 8 and more" in text
    assert "recommendation" not in text.replace("recommend", "", 1), "no stations of a search"


def test_an_unfinished_run_tells_what_is_missing() -> None:
    now = _now(stories.searching(), is_alive=True)
    told = {s.what: (s.mark, s.text) for s in without.stations(now.view, is_alive=True)}
    assert told["machine probed"] == ("ok", "Test processor, 2 cores")
    assert told["search"] == ("asking", "9 trials of at most 12")
    assert told["confirmation"] == ("open", "best and baseline again, interleaved")
    leads = "#2 32×2: 41.8 samples/s, +67 % vs baseline; one measurement, not confirmed"
    assert f"leads so far {leads}" in _joined(pages.unfinished(now, 138))
    begun = _now(stories.opening()[:1], is_alive=True)
    assert [s.mark for s in without.stations(begun.view, is_alive=True)] == [
        "asking",
        *["open"] * 6,
    ]


def test_a_killed_run_tells_how_to_go_on() -> None:
    text = _joined(pages.ended(_now(stories.searching()), 138))
    assert text.startswith("✗ The engine is gone")
    assert "autotune tune --resume --name one --run-dir 'my runs' goes on with every" in text
    assert "led so far #2 32×2" in text
    assert "first failure #6: RuntimeError: loss is not finite Try a smaller learning rate." in text
    stopped: Event = RunEnded(reason="stopped", exit_code=130, cause="The run was stopped.")
    assert "The run was stopped." in _joined(pages.ended(_now([*stories.searching(), stopped]), 78))
    assert without.counts(RunView()) == ()
    assert without.leading(RunView()) == without.nearest(RunView()) == ""
    assert without.first_failure(RunNow()) is None


def test_a_remedy_of_the_engine_gets_the_command_that_can_be_pasted() -> None:
    text = _joined(pages.ended(_now([*stories.searching(), *stories.gave_up()]), 138))
    command = "autotune tune --resume --name one --run-dir 'my runs'"
    assert f"finished trials are kept. Go on with: {command}" in text
    remedy = "--resume goes on with every finished trial."
    ended: Event = RunEnded(reason="stopped", exit_code=130, cause="Stopped.", remedy=remedy)
    text = _joined(pages.ended(_now([*stories.searching(), ended]), 138))
    assert f"{command} goes on with every finished trial." in text
    failed = replace(_failed(), remedy=None)
    events = [*stories.opening(), *runs.trial(0, runs.BASELINE, failed)]
    found = without.first_failure(_now(events))
    assert found is not None
    assert found[1] == "autotune trial 'my runs/one' 0 repeats it."


def _failed() -> Failed:
    return next(outcome for _, outcome in stories.TRIALS if isinstance(outcome, Failed))


def test_confirmation_counts_its_measurements() -> None:
    events: list[Event] = [
        *stories.searching(),
        *runs.trial(20, runs.BEST, runs.measured(40.0), "confirm"),
        ConfirmationContinued(num_rounds=1, most_rounds=8, speedup=1.6, speedup_ci95=(1.5, 1.7)),
    ]
    told = {s.what: s.text for s in without.stations(_now(events).view, is_alive=True)}
    assert told["confirmation"] == "1 measurement so far"


def test_repeats_that_were_stopped_have_measured_nothing() -> None:
    stopped = Stopped(cause="Stopped by request.")
    events: list[Event] = [
        *stories.searching(2),
        *runs.trial(20, runs.BEST, stopped, "confirm"),
        *runs.trial(21, runs.BASELINE, stopped, "confirm"),
    ]
    now = _now(events)
    told = {s.what: s.text for s in without.stations(now.view, is_alive=False)}
    assert told["confirmation"] == "nothing measured so far: 2 stopped"
    text = _joined(pages.ended(now, 100))
    assert "✓ 2 measured ⊘ 2 stopped in confirmation: Stopped by request." in text


def test_files_are_previewed_as_they_stand(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_bytes(b"print(1)\n\x1b[31mred\x1b[0m \xff\n")
    file = files.AnswerFile(name="trainer.py", consumer="", verified_with="", path=script)
    assert files.preview(file) == ("print(1)\nred �\n", "python")
    gone = files.AnswerFile(name="x", consumer="", verified_with="", path=tmp_path / "x.md")
    assert "cannot be read: No such file" in files.preview(gone)[0]
    assert files.preview(files.foreseen()[0])[0].startswith("Not written yet.")
    script.write_text("x" * (files.MAX_PREVIEW_BYTES + 5))
    assert files.preview(file)[0].endswith("x\n… the file goes on")
