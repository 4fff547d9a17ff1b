"""From options to a request: gives every value its meaning, and says what is wrong with it."""

from __future__ import annotations

import os
import re
from dataclasses import fields, replace
from pathlib import Path

import typer

from autotune import request as requests
from autotune.cli import options
from autotune.cli.declare import is_given
from autotune.cli.reader import Reader
from autotune.cli.task import class_of, told_task
from autotune.cli.workload_options import ESTIMATED_TASKS, PRECISIONS, TASKS, Workload
from autotune.display import output
from autotune.errors import UsageError
from autotune.goal import Budget, Goal
from autotune.request import Request
from autotune.run_directory import find
from autotune.sharing import check_shared, shared_goal, starting_global_batch_size
from autotune.units import parse_bytes, parse_seconds
from autotune.workload.resolve import place_faults, together
from autotune.workload.spec import Columns, Lora, Task, WorkloadSpec

_OF_THE_DEMO = ("demo", "max_length", "training_seed", "micro_batch_size")
"""What may be said of the built-in job."""
_CHANGEABLE = (
    *("run_dir", "name", "resume", "budget", "trials", "out", "force", "storage"),
    *("display", "json", "tui", "detach", "dry_run"),
)
"""What may be another when a run goes on."""
LARGEST_GLOBAL_BATCH_SIZE = 2**20
"""Upper end of the sizes to choose from where the user leaves them open."""
LEAST_MEMORY_LIMIT_BYTES = 16 * 2**20
"""Below it there is no room for the interpreter alone, nor for a context on a GPU."""
_MOST_DIGITS = 9
"""Of a global batch size: all of its divisors are looked at."""
LARGEST_LOCAL_SGD_STEPS = 2**16
"""Beyond it a round would be longer than most trainings."""


def build_request(context: typer.Context, chosen: options.Plan) -> Request:
    """The request that the options describe, or that of the run to resume with what they change.

    Raises:
        UsageError: A value or a combination cannot work.
    """
    reader = Reader(context)
    processes = reader.at_least("processes", chosen.processes, 1) or 1
    reader.exclude(chosen, "resume", "fresh")
    is_whole = chosen.demo or ((chosen.model or chosen.model_config) and chosen.dataset)
    if chosen.resume and not is_whole:
        stored = requests.load(find(Path(chosen.run_dir).expanduser(), chosen.name or "last"))
        return _changed(stored, reader, context, chosen)
    micro_batch_size = reader.at_least("micro_batch_size", chosen.micro_batch_size, 1)
    workload = workload_spec(reader, chosen)
    goal = shared_goal(_goal(reader, chosen, micro_batch_size), processes)
    wanted = starting_global_batch_size(goal, micro_batch_size, processes)
    check_shared(wanted, micro_batch_size, processes)
    total_steps = reader.at_least("total_steps", chosen.total_steps, 1)
    return Request(
        workload=workload,
        goal=goal,
        budget=_budget(reader, chosen, Budget()),
        baseline_micro_batch_size=micro_batch_size,
        sampler=reader.choice("sampler", chosen.sampler, options.SAMPLERS),
        driver=reader.choice("driver", chosen.driver, options.DRIVERS),
        processes=processes,
        local_sgd=local_sgd(reader, chosen.local_sgd, total_steps),
        total_steps=total_steps,
        seed=reader.seed("seed", chosen.seed) or 0,
        storage=chosen.storage,
        out=_absolute(chosen.out),
        force=chosen.force,
    )


def _changed(
    stored: Request, reader: Reader, context: typer.Context, chosen: options.Plan
) -> Request:
    """A stored request with what may change of it; the storage's password is not in there.

    Raises:
        UsageError: Something else was typed. What a file or a variable says is for new runs.
    """
    for field in fields(chosen):
        if field.name in _CHANGEABLE or not reader.is_typed(field.name):
            continue
        own = getattr(stored.workload, field.name, None)
        if getattr(chosen, field.name) != getattr(stored, field.name, own):
            raise UsageError(
                f"{reader.flag(field.name)} cannot change what a run was started with.",
                "Leave it out to go on with that run, or leave out --resume to start a new one.",
            )
    return replace(
        stored,
        budget=_budget(reader, chosen, stored.budget),
        out=_absolute(chosen.out) if chosen.out else stored.out,
        storage=chosen.storage or stored.storage,
        force=chosen.force if is_given(context, "force") else stored.force,
        parent_process=None,
    )


