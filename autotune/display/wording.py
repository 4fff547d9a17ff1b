"""What displays say: a glyph and a word for every state, a line for every event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from autotune import sureness
from autotune.configuration import Configuration
from autotune.display.naming import known_number, repeat
from autotune.display.output import one_line
from autotune.events import (
    BestChanged,
    ConfirmationContinued,
    Confirmed,
    Document,
    Event,
    FilesExported,
    HoldChanged,
    LinkProbed,
    LocalSGDPredicted,
    MachineProbed,
    MemoryForeseen,
    NoiseScaleMeasured,
    NoteAdded,
    ParityChecked,
    ProbeStarted,
    RecommendationMade,
    RegionClosed,
    RunEnded,
    RunStarted,
    SearchEnded,
    SpacePlanned,
    StudyOpened,
    TrialFinished,
    TrialProgressed,
    TrialReceived,
    TrialsAwaited,
    TrialStarted,
    WarningRaised,
    WorkloadLoaded,
)
from autotune.outcome import Failed, Measured, Outcome, OutOfMemory, Stopped, TimedOut
from autotune.sense import possible
from autotune.units import (
    counted,
    format_bytes,
    format_change,
    format_clock,
    format_quantity,
    format_rate,
    format_seconds,
    format_short_time,
)
from autotune.view import RunView, TrialView
from probes.link import Link

GLYPHS: Mapping[str, str] = {
    "measured": "✓",
    "failed": "✗",
    "out_of_memory": "▲",
    "timed_out": "◷",
    "stopped": "⊘",
    "running": "▸",
    "lost": "⊘",
}
WORDS: Mapping[str, str] = {
    "measured": "measured",
    "failed": "failed",
    "out_of_memory": "out of memory",
    "timed_out": "timed out",
    "stopped": "stopped",
    "running": "running",
    "lost": "lost",
}
"""No state is told by its glyph or its colour alone."""


def state(trial: TrialView) -> str:
    """A trial's state with its glyph; the baseline is marked, and another machine named."""
    word = "baseline" if trial.purpose == "baseline" and trial.measured else WORDS[trial.state]
    where = f" on {one_line(trial.origin.host)}" if trial.origin is not None else ""
    return f"{GLYPHS[trial.state]} {word}{where}"


def speedup(trial: TrialView, view: RunView) -> float | None:
    """A trial's rate over that of the baseline's trial, where both were measured in the search.

    Confirmation measures at another time: it is compared with itself, in `confirmation`.
    """
    baseline = view.baseline.measured if view.baseline else None
    if trial.measured is None or baseline is None or trial.purpose in ("confirm", "memory"):
        return None
    if baseline.samples_per_s <= 0:
        return None
    return trial.measured.samples_per_s / baseline.samples_per_s


def outcome(ended: Outcome) -> str:
    """How a trial ended, after its word."""
    match ended:
        case Measured():
            return (
                f"{format_rate(ended.samples_per_s)} samples/s, "
                f"peak {format_bytes(ended.memory.total_bytes)}"
            )
        case OutOfMemory():
            needed = ended.needed_at_least_bytes
            return one_line(ended.cause) + (
                f" (needs at least {format_bytes(needed)})" if needed is not None else ""
            )
        case Failed():
            remedy = f" {one_line(ended.remedy)}" if ended.remedy else ""
            log = f" (log: {ended.log})" if ended.log else ""
            return one_line(ended.cause, max_characters=300) + remedy + log
        case TimedOut():
            return f"after {format_seconds(ended.limit_s)}: {one_line(ended.cause)}"
        case Stopped():
            return one_line(ended.cause)
        case _:
            assert_never(ended)


LOST = "it was running when its engine ended"
"""What there is to say of a trial that never got an outcome."""


def ending_of(trial: TrialView) -> str:
    """How a trial ended, after its word; where it stands, if it has not."""
    if trial.outcome is not None:
        return outcome(trial.outcome)
    return LOST if trial.is_lost else "it runs"


