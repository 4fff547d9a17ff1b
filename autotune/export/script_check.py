"""Runs an exported script for one optimizer step and checks what it did (child process only)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from autotune.configuration import Checkpointing
from autotune.export.bundle import Bundle
from autotune.export.observe import Observed, run_script, watching

NUM_STEPS = 1


def trainer_flags(num_steps: int, output: Path) -> list[str]:
    """Flags of `trainer.py` for a run that reports nowhere and keeps no checkpoints."""
    return [
        *("--max_steps", str(num_steps)),
        *("--output_dir", str(output)),
        *("--report_to", "none"),
        *("--save_strategy", "no"),
    ]


def accelerator_flags(num_steps: int, output: Path) -> list[str]:
    """Flags of `accelerator.py` for a run of so many steps."""
    return ["--max-steps", str(num_steps), "--output-dir", str(output)]


def verify(path: Path, bundle: Bundle, flags: Sequence[str]) -> str:
    """Runs the script on the real data and checks rows and checkpointing.

    Raises:
        ValueError: It did something else than was meant.
        Exception: Whatever the script raises.
    """
    with watching(recomputation=True) as observed:
        run_script(path, flags)
        check_rows(observed, bundle)
        check_checkpointing(observed, bundle.configuration.checkpointing)
        observed.model = None
    noun = "step" if NUM_STEPS == 1 else "steps"
    return f"run for {NUM_STEPS} optimizer {noun}"


def check_rows(observed: Observed, bundle: Bundle) -> None:
    """Raises where the steps did not train on the global batch.

    Raises:
        ValueError: The number of steps or of rows is another one.
    """
    if len(observed.steps) != NUM_STEPS:
        raise ValueError(f"it made {len(observed.steps)} optimizer steps and not {NUM_STEPS}")
    micro_batch_size = bundle.configuration.micro_batch_size
    whole, rest = divmod(bundle.rows_per_rank, micro_batch_size)
    meant = [micro_batch_size] * whole + [rest] * bool(rest)
    for step in observed.steps:
        if step.rows != meant:
            raise ValueError(
                f"an optimizer step trained on micro-batches of {step.rows} rows and not {meant}"
            )
        if not torch.isfinite(torch.stack([loss.float() for loss in step.losses])).all():
            raise ValueError(f"the loss is {step.loss}")


def check_checkpointing(observed: Observed, checkpointing: Checkpointing) -> None:
    """Raises where other layers were recomputed in the backward pass than were meant.

    Raises:
        ValueError: Checkpointing is on, off, or on other layers.
    """
    if not checkpointing.is_on:
        if observed.recomputed:
            raise ValueError("checkpointing is on although it should be off")
        return
    if not observed.recomputed:
        raise ValueError("checkpointing is off although it should be on")
    layers = _layers(observed.model)
    every = checkpointing.every_n_layers or 1
    meant = [index % every == 0 for index in range(len(layers))]
    # A layer recomputes its forward, which may pass its own hooks by: its parts tell.
    found = [any(part in observed.recomputed for part in layer.modules()) for layer in layers]
    if layers and found != meant:
        raise ValueError(
            f"{sum(found)} of {len(layers)} layers are checkpointed, and not {sum(meant)}"
        )


def _layers(model: torch.nn.Module | None) -> list[torch.nn.Module]:
    """Layers that can be checkpointed, where the installed transformers marks them by a class."""
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        return []
    if model is None:
        return []
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