def workload_spec(reader: Reader, chosen: Workload, *, needs_dataset: bool = True) -> WorkloadSpec:
    """What is trained, as the options say it.

    Args:
        reader: Of the call.
        chosen: Its options.
        needs_dataset: Whether there must be data; without, a spec may name none.

    Raises:
        UsageError: A value or a combination cannot work.
    """
    check_one_model(reader, chosen)
    reader.exclude(chosen, "demo", "model")
    reader.exclude(chosen, "demo", "model_config")
    defaults = WorkloadSpec(task="causal-lm")
    if chosen.demo:
        _check_of_the_demo(reader, chosen)
        return replace(
            defaults,
            demo=True,
            max_length=reader.at_least("max_length", chosen.max_length, 2),
            seed=_training_seed(reader, chosen, defaults.seed),
        )
    if not (chosen.model or chosen.model_config):
        raise no_model()
    if needs_dataset and not chosen.dataset:
        raise no_dataset()
    for rest in ("lora_alpha", "lora_dropout", "lora_target_modules"):
        if getattr(chosen, rest) is not None and chosen.lora_rank is None:
            raise UsageError(f"{reader.flag(rest)} needs --lora-rank.", "Add --lora-rank 8.")
    task = _task(reader, chosen, TASKS if needs_dataset else ESTIMATED_TASKS)
    if task == "image-classification" and (needs_dataset or chosen.dataset):
        raise UsageError(
            "The command line reads no images.",
            "Call autotune.tune(trainer) in the script that does."
            if needs_dataset
            else "Leave out --dataset: the size of the images stands in the model's config.",
        )
    return WorkloadSpec(
        task=task,
        model=chosen.model,
        model_config=chosen.model_config,
        tokenizer=chosen.tokenizer,
        dataset=chosen.dataset,
        dataset_config=chosen.dataset_config,
        split=chosen.split or defaults.split,
        streaming=chosen.streaming,
        columns=Columns(
            text=chosen.text_column,
            text_pair=chosen.text_pair_column,
            label=chosen.label_column,
            tokens=chosen.tokens_column,
            question=chosen.question_column,
            context=chosen.context_column,
            answers=chosen.answers_column,
            source=chosen.source_column,
            target=chosen.target_column,
        ),
        max_length=reader.at_least("max_length", chosen.max_length, 2),
        packing=chosen.packing,
        pad_token=chosen.pad_token,
        precision=reader.choice("precision", chosen.precision or defaults.precision, PRECISIONS),
        optim=chosen.optim,
        learning_rate=_learning_rate(reader, chosen.learning_rate),
        lora=_lora(reader, chosen),
        seed=_training_seed(reader, chosen, defaults.seed),
        trust_remote_code=chosen.trust_remote_code,
    )


def check_one_model(reader: Reader, chosen: Workload) -> None:
    """Refuses weights of one's own beside random ones.

    Raises:
        UsageError: Both are named.
    """
    reader.exclude(chosen, "model", "model_config")


def no_model() -> UsageError:
    """Nobody named a model."""
    return UsageError(
        "There is no model to train.",
        "Name one with --model or --model-config, or try the built-in job with --demo.",
    )


def no_dataset() -> UsageError:
    """Nobody named data."""
    return UsageError(
        "There is no data to train on.",
        "Name a file, a directory or a hub dataset with --dataset.",
    )


def _check_of_the_demo(reader: Reader, chosen: Workload) -> None:
    """Refuses what was typed of a job of one's own; a file or a variable may say it for others."""
    for field in fields(Workload):
        is_said = reader.is_typed(field.name) and getattr(chosen, field.name) != field.default
        if field.name not in _OF_THE_DEMO and is_said:
            raise UsageError(
                f"{reader.flag(field.name)} is not for the built-in job.",
                "Leave it out, or name a job of your own with --model and --dataset.",
            )


def _training_seed(reader: Reader, chosen: Workload, otherwise: int) -> int:
    seed = reader.seed("training_seed", chosen.training_seed)
    return otherwise if seed is None else seed


def _task(reader: Reader, chosen: Workload, offered: tuple[Task, ...]) -> Task:
    """What the model learns.

    Args:
        reader: Of the call.
        chosen: Its options.
        offered: What the command can do. Whatever else there is can be named too, and is refused
            with its own reason.
    """
    if chosen.task in ESTIMATED_TASKS:
        return chosen.task
    if chosen.task is not None:
        return reader.choice("task", chosen.task, offered)
    told = told_task(chosen)
    if told is not None:
        task, name = told
        because = f"of {reader.flag(name)}" if name else f"the model is a {class_of(chosen)}"
        output.talk(f"Task {task}, because {because}.")
        return task
    # What is not there tells nothing of the task, and is the first thing to mend.
    faults = place_faults(places_of(chosen), Path.cwd())
    if faults:
        raise together([*faults.values()])
    model = chosen.model or chosen.model_config or ""
    why = (
        "neither its config nor a column option says it"
        if os.path.exists(Path(model).expanduser())
        else f"{model} is not a directory here, whose config could say it"
    )
    raise UsageError(
        f"What the model should learn is not clear: {why}.",
        f"Add --task, one of {', '.join(offered)}.",
    )