def noise_scale(event: NoiseScaleMeasured) -> str:
    """A noise scale with its interval, in rows."""
    low, high = event.interval
    to = f"to {high:.3g}" if high is not None else "upwards"
    value = "unknown" if event.value is None else f"{event.value:.3g} rows"
    return f"{value} (95 %: {low:.3g} {to}), {event.note}"


def lines(event: Event, view: RunView) -> list[str]:
    """An event in words, one line each; `view` is the run with the event applied."""
    match event:
        case RunStarted():
            return [f"run {event.run} {'goes on' if event.resumed else 'started'}"]
        case ProbeStarted():
            return [f"  probing {one_line(event.probe)} ({event.number} of {event.num_probes})"]
        case MachineProbed():
            stored = ", readings from before" if event.from_store else ""
            return [
                f"✓ machine: {machine(event.machine)}{stored}",
                f"✓ memory limit {format_bytes(event.memory_limit_bytes)} "
                f"({one_line(event.limit_source)}), {format_bytes(event.usable_bytes)} usable",
            ]
        case LinkProbed():
            return [f"✓ {link(event.link)}"]
        case WorkloadLoaded():
            return [f"✓ {workload(event.facts)}, loaded in {format_seconds(event.load_s)}"]
        case ParityChecked():
            if event.holds is None:
                return []
            if event.holds:
                return ["✓ accumulation keeps loss and gradients the same"]
            return [f"▲ {one_line(event.detail)}"]
        case SpacePlanned():
            return [
                f"✓ {counted(len(event.candidates), 'configuration')} to choose from",
                *(
                    f"  ruled out: {one_line(str(out.get('what')))}, "
                    f"{one_line(str(out.get('reason')))}"
                    for out in event.ruled_out
                ),
            ]
        case MemoryForeseen():
            return list(foreseen(event, view))
        case StudyOpened():
            return [study(event)]
        case TrialStarted():
            trial = view.trial(event.number)
            what = f"{trial.configuration}" if trial else ""
            return [f"▸ trial {event.number} {what}: {one_line(event.why)}"]
        case TrialProgressed():
            return [f"  trial {event.number} {progress(event)}"]
        case TrialFinished():
            ended = possible(event.outcome)
            kind = ended.kind
            finished = view.trial(event.number)
            ratio = speedup(finished, view) if finished else None
            change = (
                f", {format_change(ratio)} samples/s"
                if ratio is not None and event.purpose == "search"
                else ""
            )
            return [f"{GLYPHS[kind]} trial {event.number} {WORDS[kind]}: {outcome(ended)}{change}"]
        case TrialReceived():
            ended = possible(event.outcome)
            kind = ended.kind
            received = view.trial(event.number)
            what = f" {received.configuration}" if received else ""
            return [
                f"{GLYPHS[kind]} trial {event.number}{what} {WORDS[kind]} on "
                f"{one_line(event.origin.host)}, by its run {one_line(event.origin.run)}: "
                f"{outcome(ended)}"
            ]
        case TrialsAwaited():
            awaited = ", ".join(str(Configuration.from_json(c)) for c in event.configurations)
            return [f"  waits for {awaited}, tried on {one_line(', '.join(event.hosts))}"]
        case RegionClosed():
            return [
                f"  {event.num_removed} ruled out: {one_line(event.what)}, {one_line(event.reason)}"
            ]
        case LocalSGDPredicted():
            return [f"· {one_line(event.sentence)}"]
        case NoiseScaleMeasured():
            return [f"✓ gradient noise scale {noise_scale(event)}"]
        case BestChanged():
            rate = f"{format_rate(event.samples_per_s)} samples/s"
            return [f"  best is trial {event.number}: {rate}{_lead(event, view)}"]
        case SearchEnded():
            untried = f", {event.num_untried} left untried" if event.num_untried else ""
            return [f"✓ search ended: {one_line(event.reason)}{untried}"]
        case ConfirmationContinued():
            low, high = event.speedup_ci95
            return [
                f"  confirming: {format_change(event.speedup)} (95 %: {format_change(low)} to "
                f"{format_change(high)}) after {event.num_rounds} of at most {event.most_rounds} "
                "rounds"
            ]
        case Confirmed():
            return [f"✓ {confirmation(event, view)}"]
        case RecommendationMade():
            return ["✓ recommendation made"]
        case FilesExported():
            return [
                f"✓ {counted(len(event.files), 'file')} exported to {one_line(event.directory)}"
            ]
        case WarningRaised():
            remedy = f" {one_line(event.remedy)}" if event.remedy else ""
            return [f"▲ {one_line(event.cause)}{remedy}"]
        case HoldChanged():
            return ["⊘ no new trial until this is lifted" if event.held else "▸ trials go on"]
        case NoteAdded():
            return [f"  note: {one_line(event.text)}"]
        case RunEnded():
            return [f"run ended: {ending(event)}"]
        case _:
            assert_never(event)


