"""Sentences about a run that several screens say."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from autotune import sureness
from autotune.configuration import Configuration
from autotune.display import wording
from autotune.display.output import one_line
from autotune.display.quiet import is_quiet
from autotune.events import Confirmed, TrialProgressed
from autotune.units import format_bytes, format_change, format_clock, format_rate
from tui import bindings
from tui.run_now import RunNow
from tui.trials import readings
from tui.trials.columns import checkpointing

Tone: TypeAlias = str
"""Name of a style of the theme that underlines what glyph and word say: `$text-success`, …"""

TONES: dict[str, Tone] = {
    "measured": "$text-success",
    "failed": "$text-error",
    "out_of_memory": "$text-warning",
    "timed_out": "$text-warning",
    "stopped": "$text-muted",
    "running": "$text-primary",
    "lost": "$text-warning",
}

STATE_GLYPHS = {
    "running": "▸",
    "finished": "✓",
    "failed": "✗",
    "killed": "✗",
    "stopped": "⊘",
    "nothing feasible": "✗",
    "unconfirmed": "▲",
    "not started": "·",
    "starting": "·",
}


def state(now: RunNow) -> str:
    """The run's state with its glyph, and where it stands if it runs."""
    if now.directory is None:
        return "· nothing chosen"
    if not now.is_read:
        return "· reading"
    word = now.state
    if word == "running" and now.view.stage != "new":
        word = now.view.stage
    if word == "killed":
        word = "the engine is gone"
    if now.trouble is None:
        return f"{STATE_GLYPHS.get(now.state, '·')} {word}"
    if not now.is_alive and (now.view.started is None or now.trouble.what == "directory gone"):
        return f"✗ {now.trouble.what}"
    return f"{STATE_GLYPHS.get(now.state, '·')} {word}, {now.trouble.what}"


def state_tone(now: RunNow) -> Tone:
    """The style that goes with `state`."""
    if now.trouble is not None:
        return "$text-error"
    if now.is_alive:
        return "$text-primary"
    return {"empty": "$text-muted", "finished": "$text-success"}.get(now.form, "$text-error")


def trial_count(now: RunNow) -> str:
    """How many trials of how many; empty before the first."""
    view = now.view
    if not view.trials:
        return ""
    most = view.budget_trials
    if most and view.space is not None:
        # More than there are cannot be tried.
        most = min(most, max(len(view.space.candidates), view.num_search_trials))
    of = f"/{most}" if most else ""
    return f"trial {view.num_search_trials}{of}"


def spent_s(now: RunNow, now_unix_s: float) -> float | None:
    """Seconds worked on the run, by all its engines; of a run that ended, till then."""
    view = now.view
    if view.started is None:
        return None
    return view.clock_s(_since_start_s(now, now_unix_s))


def _since_start_s(now: RunNow, now_unix_s: float) -> float:
    """Seconds since the run's start, as its records count them; of a run that ended, till then."""
    view = now.view
    return max(0.0, now_unix_s - view.created_unix_s) if now.is_alive else view.now_s


def clock(now: RunNow, now_unix_s: float) -> str:
    """Time worked, of how much; empty before the start."""
    spent = spent_s(now, now_unix_s)
    if spent is None:
        return ""
    if now.is_alive:
        return wording.clock(now.view, _since_start_s(now, now_unix_s))
    return format_clock(spent)


def time_left(now: RunNow, now_unix_s: float) -> str:
    """When the budget will have been spent; empty where that says nothing."""
    spent, end_s = spent_s(now, now_unix_s), now.view.budget_end_s
    if spent is None or end_s is None or not now.is_alive or now.view.stage == "done":
        return ""
    return f"{format_clock(end_s - spent)} left" if spent <= end_s else ""


def what_ended_it(now: RunNow) -> tuple[str, str]:
    """Cause and remedy of a run that did not finish, or that cannot be read; else empty.

    A command in a remedy can be pasted into the shell that this program was started from.
    """
    if now.directory is None or now.is_alive:
        return "", ""
    if now.trouble is not None:
        return one_line(now.trouble.cause), one_line(now.trouble.remedy)
    command = now.directory.resume_command
    if now.is_gone and now.view.started is None:
        cause = "The engine is gone: it ended before its first word."
        return cause, f"{now.directory.engine_log} may say why; {command} tries again."
    resume = f"{command} goes on with every finished trial."
    if now.is_gone:
        return "The engine is gone: it ended without a word.", resume
    ended = now.view.ended
    if ended is None or ended.exit_code == 0:
        return "", ""
    cause = one_line(ended.cause or f"The run ended: {ended.reason}.")
    return cause, _with_command(one_line(ended.remedy or resume), command)


def _with_command(remedy: str, command: str) -> str:
    """A remedy of the engine, which does not know from where its run is looked at."""
    if "--resume" not in remedy or command in remedy:
        return remedy
    named = remedy.replace("--resume goes on", f"{command} goes on")
    return named if named != remedy else f"{remedy} Go on with: {command}"


def what_to_do(now: RunNow) -> str:
    """What a reader should do about a run; while it goes on, also why. Empty where nothing is."""
    if now.is_alive and now.trouble is not None:
        return one_line(f"{now.trouble.cause} {now.trouble.remedy}")
    return what_ended_it(now)[1]