def places_of(chosen: Workload) -> WorkloadSpec:
    """What the options name, for a look at whether it is there."""
    return WorkloadSpec(
        task="causal-lm",
        model=chosen.model,
        model_config=chosen.model_config,
        tokenizer=chosen.tokenizer,
        dataset=chosen.dataset,
    )


def _goal(reader: Reader, chosen: options.Plan, micro_batch_size: int | None) -> Goal:
    wanted, sizes = global_batch_size(reader, chosen.global_batch_size)
    if wanted and micro_batch_size and wanted % micro_batch_size:
        raise UsageError(
            f"{reader.flag('global_batch_size')} {wanted} is not a multiple of "
            f"{reader.flag('micro_batch_size')} {micro_batch_size}.",
            "Accumulation fills the global batch with whole micro-batches: change one of the two.",
        )
    limit_bytes = reader.parsed("memory_limit", chosen.memory_limit, parse_bytes)
    if limit_bytes is not None and limit_bytes < LEAST_MEMORY_LIMIT_BYTES:
        raise UsageError(
            f"{reader.flag('memory_limit')} {chosen.memory_limit} is less than any training "
            "process occupies.",
            "Give for example 6GiB, or leave it out to use what is free.",
        )
    return Goal(
        global_batch_size=wanted,
        memory_limit_bytes=limit_bytes,
        global_batch_size_range=sizes,
    )


def global_batch_size(
    reader: Reader, text: str | None
) -> tuple[int | None, tuple[int, int] | None]:
    """The size to keep, or the sizes to choose from.

    Raises:
        UsageError: It is neither.
    """
    if text is None:
        return None, None
    if text.strip() == "auto":
        return None, (1, LARGEST_GLOBAL_BATCH_SIZE)
    found = re.fullmatch(r"([1-9]\d*)(?:\.\.([1-9]\d*))?", text.strip())
    if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
        raise UsageError(
            f"{reader.flag('global_batch_size')} takes a number, a range or auto, not {text!r}.",
            "Give the samples per optimizer step that your training needs, for example 64; or "
            "32..256, from which the best is chosen.",
        )
    if max(len(number) for number in found.groups() if number) > _MOST_DIGITS:
        raise UsageError(
            f"{reader.flag('global_batch_size')} {text.strip()[:20]} is more samples than an "
            "optimizer step can have.",
            "Count samples, not tokens: for example 64.",
        )
    if found[2] is None:
        return int(found[1]), None
    return None, (int(found[1]), int(found[2]))


def _budget(reader: Reader, chosen: options.Plan, otherwise: Budget) -> Budget:
    trials = reader.at_least("trials", chosen.trials, 1)
    seconds = reader.parsed("budget", chosen.budget, parse_seconds)
    return Budget(
        trials=otherwise.trials if trials is None else trials,
        seconds=otherwise.seconds if seconds is None else seconds,
    )


def local_sgd(reader: Reader, text: str, total_steps: int | None = None) -> str:
    """auto, off or a number of optimizer steps.

    Args:
        reader: Of the call.
        text: What was given.
        total_steps: Optimizer steps of the training to come, where they are known.

    Raises:
        UsageError: It is none of them, or ranks would never average.
    """
    if text in ("auto", "off"):
        return text
    if re.fullmatch(r"[1-9]\d*", text):
        most = total_steps or LARGEST_LOCAL_SGD_STEPS
        if int(text) > most:
            end = f"the {most} of {reader.flag('total_steps')}" if total_steps else f"{most}"
            raise UsageError(
                f"{reader.flag('local_sgd')} {text} is more steps than {end}: the ranks would "
                "train apart to the end.",
                "Give far fewer, such as 16, or auto.",
            )
        return text
    raise UsageError(
        f"{reader.flag('local_sgd')} takes auto, off or a number of optimizer steps, not {text!r}.",
        "auto is the default.",
    )


def _learning_rate(reader: Reader, rate: float | None) -> float | None:
    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(
            f"{reader.flag('learning_rate')} must be a positive number, not {rate}.",
            "Give for example 5e-5.",
        )
    return rate


def _lora(reader: Reader, chosen: Workload) -> Lora | None:
    rank = reader.at_least("lora_rank", chosen.lora_rank, 1)
    if rank is None:
        return None
    dropout = chosen.lora_dropout or 0.0
    if not 0 <= dropout < 1:
        raise UsageError(
            f"{reader.flag('lora_dropout')} must be from 0 up to 1, not {dropout}.",
            "Give for example 0.05.",
        )
    modules = [name.strip() for name in (chosen.lora_target_modules or "").split(",")]
    return Lora(
        rank=rank,
        alpha=reader.at_least("lora_alpha", chosen.lora_alpha, 1),
        dropout=dropout,
        target_modules=tuple(name for name in modules if name) or None,
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
