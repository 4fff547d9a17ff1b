"""Writes a live job into a file that its owner alone may read, for child processes to load.

The objects travel by value: classes and functions of `__main__` and of notebooks with their code,
those of modules by name. Tensors stand in the file once, whoever shares them; data sets of
`datasets` that are mapped from files are named by those.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

import cloudpickle
import torch

from autotune.errors import UsageError
from autotune.workload.live.job import Job, MakeTrainer

FILE_NAME = "capsule.pt"
_DEPTH = 3
"""How far down the culprit is looked for."""


def capture(job: Job | MakeTrainer, path: Path) -> None:
    """Writes a job, or a function that makes its Trainer.

    Args:
        job: Stays as it is; no random number is drawn.
        path: The file; what stands there is replaced.

    Raises:
        UsageError: Something cannot be captured; the cause names it.
    """
    content = _content(job)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            torch.save(content, file, pickle_module=cloudpickle)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageError(
            f"The job cannot be written to {path}: {error.strerror or error}.",
            "Choose another place with run_dir.",
        ) from error
    except Exception as error:
        path.unlink(missing_ok=True)
        raise _cannot_capture(content, error) from error


def release(path: Path) -> Job | MakeTrainer:
    """What a file holds, with all tensors on the CPU.

    It is read by pickle: only a file that `capture` wrote may be given.
    """
    content: dict[str, object] = torch.load(path, map_location="cpu", weights_only=False)
    if "make_trainer" in content:
        return content["make_trainer"]  # type: ignore[return-value]
    return Job(**content)  # type: ignore[arg-type]


def import_path() -> tuple[str, ...]:
    """Where this process finds its modules."""
    return tuple(os.path.abspath(place) for place in sys.path)


def _content(job: Job | MakeTrainer) -> dict[str, object]:
    if isinstance(job, Job):
        if _fault(job.evaluation.preprocess_logits) is not None:
            # Outputs are then taken to be kept whole, which is no less.
            job = replace(job, evaluation=replace(job.evaluation, preprocess_logits=None))
        return {field.name: getattr(job, field.name) for field in fields(job)}
    return {"make_trainer": job}


def _cannot_capture(content: Mapping[str, object], error: Exception) -> UsageError:
    place, fault = next(_culprits(content, _DEPTH), ("the job", error))
    text = str(fault).partition("\n")[0].rstrip(".")
    if "make_trainer" in content:
        remedy = (
            "Let the function make everything inside, and refer to nothing open from outside, "
            "such as files, locks or connections."
        )
    else:
        remedy = (
            "Give tune() a function that makes the Trainer instead, tune(make_trainer): it runs "
            "in the child process, where such things can be made anew."
        )
    return UsageError(
        f"{place} cannot be handed to a child process ({type(fault).__name__}: {text}).", remedy
    )


def _culprits(content: Mapping[str, object], depth: int) -> Iterator[tuple[str, Exception]]:
    """Paths to what cannot be pickled by itself, the deepest that is found for each part."""
    for name, value in content.items():
        fault = _fault(value)
        if fault is None:
            continue
        deeper = _culprits(_parts(value), depth - 1) if depth > 1 else iter(())
        found = next(deeper, None)
        yield (f"{name}.{found[0]}", found[1]) if found else (name, fault)


def _fault(value: object) -> Exception | None:
    try:
        torch.save(value, io.BytesIO(), pickle_module=cloudpickle)
    except Exception as error:  # noqa: BLE001  (whatever pickling raises is the answer)
        return error
    return None


def _parts(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list | tuple):
        return {str(index): item for index, item in enumerate(value)}
    return getattr(value, "__dict__", {})
