from __future__ import annotations

import io
import itertools
import re
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autotune.display import DisplayName, rich, wording
from autotune.display.base import choose
from autotune.display.none import NoDisplay
from autotune.display.plain import PlainDisplay
from autotune.display.rich import REPAINT_INTERVAL_S, RichDisplay
from autotune.events import (
    BestChanged,
    Confirmed,
    Event,
    HoldChanged,
    NoteAdded,
    Origin,
    ProbeStarted,
    RegionClosed,
    RunEnded,
    StudyOpened,
    TrialFinished,
    TrialProgressed,
    TrialReceived,
    TrialsAwaited,
    TrialStarted,
    WarningRaised,
)
from autotune.folding import fold
from autotune.outcome import Failed, Stopped, TimedOut
from autotune.view import RunView, without_engine
from tests.testing import runs

ODD = "[bold]not markup[/bold] [/x]\x1b[2J\rsecond\nline \x1b]0;title\x07漢字"
STORY: list[Event] = [
    *runs.searching("one"),
    *runs.trial(3, runs.BEST, Failed(cause=ODD, remedy="Look.", log="trials/003/log")),
    *runs.trial(4, runs.BEST, TimedOut(limit_s=90.0, cause="it hung")),
    *runs.trial(5, runs.BEST, Stopped(cause="Stopped by request.")),
    RegionClosed(
        what="micro-batch 64 and up", reason="out of memory at 64", num_removed=3, trial=2
    ),
    WarningRaised(cause=ODD, remedy="Do something."),
    HoldChanged(held=True),
    NoteAdded(text=ODD),
    StudyOpened(
        study="demo-1",
        storage="sqlite:///s.db",
        num_trials=2,
        num_running=1,
        hosts=("a", "b"),
        again=False,
    ),
    TrialReceived(
        number=6,
        purpose="search",
        configuration=runs.BEST.to_json(),  # type: ignore[arg-type]
        outcome=runs.measured(39.0),
        origin=Origin(host="node2", run=ODD, run_id="r", number=3),
    ),
    TrialsAwaited(configurations=(runs.BEST.to_json(),), hosts=("node2",)),  # type: ignore[arg-type]
    runs.foreseen({"what": "evaluation", "reason": ODD}),
]


def _show(display: PlainDisplay | RichDisplay, events: Sequence[Event]) -> RunView:
    view = RunView()
    display.open()
    for record in runs.records(events):
        view = fold([record], view)
        display.show(record, view)
    display.close()
    return view


def _plain_lines(capsys: pytest.CaptureFixture[str], events: Sequence[Event]) -> list[str]:
    _show(PlainDisplay(), events)
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_plain_writes_one_line_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert _plain_lines(capsys, runs.searching("one")) == [
        "00:00 run one started",
        "00:01 ✓ machine: Test processor, 2 cores",
        "00:01 ✓ memory limit 4.00 GiB (--memory-limit), 3.80 GiB usable",
        "00:02 ✓ GPT2LMHeadModel, 1.20M parameters, 812 rows, longest 128 tokens, loaded in 2.50 s",
        "00:03 ✓ accumulation keeps loss and gradients the same",
        "00:04 ✓ 3 configurations to choose from",
        "00:04   ruled out: local SGD steps above 1, one process",
        "00:05 ▸ trial 0 8×8: it is next",
        "00:06 ✓ trial 0 measured: 25.0 samples/s, peak 1.00 GiB",
        "00:07 ▸ trial 1 16×4: it is next",
        "00:08 ✓ trial 1 measured: 40.0 samples/s, peak 2.00 GiB, +60 % samples/s",
        "00:09   best is trial 1: 40.0 samples/s, +60 % vs baseline",
        "00:10 ▸ trial 2 64×1, checkpointing every 2nd layer: it is next",
        "00:11 ▲ trial 2 out of memory: the limit of 4.00 GiB (needs at least 5.00 GiB)",
    ]


