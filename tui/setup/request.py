"""The form of a run that there is already: what it was asked for, filled in again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from autotune.events import Document
from autotune.units import parse_bytes
from tui.run_now import RunNow
from tui.setup.fields import MORE
from tui.setup.form import ON, JobForm

_SAME_NAME = ("model", "dataset", "task", "precision")
_TO_MORE = (
    "model_config",
    "tokenizer",
    "dataset_config",
    "max_length",
    "pad_token",
    "optim",
    "learning_rate",
)
_SWITCHES = ("streaming", "packing", "trust_remote_code")


def form_of_run(now: RunNow) -> JobForm | None:
    """Fills a form in with what a run was asked for; None where that is not known."""
    started = now.view.started
    if started is None:
        return None
    form = form_of_request(started.request)
    if now.directory is None or not now.directory.root_options:
        return form
    # Its successor is kept beside it.
    return form.with_value("run_dir", str(now.directory.path.parent))


def form_of_request(request: Document) -> JobForm:
    """Fills a form in with what a run was asked for; empty for live objects, which have no names.

    Args:
        request: As `request.json` and the event of the start hold it.
    """
    workload = request.get("workload")
    if not isinstance(workload, dict) or "task" not in workload:
        return JobForm()
    values: dict[str, str] = {}
    if workload.get("demo"):
        values["demo"] = ON
    else:
        values |= {name: str(workload[name]) for name in _SAME_NAME if workload.get(name)}
        columns = workload.get("columns")
        for name, value in (columns if isinstance(columns, dict) else {}).items():
            if value:
                values[f"{name}_column"] = str(value)
    if values.get("precision") == "fp32":
        del values["precision"]
    values |= _of_goal(request)
    more = list(_more(workload, request))
    if more:
        values[MORE.name] = shlex.join(more)
    return JobForm(values=values)


def _of_goal(request: Document) -> dict[str, str]:
    goal, budget = request.get("goal"), request.get("budget")
    found: dict[str, str] = {}
    if isinstance(goal, dict):
        sizes = goal.get("global_batch_size_range")
        if goal.get("global_batch_size"):
            found["global_batch_size"] = str(goal["global_batch_size"])
        elif isinstance(sizes, list) and len(sizes) == 2:
            found["global_batch_size"] = f"{sizes[0]}..{sizes[1]}"
        limit = goal.get("memory_limit_bytes")
        if isinstance(limit, int):
            found["memory_limit"] = _size(limit)
    if isinstance(budget, dict):
        trials, seconds = budget.get("trials"), budget.get("seconds")
        if isinstance(trials, int) and trials != 40:
            found["trials"] = str(trials)
        if isinstance(seconds, int | float) and seconds != 600:
            found["budget"] = f"{seconds:g}s"
    micro = request.get("baseline_micro_batch_size")
    if isinstance(micro, int):
        found["micro_batch_size"] = str(micro)
    processes = request.get("processes")
    if isinstance(processes, int) and processes > 1:
        found["processes"] = str(processes)
        if request.get("local_sgd") not in (None, "auto"):
            found["local_sgd"] = str(request["local_sgd"])
    return found


def _size(num_bytes: int) -> str:
    """The shortest way to write a size without changing it."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if (
            num_bytes % (factor // 4) == 0
            and parse_bytes(f"{num_bytes / factor:g}{unit}") == num_bytes
        ):
            return f"{num_bytes / factor:g}{unit}"
    return str(num_bytes)


def _more(workload: Document, request: Document) -> Iterator[str]:
    for name in ("max_length",) if workload.get("demo") else _TO_MORE:
        if workload.get(name) is not None:
            yield from (f"--{name.replace('_', '-')}", str(workload[name]))
    if not workload.get("demo"):
        if workload.get("split") not in (None, "train"):
            yield from ("--split", str(workload["split"]))
        yield from (f"--{name.replace('_', '-')}" for name in _SWITCHES if workload.get(name))
        lora = workload.get("lora")
        if isinstance(lora, dict):
            for name in ("rank", "alpha", "dropout"):
                if lora.get(name):
                    yield from (f"--lora-{name}", str(lora[name]))
            targets = lora.get("target_modules")
            if isinstance(targets, list):
                yield from ("--lora-target-modules", ",".join(map(str, targets)))
    if workload.get("seed") not in (None, 42):
        yield from ("--training-seed", str(workload["seed"]))
    if request.get("driver") not in (None, "trainer"):
        yield from ("--driver", str(request["driver"]))
    if request.get("sampler") not in (None, "auto"):
        yield from ("--sampler", str(request["sampler"]))
    if request.get("total_steps"):
        yield from ("--total-steps", str(request["total_steps"]))
    if request.get("seed"):
        yield from ("--seed", str(request["seed"]))
    if request.get("storage"):
        yield from ("--storage", str(request["storage"]))
