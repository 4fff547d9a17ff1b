"""The fields of the form: each stands for one option of `autotune tune`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.workload.columns import TASK_ROLES
from autotune.workload.spec import PRECISIONS, TASKS, Task

Kind: TypeAlias = Literal["text", "path", "switch", "choice"]
"""How a field is filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of the form."""

    name: str
    """The option's name with underscores."""
    label: str
    section: str
    default: str
    """What holds where nothing is given, in words."""
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    hint: str = ""
    """What it means, for those who see it for the first time."""

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"


JOB = "job"
COLUMNS = "columns"
GOAL = "goal"
BUDGET = "budget and place"

_WORKLOAD = (
    Field(
        name="demo",
        label="demo",
        section=JOB,
        kind="switch",
        default="your own job",
        hint="The built-in job: a small language model on text that Python ships.",
    ),
    Field(
        name="precision",
        label="precision",
        section=JOB,
        kind="choice",
        choices=PRECISIONS,
        default="fp32",
        hint="Number format of the computation.",
    ),
    Field(
        name="task",
        label="task",
        section=JOB,
        kind="choice",
        choices=TASKS,
        default="auto, by the job",
        hint="What the model learns.",
    ),
    Field(
        name="model",
        label="model",
        section=JOB,
        kind="path",
        default="a local directory or a hub name",
        hint="A local model directory or a hub id.",
    ),
    Field(
        name="dataset",
        label="dataset",
        section=JOB,
        kind="path",
        default="a file, a directory or a hub name",
        hint="A CSV, JSON, JSON Lines, Parquet or text file, a directory, or a hub name.",
    ),
)


def _columns() -> tuple[Field, ...]:
    """One field for everything that some task reads from a row."""
    found: dict[str, Field] = {}
    for roles in TASK_ROLES.values():
        for role in roles:
            found.setdefault(
                f"{role.field}_column",
                Field(
                    name=f"{role.field}_column",
                    label=role.field.replace("_", " "),
                    section=COLUMNS,
                    default="by its usual name" if role.is_required else "none",
                    hint=f"{role.meaning[:1].upper()}{role.meaning[1:]}.",
                ),
            )
    return tuple(found.values())


_GOAL = (
    Field(
        name="global_batch_size",
        label="global batch",
        section=GOAL,
        default="32",
        hint="Samples per optimizer step, which stay the same; a range or auto lets it be chosen.",
    ),
    Field(
        name="micro_batch_size",
        label="yours now",
        section=GOAL,
        default="8",
        hint="Your present micro-batch size: the baseline to compare with.",
    ),
    Field(
        name="memory_limit",
        label="memory limit",
        section=GOAL,
        default="what is free",
        hint="Memory that the training process may occupy, for example 6GiB.",
    ),
    Field(
        name="processes",
        label="processes",
        section=GOAL,
        default="1",
        hint="Training processes that share the global batch.",
    ),
    Field(
        name="local_sgd",
        label="local SGD",
        section=GOAL,
        default="auto",
        hint="Optimizer steps between two averagings over processes: auto, off or a number.",
    ),
)
_BUDGET = (
    Field(
        name="trials",
        label="trials",
        section=BUDGET,
        default="40",
        hint="Most trials of the search; confirmation is not counted.",
    ),
    Field(
        name="budget",
        label="time",
        section=BUDGET,
        default="10m",
        hint="Time for measuring, confirmation included: 10m, 90s, 1h30m.",
    ),
    Field(
        name="out",
        label="files to",
        section=BUDGET,
        kind="path",
        default="out in the run's directory",
        hint="Directory for the exported files.",
    ),
    Field(
        name="run_dir",
        label="runs in",
        section=BUDGET,
        kind="path",
        default="autotune-runs",
        hint="Directory that holds all runs.",
    ),
    Field(
        name="name",
        label="name",
        section=BUDGET,
        default="model-date-counter",
        hint="Name of the run.",
    ),
)
MORE = Field(
    name="more",
    label="more",
    section=BUDGET,
    default="other options, as on a command line",
    hint="Any other option of autotune tune, for example --lora-rank 8 --packing.",
)
"""What has no field of its own."""

FIELDS: tuple[Field, ...] = (*_WORKLOAD, *_columns(), *_GOAL, *_BUDGET, MORE)
BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}


def columns_of(task: str) -> tuple[str, ...]:
    """Names of the column fields that a task reads; none for a word that is no task."""
    known: Task | None = next((one for one in TASKS if one == task), None)
    return tuple(f"{role.field}_column" for role in TASK_ROLES[known]) if known else ()