def _lead(event: BestChanged, view: RunView) -> str:
    """What the best trial gains over the baseline: the figure that stands beside it everywhere.

    The search compares batch by batch, which may come to another one. That is told where a sample
    of the two does not teach alike, as the rates alone say little then.
    """
    trial, baseline = view.trial(event.number), view.baseline
    if trial is None or baseline is None or trial.number == baseline.number:
        return ""
    ratio = speedup(trial, view)
    gained = f", {format_change(ratio)} vs baseline" if ratio is not None else ""
    if event.speedup is None or teach_alike(trial.configuration, baseline.configuration):
        return gained
    return f"{gained}, {format_change(event.speedup)} useful samples/s, compared batch by batch"


def teach_alike(one: Configuration, other: Configuration) -> bool:
    """Whether a sample teaches as much in one configuration as in the other."""
    return (one.local_sgd_steps, one.global_batch_size) == (
        other.local_sgd_steps,
        other.global_batch_size,
    )


_ENDINGS: Mapping[str, str] = {
    "UsageError": "what was asked for cannot work",
    "WorkloadError": "the model or the data cannot be used",
    "DeviceError": "a device is not available",
    "RanksMissingError": "the processes did not come together",
    "WorkerDiedError": "a process of it died",
    "NothingFeasible": "no configuration works",
    "Unconfirmed": "nothing was confirmed in time",
    "ExportError": "a file could not be written",
    "JournalError": "the run directory cannot be read",
}


def ending(event: RunEnded) -> str:
    """Why a run ended, in plain words; the journal has the name of an error."""
    if event.reason.isidentifier() and not event.reason.islower():
        return _ENDINGS.get(event.reason, "it failed")
    return one_line(event.reason)


def run_state(view: RunView, *, is_alive: bool) -> str:
    """running; finished, failed or stopped as its engine said; or killed if it said nothing."""
    if is_alive:
        return "running"
    if view.ended is None:
        return "killed" if view.started is not None else "not started"
    if view.ended.exit_code == 0:
        return "finished"
    return {
        4: "nothing feasible",
        5: "unconfirmed",
        129: "stopped",
        130: "stopped",
        143: "stopped",
    }.get(view.ended.exit_code, "failed")


def clock(view: RunView, t_s: float) -> str:
    """What the run's clock shows, of how much, and in words where that is spent.

    Args:
        view: The run, on which an engine works.
        t_s: Now, in seconds since the run's start.
    """
    worked_s, end_s = view.clock_s(t_s), view.budget_end_s
    if end_s is None or view.stage == "done":
        return format_clock(worked_s)
    if worked_s > end_s:
        return f"{format_clock(end_s)} spent, finishing"
    return f"{format_clock(worked_s)} of {format_clock(end_s)}"


def foreseen(event: MemoryForeseen, view: RunView) -> Iterator[str]:
    """What is predicted of memory, and what cannot be."""
    if event.candidates:
        how = "known from before" if event.from_store else f"in {format_seconds(event.trace_s)}"
        yield (
            f"✓ memory of {counted(len(event.candidates), 'configuration')} predicted from a "
            f"traced step ({how}), nothing of it measured"
        )
    for untraced in event.untraced:
        what, reason = one_line(str(untraced.get("what"))), one_line(str(untraced.get("reason")))
        yield f"▲ {what} could not be traced, trials measure it instead: {reason}"


