"""The terminal UI: how soon it is there, how soon it answers, and what it takes from a trial."""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pydantic import JsonValue

from autotune import lease
from autotune.errors import AutotuneError
from autotune.events import RunStarted, record_adapter
from autotune.outcome import Measured, Outcome
from autotune.request import Request
from autotune.run_directory import RunDirectory, write_json
from autotune.search.confirm import steps_per_block
from autotune.search.contestant import Contestant
from autotune.search.engine import Engine
from autotune.search.evidence.finished import FinishedTrial, MeasuredTrial
from autotune.search.evidence.history import History
from autotune.search.evidence.statistics import ratio_of_times
from autotune.search.preparation import Prepared, prepare_job
from autotune.search.session import Session
from autotune.search.trials import TrialResult
from tests.benchmarks.grid import session_of
from tests.benchmarks.harness import (
    Context,
    Reading,
    Report,
    Row,
    Verdict,
    judge_promise,
    say,
)
from tests.benchmarks.jobs import CAUSAL
from tests.testing.terminal import Terminal
from tests.tui import stories

POINTER = "›"
"""Stands before the row of the cursor, and is written whenever the cursor moves."""
FIRST_PICTURE_S = 1.0
LONG_RUN_S = 2.0
NUM_LONG_TRIALS = 5000
KEY_S = 0.15
NUM_KEYS = 200
NUM_EVENTS = 10_000
BYTES_PER_S = 25 * 1024
WIDE = (140, 40)
WITHIN = 0.02
SETTLED_AT = 0.03
NUM_PAIRS = 80
CATCH_UP_S = 0.5
_CLI = "autotune"


def run(context: Context) -> Report:
    """Looks back at finished runs first, then attaches to a run whose trials train."""
    rows = [*_starts(context), *_storm(context), *_bytes(context)]
    details: dict[str, JsonValue] = {}
    say("trains the demo's causal model beside the terminal UI")
    with _trials(context) as trials:
        rows += _keys(context, trials, details)
        rows += _ties(context, trials, details)
    return Report(rows=tuple(rows), details=details)


def _shown(run: RunDirectory, size: tuple[int, int] = (100, 30)) -> Terminal:
    terminal = Terminal(run.path.parent, "", "tui", str(run.path), module=_CLI, size=size)
    terminal.read_until(POINTER)
    return terminal


def _leave(terminal: Terminal) -> None:
    """Leaves a run as it is, whether it goes on or not."""
    with contextlib.closing(terminal):
        terminal.type("q")
        terminal.read_for(0.3)
        with contextlib.suppress(OSError):
            terminal.type("d")
        terminal.wait()


# How soon it is there.


def _starts(context: Context) -> Iterator[Row]:
    run = stories.make(context.directory / "terminal-short", "finished")
    num = 2 if context.quick else 20
    say("opens a finished run, again and again")
    pictures_s, contents_s = [], []
    for _ in range(num):
        start_s = time.perf_counter()
        terminal = Terminal(run.path.parent, "", "tui", str(run.path), module=_CLI)
        terminal.read_until(stories.NAME)
        pictures_s.append(time.perf_counter() - start_s)
        terminal.read_until(POINTER)
        contents_s.append(time.perf_counter() - start_s)
        assert not _has_torch(terminal.process), "the terminal UI loaded torch"
        _leave(terminal)
    picture = Reading.of_samples(pictures_s, "s")
    yield Row(
        what="the first picture of `autotune tui RUN`, without torch",
        reading=picture,
        target=f"median below {FIRST_PICTURE_S} s",
        verdict=_below(picture, FIRST_PICTURE_S),
    )
    yield Row(what="its trials", reading=Reading.of_samples(contents_s, "s"))
    yield _long_run(context)


def _long_run(context: Context) -> Row:
    run = stories.write(context.directory / "terminal-long", stories.many_trials(NUM_LONG_TRIALS))
    say(f"opens a run of {NUM_LONG_TRIALS} trials")
    seconds = []
    for _ in range(1 if context.quick else 7):
        start_s = time.perf_counter()
        terminal = Terminal(run.path.parent, "", "tui", str(run.path), module=_CLI)
        terminal.read_until(f"{NUM_LONG_TRIALS} trials")
        seconds.append(time.perf_counter() - start_s)
        _leave(terminal)
    reading = Reading.of_samples(seconds, "s")
    return Row(
        what=f"a run of {NUM_LONG_TRIALS} trials, from the command to its table",
        reading=reading,
        target=f"median below {LONG_RUN_S} s",
        verdict=_below(reading, LONG_RUN_S),
    )


def _has_torch(process: int) -> bool:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return any("libtorch" in Path(f"/proc/{child}/maps").read_text() for child in children)


def _below(reading: Reading, limit: float) -> Verdict:
    return "passed" if reading.value < limit else "failed"


# How soon it answers.


def _press(terminal: Terminal, key: str) -> float:
    """Seconds from a key to what it changed on the screen."""
    before = len(terminal.bytes)
    start_s = time.perf_counter()
    terminal.type(key)
    terminal.read_until(POINTER, after=before)
    return time.perf_counter() - start_s


