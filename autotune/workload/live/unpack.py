"""Makes a captured job ready for trials, in the child process."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import UsageError, WorkloadError
from autotune.workload.facts import Hyperparameters, WorkloadFacts
from autotune.workload.live import rows as live_rows
from autotune.workload.live.capture import release
from autotune.workload.live.job import Job, MakeTrainer, base_trainer, job_of_trainer
from autotune.workload.live.trainer import make_trainer
from autotune.workload.loaded import Batch, LoadedWorkload, Row, num_rows
from autotune.workload.model import batch_dependent_loss, has_batch_norm
from autotune.workload.options import hyperparameters_of
from autotune.workload.spec import Capsule

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

_VERSIONS = ("accelerate", "datasets", "peft", "torch", "transformers")


def unpack(capsule: Capsule, scratch: Path) -> LoadedWorkload:
    """The workload that a capsule holds, ready to be trained on.

    Args:
        capsule: What the library call captured.
        scratch: The run's directory for workloads, where the capsule's file is.

    Raises:
        UsageError: The objects are gone, or cannot be made again here.
        WorkloadError: The data yields no rows.
    """
    # What this process finds first stays first; the caller's modules come after it.
    sys.path += [place for place in capsule.import_path if place not in sys.path]
    job = _made(_released(scratch / capsule.file))
    model = job.model.cpu()
    with _trainer(job, scratch) as trainer:
        loader = trainer.get_train_dataloader()
        dataset = getattr(loader, "dataset", job.train_dataset)
        with _data_faults():
            rows = live_rows.look_at(dataset, live_rows.order_of(loader, dataset))
            collate = getattr(loader, "collate_fn", trainer.data_collator)
            count_rows = _row_counter(collate, rows.typical(2))
        optim = str(getattr(trainer.args.optim, "value", trainer.args.optim))
        max_grad_norm = trainer.args.max_grad_norm
    model.train()
    return LoadedWorkload(
        facts=WorkloadFacts(
            name=capsule.name,
            task=(job.trainer_class or base_trainer()).__name__,
            model_class=type(model).__name__,
            num_parameters=sum(p.numel() for p in model.parameters()),
            num_trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
            parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
            num_rows=rows.num_rows,
            tokens_median=rows.tokens_median,
            tokens_max=rows.tokens_max,
            precision=job.precision,
            optim=optim if job.optimizers[0] is None else type(job.optimizers[0]).__name__,
            hyperparameters=(
                hyperparameters_of(job.arguments, job.arguments_class)
                if job.optimizers[0] is None
                else Hyperparameters(max_grad_norm=max_grad_norm or 0.0)
            ),
            has_batch_norm=has_batch_norm(model),
            batch_dependent_loss=batch_dependent_loss(model),
            notes=(rows.note,) if rows.note else (),
            versions=_versions(),
            digest=capsule.digest,
            chosen=None,
            baseline=replace(job.configuration, world_size=capsule.world_size),
        ),
        model=model,
        train_dataset=job.train_dataset,  # type: ignore[arg-type]
        data_collator=job.data_collator,  # type: ignore[arg-type]
        processing_class=job.processing_class,
        arguments=job.arguments,
        loss_items="rows",
        longest_rows=rows.longest,
        typical_rows=rows.typical,
        count_tokens=live_rows.count_tokens,
        count_rows=count_rows,
        optimizers=job.optimizers,
        arguments_class=job.arguments_class,
        trainer_class=job.trainer_class,
        trainer_options=job.trainer_options,
        trainer_attributes=job.trainer_attributes,
        evaluation=job.evaluation,
    )


def _released(path: Path) -> Job | MakeTrainer:
    try:
        return release(path)
    except Exception as error:
        raise UsageError(
            "The job cannot be made again in a child process "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}).",
            "Give tune() a function that makes the Trainer, tune(make_trainer), and keep what it "
            "needs in modules that can be imported.",
        ) from error


def _made(job: Job | MakeTrainer) -> Job:
    if isinstance(job, Job):
        return job
    trainer = job()
    if not isinstance(trainer, base_trainer()):
        raise UsageError(
            f"The function that tune() was given returned a {type(trainer).__name__}, not a "
            "Trainer.",
            "Let it make and return the Trainer that you would call train() on.",
        )
    return job_of_trainer(trainer)


@contextmanager
def _trainer(job: Job, scratch: Path) -> Iterator[Trainer]:
    """A Trainer on the CPU that only shows how it reads its data; leaves no state behind."""
    import torch
    from accelerate.state import AcceleratorState, GradientState

    environment = dict(os.environ)
    # A stream needs a number of steps, which nobody takes here.
    values = {**job.arguments, "report_to": [], "disable_tqdm": True, "max_steps": 1}
    if torch.accelerator.is_available():
        values["use_cpu"] = True
        for name in ("bf16", "fp16", "tf32"):
            values.pop(name, None)
    try:
        with tempfile.TemporaryDirectory(dir=scratch, prefix="look-") as directory:
            arguments: TrainingArguments = job.arguments_class(output_dir=directory, **values)
            yield make_trainer(
                job.model,
                arguments,
                train_dataset=job.train_dataset,
                data_collator=job.data_collator,
                processing_class=job.processing_class,
                trainer_class=job.trainer_class,
                options=job.trainer_options,
                attributes=job.trainer_attributes,
            )
    finally:
        os.environ.clear()
        os.environ.update(environment)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@contextmanager
def _data_faults() -> Iterator[None]:
    try:
        yield
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(
            "The training data cannot be read in a child process "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}).",
            "Read every row once, `for row in train_dataset: pass`, and give two to the collator.",
        ) from error


def _row_counter(
    collate: Callable[[list[Row]], Batch], rows: list[Row]
) -> Callable[[Batch], int] | None:
    """How to count the rows of a batch; None where its tensors have one entry a row.

    Collators without padding join rows into one, and number the positions of each from 0.
    """
    batch = collate(list(rows))
    if not isinstance(batch, Mapping) or num_rows(batch) == len(rows):
        return None
    if "position_ids" in batch and _joined_rows(batch) == len(rows):
        return _joined_rows
    raise WorkloadError(
        f"The collator makes a batch of {num_rows(batch)} out of {len(rows)} rows, so that the "
        "rows of a step cannot be counted.",
        "Use a collator whose tensors have one entry a row, or that joins rows and numbers their "
        "position_ids from 0.",
    )


def _joined_rows(batch: Batch) -> int:
    return int((batch["position_ids"] == 0).sum())


def _versions() -> tuple[tuple[str, str], ...]:
    found = []
    for name in _VERSIONS:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)
