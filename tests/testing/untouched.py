"""Everything of a user's process that a library call must leave as it was."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import random
import signal
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy
import psutil
import torch
from transformers import Trainer


@dataclass(frozen=True)
class Snapshot:
    """One look at a process and a Trainer; equal values mean that nothing was changed."""

    parts: dict[str, object]

    @classmethod
    def of(cls, trainer: Trainer, directory: Path) -> Snapshot:
        """Looks at everything.

        Args:
            trainer: The user's.
            directory: The user's files; run directories in it are our own to write.
        """
        model = trainer.model
        return cls(
            {
                "parameters": {n: _tensor(p) for n, p in model.named_parameters()},
                "gradients": {
                    n: None if p.grad is None else _tensor(p.grad)
                    for n, p in model.named_parameters()
                },
                "buffers": {n: _tensor(b) for n, b in model.named_buffers()},
                "addresses": [p.data_ptr() for p in model.parameters()],
                "training mode": [m.training for m in model.modules()],
                "hooks": [
                    (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
                    for m in model.modules()
                ],
                "attributes of modules": [sorted(vars(m)) for m in model.modules()],
                "requires_grad": [p.requires_grad for p in model.parameters()],
                "optimizer": _optimizer(trainer.optimizer),
                "arguments": repr(trainer.args.to_dict()),
                "attributes of the trainer": {k: id(v) for k, v in vars(trainer).items()},
                "callbacks": [type(c).__name__ for c in trainer.callback_handler.callbacks],
                "state": repr(trainer.state),
                "python random": random.getstate(),
                "numpy random": pickle.dumps(numpy.random.get_state()),
                "torch random": _tensor(torch.get_rng_state()),
                "environment": dict(os.environ),
                "current directory": os.getcwd(),
                "signal handlers": {
                    number: signal.getsignal(number)
                    for number in signal.valid_signals()
                    if number not in (signal.SIGKILL, signal.SIGSTOP)
                },
                "logging": _logging(),
                "warnings": list(warnings.filters),
                "threads of torch": (torch.get_num_threads(), torch.is_grad_enabled()),
                "threads": sorted(thread.name for thread in threading.enumerate()),
                "children": sorted(child.pid for child in psutil.Process().children()),
                "default dtype": torch.get_default_dtype(),
                "files": _files(directory),
                "umask": _umask(),
            }
        )

    def differences(self, before: Snapshot) -> list[str]:
        """Names of what is not as it was."""
        return [name for name, value in self.parts.items() if value != before.parts[name]]


def _tensor(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def _optimizer(optimizer: torch.optim.Optimizer | None) -> object:
    if optimizer is None:
        return None
    return (
        [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        [[id(p) for p in g["params"]] for g in optimizer.param_groups],
        {
            id(p): {k: _tensor(v) if isinstance(v, torch.Tensor) else v for k, v in s.items()}
            for p, s in optimizer.state.items()
        },
    )


def _logging() -> object:
    root = logging.getLogger()
    return (
        root.level,
        [id(handler) for handler in root.handlers],
        {
            name: (logger.level, logger.propagate, logger.disabled, len(logger.handlers))
            for name in ("transformers", "accelerate", "datasets", "torch")
            if (logger := logging.getLogger(name))
        },
    )


def _files(directory: Path) -> dict[str, int]:
    ours = ("autotune-runs", "runs")
    return {
        str(path.relative_to(directory)): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.relative_to(directory).parts[0] not in ours
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