def test_plain_never_writes_codes_and_never_wraps(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _plain_lines(capsys, STORY)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", "\n".join(lines))
    assert "00:13 ✗ trial 3 failed: second line 漢字 Look. (log: trials/003/log)" in lines
    assert "00:15 ◷ trial 4 timed out: after 1:30 min: it hung" in lines
    assert "00:17 ⊘ trial 5 stopped: Stopped by request." in lines
    assert "00:18   3 ruled out: micro-batch 64 and up, out of memory at 64" in lines


def test_plain_tells_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _plain_lines(capsys, [*runs.opening("one"), *runs.ending("one", Path("out"))])
    assert [line[6:] for line in lines[-5:]] == [
        "✓ search ended: every candidate was tried",
        "✓ trial 1 confirmed against the baseline: +60 % samples/s (95 %: +50 % to +70 %, 6 pairs)",
        "✓ recommendation made",
        "✓ 2 files exported to out",
        "run ended: recommendation made",
    ]


def test_plain_writes_progress_every_five_seconds_at_most(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("autotune.display.plain.time.monotonic", lambda: now_s)
    display = PlainDisplay()
    view = fold(runs.records([*runs.opening("one"), _start(0)]))
    for step in range(100):
        now_s = step * 0.2
        record = runs.records(
            [TrialProgressed(number=0, stage="memory", step=step, num_steps=100)]
        )[0]
        display.show(record, view)
    assert capsys.readouterr().err.splitlines() == [
        "00:00   trial 0 memory, step 25/100",
        "00:00   trial 0 memory, step 50/100",
        "00:00   trial 0 memory, step 75/100",
    ]


def _start(number: int) -> TrialStarted:
    event = runs.trial(number, runs.BASELINE, runs.measured(1.0))[0]
    assert isinstance(event, TrialStarted)
    return event


def test_every_state_has_a_glyph_and_a_word() -> None:
    view = fold(runs.records([*STORY, _start(6)]))
    assert wording.state(without_engine(view).trials[-1]) == "⊘ lost"
    assert [wording.state(trial) for trial in view.trials] == [
        "✓ baseline",
        "✓ measured",
        "▲ out of memory",
        "✗ failed",
        "◷ timed out",
        "⊘ stopped",
        "▸ running",
    ]


def _console(width: int, height: int, file: io.StringIO | None = None) -> Console:
    return Console(
        file=file or io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        markup=False,
        highlight=False,
        legacy_windows=False,
    )


def _picture(width: int, height: int, events: Sequence[Event] = STORY) -> list[str]:
    view = fold(runs.records(events))
    said = deque([("00:01 something", ""), ("00:02 " + "long " * 50, "")], maxlen=4)
    console = _console(width, height)
    with console.capture() as captured:
        console.print(rich.panel(view, said, width, height))
    return re.sub(r"\x1b\[[0-9;]*m", "", captured.get()).splitlines()


@pytest.mark.parametrize(("width", "height"), [(140, 40), (80, 24), (60, 16), (40, 10), (20, 6)])
def test_no_line_is_wider_than_the_terminal_and_best_and_now_are_in_sight(
    width: int, height: int
) -> None:
    lines = _picture(width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) < height
    assert lines[1].startswith("best  #1")
    assert lines[2].startswith("now   ")


def test_the_panel_shows_best_now_memory_and_trials_fastest_first() -> None:
    lines = _picture(100, 30, [*runs.searching("one"), _start(3)])
    assert re.search(r"autotune  one +searching · trial 4 of 12 · \d\d:\d\d of 01:00", lines[0])
    assert lines[1].rstrip() == "best  #1  16×4  40.0 samples/s  +60 % vs baseline"
    assert lines[2].rstrip() == "now   #3  8×8"
    assert lines[3].rstrip() == "mem   " + "█" * 20 + "░" * 20 + " 2.00 GiB of 4.00 GiB"
    assert lines[5].split()[:4] == ["#", "state", "configuration", "samples/s"]
    assert [line.split()[0] for line in lines[6:10]] == ["3", "1", "0", "2"]
    assert lines[9].split() == [
        *("2", "▲", "out", "of", "memory", "64×1,", "checkpointing", "every", "2nd", "layer"),
        *("–", "–", "–", "–"),
    ]


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    text = io.StringIO()
    display = RichDisplay(_console(100, 30, text), clock=itertools.count().__next__)
    _show(display, [*runs.opening("one"), WarningRaised(cause="[bold]word[/bold] [/x]")])
    assert "[bold]word[/bold] [/x]" in text.getvalue()


def test_the_panel_says_that_it_rests_before_speed_is_measured() -> None:
    warming = TrialProgressed(number=3, stage="warm-up", step=1, num_steps=2)
    lines = _picture(100, 30, [*runs.searching("one"), _start(3), warming])
    assert lines[2].rstrip() == "now   #3  8×8  warm-up, step 1/2  (this panel rests meanwhile)"


def test_rich_repaints_at_most_twice_a_second_and_only_when_called() -> None:
    now_s = 0.0
    text = io.StringIO()
    display = RichDisplay(_console(100, 30, text), clock=lambda: now_s)
    view = fold(runs.records(runs.searching("one")))
    display.open()
    sizes = []
    for tenth in range(50):
        now_s = tenth / 10
        display.tick(view)
        sizes.append(len(text.getvalue()))
    repaints = sum(after > before for before, after in zip([0, *sizes], sizes, strict=False))
    assert repaints == 5 / REPAINT_INTERVAL_S
    display.close()
    assert text.getvalue().endswith("\x1b[1A\x1b[2K")
    assert "\x1b[?25h" in text.getvalue()
    assert "\x1b[?1049h" not in text.getvalue()


def test_rich_survives_a_terminal_that_hangs_up() -> None:
    class Gone(io.StringIO):
        is_gone = False

        def write(self, text: str) -> int:
            if self.is_gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    file = Gone()
    display = RichDisplay(_console(100, 30, file))
    display.open()
    display.tick(RunView())
    file.is_gone = True
    before = file.getvalue()
    _show(display, runs.searching("one"))
    display.say("nobody")
    display.close()
    assert before, "it drew while the terminal was there"
    assert file.getvalue() == before


@pytest.mark.parametrize(
    ("wanted", "is_terminal", "variables", "kind"),
    [
        ("auto", True, {}, RichDisplay),
        ("auto", False, {}, PlainDisplay),
        ("auto", True, {"TERM": "dumb"}, PlainDisplay),
        ("auto", True, {"CI": "1"}, PlainDisplay),
        ("rich", True, {"CI": "1"}, RichDisplay),
        ("rich", False, {"FORCE_COLOR": "1"}, PlainDisplay),
        ("rich", True, {"TERM": "dumb"}, PlainDisplay),
        ("plain", True, {}, PlainDisplay),
        ("none", True, {}, NoDisplay),
    ],
)
def test_the_display_fits_the_terminal(
    wanted: DisplayName,
    is_terminal: bool,
    variables: dict[str, str],
    kind: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    assert type(choose(wanted)) is kind


def test_a_finished_trial_that_was_never_seen_to_start_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    finished = [e for e in runs.searching("one") if isinstance(e, TrialFinished)]
    assert len(_plain_lines(capsys, finished)) == 3


def test_trials_of_others_are_told_with_their_host_and_the_study_with_what_is_in_it() -> None:
    view = fold(runs.records(STORY))
    told = {record.event.kind: wording.lines(record.event, view) for record in runs.records(STORY)}
    assert told["study_opened"] == [
        "✓ study demo-1 in sqlite:///s.db: 2 finished trials of others, 1 running (a, b)"
    ]
    (received,) = told["trial_received"]
    assert received.startswith("✓ trial 6 16×4 measured on node2, by its run ")
    assert received.endswith(": 39.0 samples/s, peak 1.00 GiB")
    probe = ProbeStarted(probe="copies", number=4, num_probes=5, readings=())
    assert wording.lines(probe, view) == ["  probing copies (4 of 5)"]
    assert told["trials_awaited"] == ["  waits for 16×4, tried on node2"]
    predicted, untraced = told["memory_foreseen"]
    assert predicted == (
        "✓ memory of 3 configurations predicted from a traced step (in 2.50 s), nothing of it "
        "measured"
    )
    assert untraced.startswith("▲ evaluation could not be traced, trials measure it instead: ")
    trial = view.trial(6)
    assert trial is not None
    assert wording.state(trial) == "✓ measured on node2"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("UsageError", "what was asked for cannot work"),
        ("NothingFeasible", "no configuration works"),
        ("Unconfirmed", "nothing was confirmed in time"),
        ("OddError", "it failed"),
        ("internal error", "internal error"),
        ("finished", "finished"),
        ("stopped", "stopped"),
    ],
)
def test_the_end_of_a_run_is_told_in_plain_words(reason: str, words: str) -> None:
    assert wording.lines(RunEnded(reason=reason, exit_code=1), RunView()) == [f"run ended: {words}"]


def test_useful_samples_are_told_where_samples_teach_less() -> None:
    confirmed = next(e for e in runs.ending("one", Path("out")) if isinstance(e, Confirmed))
    weighed = replace(
        confirmed,
        num_pairs=1,
        is_tie=True,
        useful_speedup=0.95,
        useful_speedup_ci95=(0.9, 1.1),
    )
    assert wording.confirmation(weighed, RunView()) == (
        "trial 1 and the baseline are equally good: +60 % samples/s (95 %: +50 % to +70 %, 1 pair),"
        " −5.0 % useful samples/s"
    )


def test_the_best_gains_by_the_same_figure_everywhere() -> None:
    """The search compares batch by batch, and comes to another one than the two rates."""
    best = BestChanged(number=1, samples_per_s=40.0, speedup=1.62)
    story = [e for e in runs.searching("one") if not isinstance(e, BestChanged)]
    view = fold(runs.records([*story, best]))
    assert wording.lines(best, view) == ["  best is trial 1: 40.0 samples/s, +60 % vs baseline"]
    assert "+60 % vs baseline" in _picture(100, 30, [*story, best])[1]
    larger = replace(runs.BEST, accumulation_steps=8)
    view = fold(runs.records([*story, *runs.trial(3, larger, runs.measured(50.0))]))
    assert wording.lines(replace(best, number=3, samples_per_s=50.0), view) == [
        "  best is trial 3: 50.0 samples/s, +100 % vs baseline, +62 % useful samples/s, "
        "compared batch by batch"
    ]
    first = BestChanged(number=0, samples_per_s=25.0, speedup=1.0)
    assert wording.lines(first, view) == ["  best is trial 0: 25.0 samples/s"]
