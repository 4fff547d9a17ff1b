"""The options of every command, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.declare import PATH, option
from autotune.cli.workload_options import DTYPES, ESTIMATED_TASKS, TRAINING, WORKLOAD, Workload
from autotune.display import DISPLAYS

if TYPE_CHECKING:
    from autotune.request import Driver, SamplerName

SAMPLERS: tuple[SamplerName, ...] = ("auto", "tpe", "gp", "random", "grid")
DRIVERS: tuple[Driver, ...] = ("trainer", "accelerate")
ALTERNATIVES = ("fastest", "least memory", "closest to the baseline")

GOAL = "Goal and budget"
SEARCH = "Search"
RUN = "The run"
OUTPUT = "Output"
DEVICE = "The device"


@dataclass(frozen=True, kw_only=True)
class Json:
    """Results as JSON."""

    json: Annotated[
        bool,
        option("--json", "Print one JSON document on stdout.", panel=OUTPUT),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Where runs are kept."""

    run_dir: Annotated[
        str,
        option(
            "--run-dir",
            "Directory that holds all runs; autotune-runs by default.",
            panel=RUN,
            metavar="DIR",
        ),
        PATH,
    ] = "autotune-runs"


@dataclass(frozen=True, kw_only=True)
class Display:
    """How progress is shown."""

    display: Annotated[
        str,
        option(
            "--display",
            "How progress is shown on stderr: a live panel on a terminal, plain lines off it.",
            panel=OUTPUT,
            choices=DISPLAYS,
        ),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class OneRun(Runs):
    """One run by its name."""

    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's name, its directory, or last for the newest.",
            show_default=False,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a recommended configuration must keep, and what finding it may cost."""

    global_batch_size: Annotated[
        str | None,
        option(
            "--global-batch-size",
            "Samples per optimizer step; by default the baseline's. With a range, or auto, the "
            "best for learning per second is chosen.",
            panel=GOAL,
            metavar="N|LOW..HIGH|auto",
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        option(
            "--memory-limit",
            "Memory that the training process may occupy, for example 6GiB; "
            "by default what the machine has free.",
            panel=GOAL,
            metavar="SIZE",
        ),
    ] = None
    total_steps: Annotated[
        int | None,
        option(
            "--total-steps",
            "Optimizer steps of the training to come.",
            panel=GOAL,
            metavar="N",
        ),
    ] = None
    budget: Annotated[
        str | None,
        option(
            "--budget",
            "Time for measuring, confirmation included; 10m by default. Files come after it.",
            panel=GOAL,
            metavar="TIME",
        ),
    ] = None
    trials: Annotated[
        int | None,
        option(
            "--trials",
            "Most trials of the search; 40 by default.",
            panel=GOAL,
            metavar="N",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Processes:
    """How many ranks train."""

    processes: Annotated[
        int,
        option("--processes", "Training processes; 1 by default.", panel=SEARCH, metavar="N"),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class Search(Processes):
    """How the search goes about it."""

    local_sgd: Annotated[
        str,
        option(
            "--local-sgd",
            "Optimizer steps between two averagings over processes: auto, off or a number.",
            panel=SEARCH,
            metavar="auto|off|N",
        ),
    ] = "auto"
    driver: Annotated[
        str,
        option(
            "--driver",
            "Whose training loop the trials run; trainer by default.",
            panel=SEARCH,
            choices=DRIVERS,
        ),
    ] = "trainer"
    sampler: Annotated[
        str,
        option(
            "--sampler",
            "Who proposes the next trial; auto is a fixed order around the baseline.",
            panel=SEARCH,
            choices=SAMPLERS,
        ),
    ] = "auto"
    seed: Annotated[int, option("--seed", "Seed of the sampler.", panel=SEARCH, metavar="N")] = 0
    storage: Annotated[
        str | None,
        option(
            "--storage",
            "A database URL that Optuna takes; by default a file of the run. Several machines "
            "share one study: start the same job with the same URL on each, for example "
            "postgresql+psycopg://user@host/database. Like machines then try each candidate once; "
            "unlike ones never mix.",
            panel=SEARCH,
            metavar="URL",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Out:
    """Where files are exported to."""

    out: Annotated[
        str | None,
        option(
            "--out",
            "Directory for the exported files; by default out in the run's directory.",
            panel=OUTPUT,
            metavar="DIR",
        ),
        PATH,
    ] = None
    force: Annotated[bool, option("--force", "Overwrite files of another run.", panel=OUTPUT)] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class Plan(Json, Display, Out, Runs, Search, Goal, Workload):
    """A whole job: everything that `tune` and `plan` have in common."""

    name: Annotated[
        str | None,
        option(
            "--name",
            "Name of the run; by default model, date and a counter.",
            panel=RUN,
        ),
    ] = None
    resume: Annotated[
        bool,
        option(
            "--resume",
            "Go on with a run that was stopped: that of --name, or the newest of this job, which "
            "stays as it was but for --budget, --trials, --out and --storage.",
            panel=RUN,
        ),
    ] = False
    fresh: Annotated[
        bool,
        option("--fresh", "Start over where --name exists already.", panel=RUN),
    ] = False
    detach: Annotated[
        bool,
        option("--detach", "Start the run, say its name, and do not wait.", panel=RUN),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Tune(Plan):
    """Options of `tune`."""

    dry_run: Annotated[
        bool,
        option("--dry-run", "Show the plan and run nothing, as plan does.", panel=RUN),
    ] = False
    tui: Annotated[
        bool,
        option(
            "--tui",
            "Show the run in the terminal UI; off a terminal in plain lines, as without it.",
            panel=OUTPUT,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Tui(Out, Runs, Search, Goal, Workload):
    """Options of `tui`: those of a job fill the form in."""

    name: Annotated[str | None, option("--name", "Name of the run to set up.", panel=RUN)] = None

    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's name, its directory, or last for the newest; without one, set up a job.",
            show_default=False,
        ),
    ] = None
    theme: Annotated[
        str,
        option("--theme", "Colours of the screen.", panel=OUTPUT, choices=("dark", "light")),
    ] = "dark"
    ascii: Annotated[
        bool, option("--ascii", "Show nothing but ASCII characters.", panel=OUTPUT)
    ] = False
    no_mouse: Annotated[
        bool, option("--no-mouse", "Leave the mouse to the terminal.", panel=OUTPUT)
    ] = False


@dataclass(frozen=True, kw_only=True)
class Probe(Json, Processes):
    """Options of `probe`."""

    fresh: Annotated[
        bool,
        option("--fresh", "Measure again although nothing changed.", panel=SEARCH),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Estimate(Json, Processes, Workload):
    """Options of `estimate`."""

    task: Annotated[
        str | None,
        option(
            "--task",
            "What the model learns; by default what columns and model suggest.",
            panel=WORKLOAD,
            choices=ESTIMATED_TASKS,
        ),
    ] = None
    dtype: Annotated[
        str,
        option(
            "--dtype",
            "Number format of the weights; by default what the installed transformers makes of "
            "the model's config.",
            panel=TRAINING,
            choices=DTYPES,
        ),
    ] = "auto"
    device: Annotated[
        str | None,
        option(
            "--device",
            "A device that need not be here, by its name: RTX 4090, A100 80GB, MI300X; cpu for "
            "training without one. This machine's own by default.",
            panel=DEVICE,
            metavar="NAME",
        ),
    ] = None
    device_memory: Annotated[
        str | None,
        option(
            "--device-memory",
            "Memory that the training process may occupy on the device, for example 24GiB.",
            panel=DEVICE,
            metavar="SIZE",
        ),
    ] = None
    global_batch_size: Annotated[
        str | None,
        option(
            "--global-batch-size",
            "Samples per optimizer step over all processes; without one number, accumulation is "
            "left open, and two micro-batches a step are taken.",
            panel=DEVICE,
            metavar="N|LOW..HIGH|auto",
        ),
    ] = None
    local_sgd: Annotated[
        str,
        option(
            "--local-sgd",
            "Optimizer steps between two averagings over processes: auto, off or a number.",
            panel=DEVICE,
            metavar="auto|off|N",
        ),
    ] = "auto"
    picture: Annotated[
        str | None,
        option("--picture", "File for a picture of the answer.", panel=OUTPUT, metavar="FILE.svg"),
        PATH,
    ] = None
    fresh: Annotated[
        bool,
        option("--fresh", "Trace again although the answer is kept.", panel=OUTPUT),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ListRuns(Json, Runs):
    """Options of `runs`."""


@dataclass(frozen=True, kw_only=True)
class Show(Json, Display, OneRun):
    """Options of `show`."""

    follow: Annotated[
        bool,
        option("--follow", "Watch the run until it ends.", panel=OUTPUT),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Export(Json, Out, OneRun):
    """Options of `export`."""

    alternative: Annotated[
        str | None,
        option(
            "--alternative",
            "Export an alternative of the recommendation instead, by its kind.",
            panel=OUTPUT,
            metavar="KIND",
            choices=ALTERNATIVES,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Verify(Json, OneRun):
    """Options of `verify`."""


@dataclass(frozen=True, kw_only=True)
class Trial(Json, OneRun):
    """Options of `trial`."""

    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="Number of the trial.", show_default=False)
    ]


@dataclass(frozen=True, kw_only=True)
class Doctor(Json):
    """Options of `doctor`."""


ALL: tuple[type, ...] = (
    Tune,
    Probe,
    Estimate,
    ListRuns,
    Show,
    Export,
    Verify,
    Trial,
    Doctor,
    Tui,
)
"""Options of every command (those of `plan` are among those of `tune`)."""