def study(event: StudyOpened) -> str:
    """Which study is shared, and what others have done in it."""
    where = f"study {event.study} in {one_line(event.storage)}"
    if not event.hosts:
        found = "no trials of others yet"
    else:
        found = f"{counted(event.num_trials, 'finished trial')} of others"
        found += f", {event.num_running} running" if event.num_running else ""
        found += f" ({one_line(', '.join(event.hosts))})"
    return f"✓ {'joined again: ' if event.again else ''}{where}: {found}"


def progress(event: TrialProgressed) -> str:
    """Where the running trial stands."""
    parts = [event.stage]
    if event.step is not None:
        parts.append(f"step {event.step}" + (f"/{event.num_steps}" if event.num_steps else ""))
    if event.samples_per_s is not None:
        parts.append(f"{format_rate(event.samples_per_s)} samples/s")
    if event.memory_bytes is not None:
        parts.append(format_bytes(event.memory_bytes))
    return ", ".join(parts)


def confirmation(event: Confirmed, view: RunView) -> str:
    """What measuring again, interleaved, showed."""
    trial = f"trial {known_number(event.number, view)}{repeat(event.number, view)}"
    low, high = event.speedup_ci95
    rounds = counted(event.num_pairs, "pair")
    change = (
        f"{format_change(event.speedup)} samples/s "
        f"(95 %: {format_change(low)} to {format_change(high)}, {rounds})"
    )
    if event.useful_speedup is not None:
        change += f", {format_change(event.useful_speedup)} useful samples/s"
    if event.baseline_number in (None, event.number):
        told = "" if sureness.is_settled(event) else ", not settled"
        return f"{trial} measured again: {format_rate(event.samples_per_s)} samples/s{told}"
    if not sureness.is_settled(event):
        doubt = sureness.doubt(event.speedup_ci95, settled=event.settled)
        return f"{trial} measured again beside the baseline, {doubt}: {change}"
    if event.is_tie:
        equal = "equally fast" if event.useful_speedup is None else "equally good"
        return f"{trial} and the baseline are {equal}: {change}"
    return f"{trial} confirmed against the baseline: {change}"


def machine(document: Document) -> str:
    """The devices and cores of a machine as it stands in the journal."""
    host = document.get("host")
    cores = host.get("num_cores") if isinstance(host, dict) else None
    devices = document.get("devices")
    names = [
        one_line(str(device.get("name")))
        for device in (devices if isinstance(devices, list) else [])
        if isinstance(device, dict)
    ]
    parts = [", ".join(dict.fromkeys(names)) or "unknown"]
    if isinstance(cores, int | float):
        parts.append(f"{cores:g} core{'' if cores == 1 else 's'}")
    return ", ".join(parts)


def link(found: Link) -> str:
    """What exchanges between ranks cost, and which way they take."""
    parts = [f"link between {found.num_ranks} ranks, {found.backend or 'no backend'}"]
    if found.sizes():
        parts += [
            f"{format_short_time(found.latency_s)} for the smallest all-reduce",
            f"{format_quantity(8 * found.bus_bytes_per_s, 'bit/s')} for large ones",
        ]
    if found.interface is not None:
        parts.append(f"through {one_line(found.interface.name)}")
    return ", ".join(parts)


def workload(facts: Document) -> str:
    """The model and the data, from the facts of a workload."""
    parts = [one_line(str(facts.get("model_class", "model")))]
    num_parameters = facts.get("num_parameters")
    if isinstance(num_parameters, int):
        parts.append(f"{format_rate(num_parameters)} parameters")
    num_rows = facts.get("num_rows")
    parts.append(counted(num_rows, "row") if isinstance(num_rows, int) else "a stream of rows")
    if isinstance(longest := facts.get("tokens_max"), int):
        parts.append(f"longest {counted(longest, 'token')}")
    return ", ".join(parts)
