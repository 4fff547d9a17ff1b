"""The commands that train with the exported files, in the environment of the trials."""

from __future__ import annotations

import shlex

from autotune.export.bundle import Bundle

LAUNCH = "accelerate launch --config_file accelerate.yaml"


def prefix(bundle: Bundle) -> str:
    """The variables to set, as a shell writes them before a command; empty without any."""
    words = [f"{name}={shlex.quote(value)}" for name, value in bundle.launch_environment.items()]
    return " ".join(words) + " " if words else ""


def trainer(bundle: Bundle) -> str:
    """How `trainer.py` is started, without the variables."""
    world_size = bundle.configuration.world_size
    if world_size == 1:
        return "python trainer.py"
    if bundle.has_cpu_ranks:
        # accelerate launch starts several CPU ranks through mpirun only.
        return f"torchrun --nproc-per-node {world_size} trainer.py"
    return f"{LAUNCH} trainer.py"


def accelerator(bundle: Bundle) -> str:
    """How `accelerator.py` is started, without the variables."""
    if bundle.has_cpu_ranks:
        return f"torchrun --nproc-per-node {bundle.configuration.world_size} accelerator.py"
    return f"{LAUNCH} accelerator.py"