def how_to_go_on(now: RunNow) -> str:
    """The command that goes on with a run that ended early; empty where there is none."""
    if now.directory is None or now.form != "failed" or now.trouble is not None:
        return ""
    return "" if now.state == "nothing feasible" else now.directory.resume_command


def lost(now: RunNow) -> str:
    """Why a trial of a run has no outcome and never will."""
    if now.trouble is not None and now.trouble.what == "journal damaged":
        return "nothing tells how it ended, and the journal is damaged"
    return wording.LOST


def best(now: RunNow, width: int | None = None) -> str:
    """The best trial and what it gains; what was confirmed counts more than the search.

    Args:
        now: The run.
        width: Cells there are; what says least is left out where not all fits.
    """
    view = now.view
    confirmed, trial = view.confirmed, readings.best(view)
    if confirmed is not None:
        number = f"#{trial.number}" if trial else ""
        splitting = short(trial.configuration) if trial else ""
        rate = f"{format_rate(confirmed.samples_per_s)} samples/s {readings.signed(confirmed)}"
        gained, interval = _gained(confirmed)
        choices = (
            (number, splitting, rate, f"{gained} {interval}".rstrip()),
            (number, splitting, rate, gained),
            (number, rate, gained),
            (rate, gained),
        )
        told = ["  ".join(part for part in parts if part) for parts in choices]
        return next((one for one in told if width is None or len(one) <= width), told[-1])
    if trial is None or trial.measured is None:
        return "none yet"
    rate = f"{format_rate(trial.measured.samples_per_s)} samples/s"
    ratio = readings.gain(trial, view)
    change = f"  {format_change(ratio)} vs baseline" if ratio is not None else ""
    peak = format_bytes(trial.measured.memory.total_bytes)
    return f"#{trial.number}  {short(trial.configuration)}  {rate}{change}  peak {peak}"


def _gained(confirmed: Confirmed) -> tuple[str, str]:
    """What was gained over the baseline, and its interval; empty where nothing is compared."""
    if confirmed.baseline_number in (None, confirmed.number):
        return "", ""
    low, high = confirmed.speedup_ci95
    interval = f"(95 %: {format_change(low)} to {format_change(high)})"
    change = format_change(confirmed.speedup)
    if not sureness.is_settled(confirmed):
        # Before the interval is narrow, nothing is known to be a tie.
        return f"{change} or none" if confirmed.is_tie else change, interval
    return "a tie" if confirmed.is_tie else change, interval


def running(now: RunNow) -> str:
    """What the engine does at the moment, or how the run ended."""
    view = now.view
    if not now.is_alive:
        cause, _ = what_ended_it(now)
        if cause:
            return cause
        if now.directory is None:
            return "no run is chosen"
        if now.beginning == "starting":
            return "the engine is being started"
        if now.form != "finished":
            return "waiting for an engine"
        return f"done: {bindings.shown('go.export')} shows what to use and its files"
    trial = view.running
    if trial is None:
        return {"new": "the engine starts", "done": "the engine ends"}.get(view.stage, view.stage)
    is_resting = is_quiet(view)
    where = f"  {_progress(view.progress, is_resting)}" if view.progress else ""
    rests = "  (timed: the screen rests)" if is_resting else ""
    return f"#{trial.number}  {short(trial.configuration)}{where}{rests}"


def _progress(progress: TrialProgressed, is_resting: bool) -> str:
    """Where the trial stands; its memory has a row of its own.

    Args:
        progress: The newest there is.
        is_resting: Whether the screen rests; a count of steps would seem to have stopped there.
    """
    shown = replace(progress, memory_bytes=None)
    return wording.progress(replace(shown, step=None) if is_resting else shown)


def short(configuration: Configuration) -> str:
    """A configuration in few characters: `16×4`, `16×4 ckpt 2nd`, `8×2×2 ranks`."""
    parts = [f"{configuration.micro_batch_size}×{configuration.accumulation_steps}"]
    if configuration.world_size > 1:
        parts.append(f"×{configuration.world_size} ranks")
    if configuration.checkpointing.is_on:
        parts.append(f" ckpt {checkpointing(configuration.checkpointing)}")
    if configuration.local_sgd_steps > 1:
        parts.append(f" sgd {configuration.local_sgd_steps}")
    return "".join(parts)


def no_trials(now: RunNow) -> str:
    """Why there are no trials to show."""
    cause, remedy = what_ended_it(now)
    if cause:
        return f"There was no trial.\n{cause}\n{remedy}"
    if now.directory is None:
        setup, opens = bindings.shown("go.setup"), bindings.shown("setup.open")
        return f"No run is chosen. {setup} sets one up, and {opens} there opens one."
    if now.beginning == "starting" and not now.is_alive:
        return "No trials yet.\nThe engine is being started, and has told nothing so far."
    if not now.is_alive:
        return "The run has not begun. An engine that takes it up is shown here at once."
    stage = {
        "new": "The engine starts.",
        "probing": "The machine is being measured, or known readings are being looked up.",
        "loading": "Model and data are being loaded and checked.",
    }.get(now.view.stage, "The first trial is about to begin.")
    return f"No trials yet.\n{stage}"


def how_to_call(now: RunNow) -> str:
    """What to write for RUN in a command."""
    return now.directory.called if now.directory is not None else now.name
