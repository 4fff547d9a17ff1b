"""Run directories in the four forms, from real events with times that do not depend on the day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

from autotune import lease
from autotune import request as requests
from autotune.configuration import Checkpointing, Configuration
from autotune.events import (
    BestChanged,
    Event,
    MachineProbed,
    Record,
    RegionClosed,
    RunEnded,
    RunStarted,
    SpacePlanned,
    TrialProgressed,
    TrialStarted,
    record_adapter,
)
from autotune.outcome import Failed, Outcome, OutOfMemory, Phases, Purpose, Stopped, TimedOut
from autotune.run_directory import RunDirectory, write_json
from tests.testing import runs
from tui.run_now import Form

FORMS: tuple[Form, ...] = get_args(Form)
NAME = "minilm-20260102-1"
START_UNIX_S = 1_767_312_000.0
GIB = runs.GIB


def configuration(
    micro_batch_size: int, accumulation_steps: int, every_n_layers: int | None = None
) -> Configuration:
    return Configuration(
        micro_batch_size=micro_batch_size,
        accumulation_steps=accumulation_steps,
        checkpointing=Checkpointing(every_n_layers=every_n_layers),
    )


def measured(samples_per_s: float, total_bytes: int) -> Outcome:
    phases = Phases(data_s=0.02, forward_s=0.31, backward_s=0.62, optimizer_s=0.05)
    return replace(runs.measured(samples_per_s, total_bytes), phases=phases)


TRIALS: tuple[tuple[Configuration, Outcome], ...] = (
    (configuration(8, 8), measured(25.0, GIB)),
    (configuration(16, 4), measured(40.2, 2 * GIB)),
    (configuration(32, 2), measured(41.8, 3 * GIB + GIB // 2)),
    (
        configuration(64, 1),
        OutOfMemory(
            where="host",
            cause="the limit of 4.00 GiB was reached in the backward pass",
            needed_at_least_bytes=5 * GIB,
            limit_bytes=4 * GIB,
        ),
    ),
    (configuration(64, 1, 2), measured(33.0, 2 * GIB + GIB // 2)),
    (configuration(64, 1, 1), measured(30.9, 2 * GIB)),
    (
        configuration(4, 16),
        Failed(
            cause="RuntimeError: loss is not finite",
            remedy="Try a smaller learning rate.",
            log="trials/006/output.log",
        ),
    ),
    (configuration(2, 32), TimedOut(limit_s=30.0, cause="three times as slow as the baseline")),
    (configuration(1, 64), Stopped(cause="Stopped by request; the run goes on.")),
)


CANDIDATES = (
    *(choice for choice, _ in TRIALS),
    *(configuration(mbs, 64 // mbs, every) for mbs, every in ((16, 2), (16, 1), (32, 2))),
)
"""Whatever there is to try."""


def opening() -> list[Event]:
    """Up to the first trial, at a fixed time and with a fixed machine."""
    started, *events, space = runs.opening(NAME)
    assert isinstance(started, RunStarted)
    assert isinstance(space, SpacePlanned)
    candidates = tuple(choice.to_json() for choice in CANDIDATES)
    return [
        replace(started, created_unix_s=START_UNIX_S),
        *events,
        replace(space, candidates=candidates),  # type: ignore[arg-type]
    ]


def searching(num_trials: int = len(TRIALS)) -> list[Event]:
    """Opening and some trials with all five outcomes."""
    events = opening()
    for number, (choice, outcome) in enumerate(TRIALS[:num_trials]):
        purpose = "baseline" if number == 0 else "search"
        events += runs.trial(number, choice, outcome, purpose)  # type: ignore[arg-type]
        if number in (1, 2):
            rate = outcome.samples_per_s  # type: ignore[union-attr]
            events.append(BestChanged(number=number, samples_per_s=rate, speedup=rate / 25.0))
        if number == 3:
            events.append(
                RegionClosed(
                    what="micro-batch 64 without checkpointing",
                    reason="trial 3 ran out of memory",
                    num_removed=1,
                    trial=3,
                )
            )
    return events


def trials_from(number: int, num: int) -> list[Event]:
    """So many further trials, with all outcomes by turns."""
    events: list[Event] = []
    for place in range(number, number + num):
        choice, outcome = TRIALS[place % len(TRIALS)]
        events += runs.trial(place, choice, outcome)
    return events


def many_trials(num: int) -> list[Event]:
    """A whole search of so many trials."""
    return [*searching(), *trials_from(len(TRIALS), num - len(TRIALS))]


def running_trial(purpose: Purpose = "search") -> list[Event]:
    """A trial that has begun."""
    document = configuration(16, 4, 2).to_json()
    return [
        TrialStarted(
            number=len(TRIALS),
            purpose=purpose,
            configuration=document,  # type: ignore[arg-type]
            why="neighbour of the best",
        )
    ]


def progress(
    *,
    stage: str = "memory",
    step: int = 4,
    number: int = len(TRIALS),
    samples_per_s: float = 36.9,
) -> TrialProgressed:
    return TrialProgressed(
        number=number,
        stage=stage,
        step=step,
        num_steps=10,
        samples_per_s=samples_per_s,
        memory_bytes=3 * GIB,
    )


def finishing(root: Path) -> list[Event]:
    return runs.ending(NAME, root / "out")


def gave_up() -> list[Event]:
    """The run ended, and not well."""
    return [
        RunEnded(
            reason="Unconfirmed",
            exit_code=5,
            cause="The budget ended before the best configuration was confirmed.",
            remedy="Give more with --budget and --resume; finished trials are kept.",
        )
    ]


def on_accelerator(events: Sequence[Event]) -> list[Event]:
    """The same story on a machine that draws with another processor than it trains on."""
    changed: list[Event] = []
    for event in events:
        if isinstance(event, MachineProbed):
            machine = dict(event.machine)
            machine["devices"] = [{"kind": "cuda", "name": "Test accelerator"}]
            event = replace(event, machine=machine)
        changed.append(event)
    return changed


def write(
    root: Path,
    events: Sequence[Event],
    *,
    latest: TrialProgressed | None = None,
    alive: bool = False,
    name: str = NAME,
) -> RunDirectory:
    """A run directory whose journal tells the events, two seconds apart."""
    run = RunDirectory(root / name)
    run.create()
    requests.save(runs.demo_request(), run)
    append(run, events)
    if latest is not None:
        show_progress(run, latest, seq=len(events))
    if alive:
        come_alive(run)
    return run


def append(run: RunDirectory, events: Sequence[Event], *, first_seq: int = 0) -> None:
    """Writes events behind those that are there, as an engine does."""
    with run.journal.open("ab") as file:
        for record in records(events, first_seq):
            file.write(record_adapter().dump_json(record) + b"\n")


def records(events: Sequence[Event], first_seq: int = 0) -> list[Record]:
    """The events as records, two seconds apart."""
    return [
        Record(seq=seq, t_s=2.0 * seq, event=event)
        for seq, event in enumerate(events, start=first_seq)
    ]


def show_progress(run: RunDirectory, latest: TrialProgressed, *, seq: int) -> None:
    record = Record(seq=seq, t_s=2.0 * seq + 1, event=latest)
    run.progress.write_bytes(record_adapter().dump_json(record))


def come_alive(run: RunDirectory) -> None:
    """This process stands for the engine: it is alive for as long as the test."""
    write_json(run.lease, asdict(lease.mine()))


def make(root: Path, form: Form) -> RunDirectory:
    """A run in one of the forms; `failed` is one whose engine was killed."""
    match form:
        case "empty":
            return write(root, [])
        case "running":
            events = [*searching(), *running_trial()]
            run = write(root, events, latest=progress(), alive=True)
        case "failed":
            run = write(root, searching())
        case "finished":
            run = write(root, [*searching(), *finishing(root)])
    for number in range(len(TRIALS)):
        log = run.trial(number) / "output.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"trial {number} says hello\n")
    return run


def num_events(form: Form) -> int:
    """Events of `make`, to know which number comes next."""
    extra = {"empty": 0, "failed": 0, "running": 1, "finished": 5}[form]
    return 0 if form == "empty" else len(searching()) + extra
