"""`autotune verify`: do the exported files still hold, and does training still run as promised?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from autotune.cli import documents, options, summary
from autotune.display import output
from autotune.errors import DeviceError, ExitCode, UsageError
from autotune.export import document
from autotune.export.bundle import Bundle
from autotune.outcome import Interval, Speed
from autotune.run_directory import RunDirectory, find
from autotune.units import counted, format_change, format_rate

NUM_STEPS = 20
NUM_WARMUP_STEPS = 2
_START_S = 600.0
"""Time for the script to start and to prepare its data."""


def run(context: typer.Context, chosen: options.Verify) -> int:
    """Runs the command."""
    from autotune import delivery
    from autotune.export import write
    from autotune.export.running.rerun import measure_script, spread_averaging, whole_rounds
    from autotune.search.evidence.statistics import samples_per_s_interval

    directory = find(Path(chosen.run_dir).expanduser(), chosen.run)
    bundle = delivery.bundle_of(directory)
    promised = document.read(bundle.document).recommendation.measured
    place = _exported_to(directory)
    output.talk(f"Reading the files in {place} back through their consumers …")
    files = write.verify(bundle, place)
    if not bundle.has_scripts:
        raise UsageError(
            f"The run {directory.name!r} tuned live objects, so that no script was exported that "
            "could be run.",
            "Use `recommendation.apply(trainer)` in the script or notebook that made them.",
        )
    if bundle.num_nodes > 1:
        raise DeviceError(
            f"The run {directory.name!r} trained on {bundle.num_nodes} nodes, and its speed cannot "
            "be tried on one.",
            "Start trainer.py by the commands in report.md, one on each node.",
        )
    name = "trainer.py" if bundle.driver == "trainer" else "accelerator.py"
    configuration = bundle.configuration
    num_steps = NUM_WARMUP_STEPS + whole_rounds(
        NUM_STEPS - NUM_WARMUP_STEPS, configuration.local_sgd_steps
    )
    ranks = f" on {configuration.world_size} ranks" if configuration.world_size > 1 else ""
    output.talk(f"Training {counted(num_steps, 'step')} with {name}{ranks} …")
    timing = measure_script(
        place / name,
        num_steps=num_steps,
        environment=bundle.launch_environment,
        driver=bundle.driver,
        time_limit_s=_START_S + 10 * num_steps * promised.step_s,
        num_ranks=configuration.world_size,
        device_type=bundle.device_type,
        log=directory.path / "verify.log",
    )
    speed = Speed(
        step_times_s=spread_averaging(
            timing.step_times_s[NUM_WARMUP_STEPS:],
            configuration.local_sgd_steps,
            num_before=NUM_WARMUP_STEPS,
        ),
        step_samples=timing.step_rows[NUM_WARMUP_STEPS:],
        step_tokens=(0,) * (num_steps - NUM_WARMUP_STEPS),
    )
    interval = samples_per_s_interval(speed)
    holds = overlap(interval, promised.samples_per_s_ci95)
    ratio = speed.samples_per_s / promised.samples_per_s
    if chosen.json:
        output.document(
            {
                "schema": documents.SCHEMA,
                "run": directory.name,
                "directory": str(place),
                "files": [asdict(file) for file in files],
                "script": name,
                "world_size": timing.world_size,
                "steps": num_steps,
                "samples_per_s": speed.samples_per_s,
                "samples_per_s_ci95": list(interval),
                "promised": {
                    "samples_per_s": promised.samples_per_s,
                    "samples_per_s_ci95": list(promised.samples_per_s_ci95),
                },
                "ratio": ratio,
                "inside": holds,
            }
        )
    else:
        verdict = "✓ as promised" if holds else "✗ not as promised"
        output.data(
            f"✓ {counted(len(files), 'file')} read back by their consumers\n"
            f"{verdict}: {name} trains{ranks} {_rate(speed.samples_per_s, interval)}, promised "
            f"were {_rate(promised.samples_per_s, promised.samples_per_s_ci95)} "
            f"({format_change(ratio)})"
        )
    if not holds:
        output.talk(_why_perhaps(bundle, directory, ratio))
    return ExitCode.OK if holds else ExitCode.INTERNAL


def _why_perhaps(bundle: Bundle, directory: RunDirectory, ratio: float) -> str:
    """What may lie behind a difference, and the command that tells."""
    told = "faster" if ratio > 1 else "slower"
    hint = f"Hint: This machine itself may be {told} now than when it was tuned."
    known = (t for t in bundle.trials if t.configuration == bundle.configuration)
    trial = next((t for t in known if t.measured is not None and not t.is_repeat), None)
    if trial is None:
        return hint
    command = summary.command(
        "autotune", "trial", directory.name, str(trial.number), *directory.root_options
    )
    return f"{hint} `{command}` measures the same configuration again, without the script."


def overlap(one: Interval, other: Interval) -> bool:
    """Whether two intervals have a point in common."""
    return one[0] <= other[1] and other[0] <= one[1]


def _exported_to(directory: RunDirectory) -> Path:
    exported = documents.view_of(directory).exported
    return Path(exported.directory) if exported is not None else directory.out


def _rate(samples_per_s: float, interval: Interval) -> str:
    low, high = interval
    return (
        f"{format_rate(samples_per_s)} samples/s (95 %: {format_rate(low)} to {format_rate(high)})"
    )