def _storm(context: Context) -> Iterator[Row]:
    """Keys while events arrive by the thousand."""
    events = [*stories.searching(), *stories.running_trial()]
    run = stories.write(context.directory / "terminal-storm", events, alive=True)
    lines = [
        record_adapter().dump_json(record) + b"\n"
        for record in stories.records(stories.trials_from(20, NUM_EVENTS // 2), len(events))
    ]
    terminal = _shown(run)
    terminal.read_for(1.0)
    say(f"writes {len(lines)} events in a second")
    writer = threading.Thread(target=_write_within_a_second, args=(run, lines))
    writer.start()
    end_s = time.perf_counter() + 2.0
    seconds: list[float] = []
    while time.perf_counter() < end_s:
        seconds.append(_press(terminal, "jk"[len(seconds) % 2]))
        terminal.read_for(0.02)
    writer.join()
    _leave(terminal)
    slowest = Reading(
        value=max(seconds),
        low=min(seconds),
        high=max(seconds),
        num=len(seconds),
        unit="s",
        spread="range",
    )
    yield Row(
        what=f"the slowest key while {NUM_EVENTS} events arrive in a second",
        reading=slowest,
        target=f"below {KEY_S} s",
        verdict=_below(slowest, KEY_S),
    )


def _write_within_a_second(run: RunDirectory, lines: Sequence[bytes]) -> None:
    num_slices = 20
    start_s = time.perf_counter()
    for number in range(num_slices):
        with run.journal.open("ab") as file:
            file.writelines(_part(lines, number, num_slices))
        time.sleep(max(0.0, start_s + (number + 1) / num_slices - time.perf_counter()))


def _part(lines: Sequence[bytes], number: int, num: int) -> Sequence[bytes]:
    size = len(lines) // num
    return lines[number * size : (number + 1) * size]


def _bytes(context: Context) -> Iterator[Row]:
    """What a wide terminal is sent while a trial reports five times a second."""
    events = stories.on_accelerator([*stories.searching(), *stories.running_trial()])
    run = stories.write(
        context.directory / "terminal-bytes", events, latest=stories.progress(), alive=True
    )
    terminal = _shown(run, WIDE)
    terminal.read_for(1.0)
    duration_s = 3.0 if context.quick else 20.0
    say("counts what a wide terminal is sent")
    before, start_s = len(terminal.bytes), time.perf_counter()
    step = 0
    while time.perf_counter() - start_s < duration_s:
        step += 1
        stories.show_progress(run, stories.progress(step=step), seq=len(events))
        terminal.read_for(0.2)
    per_s = (len(terminal.bytes) - before) / (time.perf_counter() - start_s)
    _leave(terminal)
    reading = Reading(value=per_s, low=per_s, high=per_s, num=1, unit="bytes", spread="range")
    yield Row(
        what="sent to a terminal of 140x40 in each second of a trial that is shown live",
        reading=reading,
        target="at most 25 KiB",
        verdict=_below(reading, BYTES_PER_S),
    )


# Beside real trials.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """Real trials of one configuration, as an engine runs them, in a run that can be watched."""

    session: Session
    job: Prepared
    engine: Engine

    def one(self) -> FinishedTrial:
        """Runs the baseline once more."""
        # A configuration that is known is never asked for again: so nothing is known.
        self.engine.history = _nothing_known(self.job)
        return self.engine.run(self.job.space.baseline, "search", "measured again and again")

    def continued(self) -> _Continued:
        """The same in a process that trains on."""
        return _Continued(self.engine, self.one())


@contextlib.contextmanager
def _trials(context: Context) -> Iterator[_Trials]:
    request = Request(workload=CAUSAL.spec())
    with session_of(context, "terminal-trials") as session:
        write_json(session.run.request, {})
        write_json(session.run.lease, asdict(lease.mine()))
        session.emit(
            RunStarted(
                run=session.run.name,
                created_unix_s=time.time(),
                request={},
                versions={},
                process=lease.mine().process,
                host=lease.mine().host,
            )
        )
        with prepare_job(session, request) as job:
            if job is None:
                raise AutotuneError("Preparing the trials was stopped.")
            trials = _Trials(
                session=session,
                job=job,
                engine=Engine(session, job.pool, _nothing_known(job), job.plan, 0),
            )
            # Two rows are there for the cursor to move between.
            trials.one()
            trials.one()
            yield trials


def _nothing_known(job: Prepared) -> History:
    return History(space=job.space, usable_bytes=job.usable_bytes)


@contextlib.contextmanager
def _training(trials: _Trials) -> Iterator[None]:
    """Trains on all cores, one trial after another, for as long as this is entered."""
    ended = threading.Event()

    def train() -> None:
        while not ended.is_set():
            trials.one()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _keys(context: Context, trials: _Trials, details: dict[str, JsonValue]) -> Iterator[Row]:
    num = 10 if context.quick else NUM_KEYS
    say(f"presses {num} keys beside a trial, and as many in an empty application")
    ours: list[float] = []
    theirs: list[float] = []
    with _training(trials):
        terminal = _shown(trials.session.run)
        empty = Terminal(context.directory, "", module="tests.benchmarks.empty_app")
        empty.read_until("Help")
        for key in range(num):
            for pressed, seconds in ((terminal, ours), (empty, theirs)):
                pressed.read_for(0.05)
                seconds.append(_press(pressed, "jk"[key % 2]))
        _leave(terminal)
        _leave(empty)
    details["keys_s"] = list(ours)
    details["keys_of_an_empty_application_s"] = list(theirs)
    slow = _slow_end(ours)
    yield Row(
        what="a key on the screen while a trial trains on all cores, 95th percentile",
        reading=slow,
        target=f"below {KEY_S} s",
        verdict=_below(slow, KEY_S),
    )
    yield Row(what="the same in an empty Textual application", reading=_slow_end(theirs))


def _slow_end(seconds: Sequence[float]) -> Reading:
    """The 95th percentile with the range of all."""
    return Reading(
        value=statistics.quantiles(seconds, n=20, method="inclusive")[-1],
        low=min(seconds),
        high=max(seconds),
        num=len(seconds),
        unit="s",
        spread="range",
    )


def _ties(context: Context, trials: _Trials, details: dict[str, JsonValue]) -> Iterator[Row]:
    """Steps of one process, while the UI that is attached to its run works and while it rests.

    Two processes of one configuration differ by some per cent for as long as they live, which is
    more than what is looked for here.
    """
    num_pairs = 2 if context.quick else NUM_PAIRS
    say(f"trains {2 * num_pairs} blocks of steps, the terminal UI stopped in every other one")
    watched: list[float] = []
    alone: list[float] = []
    with contextlib.closing(trials.continued()) as trial, _read(trials.session.run) as terminal:
        block_steps = steps_per_block(trial.measured_before.speed.step_s, is_forked=False)
        trial.begin()
        for pair in range(num_pairs):
            for is_watched in (pair % 2 == 0, pair % 2 == 1):
                with contextlib.nullcontext() if is_watched else _stopped(terminal):
                    # What it missed while it was stopped it shows before anything is timed.
                    time.sleep(CATCH_UP_S)
                    (watched if is_watched else alone).append(trial.block(block_steps))
        trial.end()
    details["watched_s_per_sample"], details["alone_s_per_sample"] = [*watched], [*alone]
    ratio = ratio_of_times(watched, alone)
    yield Row(
        what="samples/s of a trial with the terminal UI attached, over that with the UI stopped",
        reading=Reading.of_ratio(ratio),
        target=f"1 within {WITHIN * 100:g} %",
        verdict=judge_promise(ratio, within=WITHIN, settled_at=SETTLED_AT),
    )


class _Continued:
    """A trial that trains on and on in one process, a block of steps at a time."""

    def __init__(self, engine: Engine, trial: FinishedTrial) -> None:
        if not isinstance(trial.outcome, Measured):
            raise AutotuneError(f"A trial was not measured: {json.dumps(str(trial.outcome))}")
        self.measured_before = trial.outcome
        self._engine = engine
        self._contestant = Contestant(
            engine=engine,
            number=engine.take_number(),
            trial=MeasuredTrial(
                number=trial.number,
                purpose=trial.purpose,
                configuration=trial.configuration,
                measured=trial.outcome,
            ),
            stays=True,
            is_forked=False,
            is_baseline=False,
        )

    def begin(self) -> None:
        """Has its process ready, and says that the trial begins."""
        self._contestant.announce()
        self._contestant.launch()
        self._must_hold(self._contestant.enter())

    def block(self, num_steps: int) -> float:
        """Seconds per sample of the next steps."""
        self._must_hold(self._contestant.block(num_steps))
        return self._contestant.s_per_sample[-1]

    def end(self) -> None:
        """Writes it down."""
        made, steps_s = self._contestant, self._contestant.steps_s
        result = TrialResult(
            outcome=made.measured(), wall_s=made.wall_s, overhead_s=made.wall_s - steps_s
        )
        self._engine.finished(made.number, made.configuration, "confirm", result)

    def close(self) -> None:
        """Ends its process."""
        self._contestant.close()

    def _must_hold(self, fault: Outcome | None) -> None:
        if fault is not None:
            raise AutotuneError(f"A trial did not hold: {json.dumps(str(fault))}")


@contextlib.contextmanager
def _read(run: RunDirectory) -> Iterator[Terminal]:
    """The run on a terminal that somebody reads: another would hold up whoever writes to it."""
    terminal = _shown(run)
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            terminal.read_for(0.2)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield terminal
    finally:
        ended.set()
        reader.join()
        _leave(terminal)


@contextlib.contextmanager
def _stopped(terminal: Terminal) -> Iterator[None]:
    """The UI does nothing at all meanwhile."""
    processes = psutil.Process(terminal.process).children(recursive=True)
    assert processes, "the UI is a child of the command line"
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()
