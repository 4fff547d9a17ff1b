"""One evaluation step and one save, as training has them between its steps.

They come after the optimizer steps of a memory pass, with the optimizer's state there and no
gradients. Neither is timed, and a fault of one is told and ends nothing: what the user's own
evaluation does beyond a step is not known here.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from autotune.outcome import Interlude
from autotune.trial.device import read_peak, reset_peak, synchronize
from autotune.trial.failure import describe
from autotune.trial.readings.live_bytes import LiveBytes
from autotune.trial.readings.meter import DeviceLimitExceeded
from autotune.trial.stepper import Stepper, TrainerStepper
from autotune.units import counted, format_bytes
from autotune.workload.loaded import Batch, repeat_to

MOST_SAVED_BYTES = 2 * 1024**3
"""Larger weights and states are not written for a try: that takes minutes."""
PART_OF_DISK = 0.25
"""Most of the free disk that a try may fill."""


def try_interlude(
    stepper: Stepper,
    batch_size: int,
    *,
    limit_bytes: int,
    level_bytes: int,
    others_bytes: int,
    directory: str,
) -> Interlude:
    """Evaluates one batch of the longest samples, and writes weights and optimizer state.

    Args:
        stepper: After optimizer steps.
        batch_size: Rows of the evaluation step; no more than there are.
        limit_bytes: Total bytes the process may occupy.
        level_bytes: On a CPU, the process after its imports.
        others_bytes: On a device, what other processes hold of it.
        directory: For what is written; the caller removes it.
    """
    rows = min(batch_size, stepper.workload.facts.num_rows or batch_size)
    faults: list[str] = []

    def total_bytes(action: Callable[[], object]) -> int:
        if stepper.device.type == "cpu":
            return _on_host(stepper, action, limit_bytes, level_bytes)
        return _on_device(stepper, action, limit_bytes, others_bytes)

    evaluation_bytes: int | None = None
    try:
        batch = stepper.collate(repeat_to(stepper.workload.longest_rows(rows), rows))
        evaluation_bytes = total_bytes(lambda: _evaluate(stepper, batch))
    except Exception as error:  # noqa: BLE001  (whatever the user's code raises is told)
        faults.append(
            f"an evaluation step of {counted(rows, 'row')} did not run: {describe(error)}"
        )
    finally:
        stepper.model.train()
    fault = _why_not_saved(stepper, directory)
    if fault is None:
        try:
            total_bytes(lambda: _save(stepper, Path(directory)))
        except Exception as error:  # noqa: BLE001  (as above)
            fault = f"saving did not work: {describe(error)}"
    if fault is not None:
        faults.append(fault)
    return Interlude(
        evaluation_batch_size=rows,
        evaluation_bytes=evaluation_bytes,
        is_saved=fault is None,
        faults=tuple(faults),
    )


def _evaluate(stepper: Stepper, batch: Batch) -> object:
    """Logits and labels of a batch, as the job keeps them."""
    evaluation = stepper.workload.evaluation
    if not isinstance(stepper, TrainerStepper):
        stepper.model.eval()
        with torch.no_grad():
            return stepper.loss(batch)
    # The loop of evaluation goes around the wrapper that exchanges gradients.
    model = stepper.accelerator.unwrap_model(stepper.model)
    model.eval()
    _, logits, labels = stepper.trainer.prediction_step(
        model, batch, prediction_loss_only=not evaluation.keeps_outputs
    )
    if logits is not None and evaluation.preprocess_logits is not None:
        logits = evaluation.preprocess_logits(logits, labels)
    return logits, labels


def _save(stepper: Stepper, directory: Path) -> None:
    model = stepper.accelerator.unwrap_model(stepper.model)
    if isinstance(stepper, TrainerStepper):
        stepper.trainer.save_model(str(directory / "saved"))
    elif hasattr(model, "save_pretrained"):
        model.save_pretrained(directory / "saved")
    else:
        torch.save(model.state_dict(), directory / "model.pt")
    torch.save(stepper.optimizer.state_dict(), directory / "optimizer.pt")


def _why_not_saved(stepper: Stepper, directory: str) -> str | None:
    num_bytes = sum(_bytes(tensor) for tensor in _kept(stepper))
    most = min(MOST_SAVED_BYTES, int(PART_OF_DISK * shutil.disk_usage(directory).free))
    if num_bytes <= most:
        return None
    return f"saving was not tried, since it would write {format_bytes(num_bytes)}"


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _kept(stepper: Stepper) -> Iterator[torch.Tensor]:
    """What is alive between two steps."""
    yield from stepper.workload.model.parameters()
    yield from stepper.workload.model.buffers()
    for leaf in tree_leaves(list(stepper.optimizer.state.values())):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _on_host(
    stepper: Stepper, action: Callable[[], object], limit_bytes: int, level_bytes: int
) -> int:
    gc.collect()
    live = LiveBytes(limit_bytes - level_bytes, level_bytes)
    live.add(_kept(stepper))
    with live:
        action()
    return live.peak_bytes + level_bytes


def _on_device(
    stepper: Stepper, action: Callable[[], object], limit_bytes: int, others_bytes: int
) -> int:
    reset_peak(stepper.device)
    action()
    synchronize(stepper.device)
    peak = read_peak(stepper.device, others_bytes)
    total_bytes = peak.reserved_bytes + peak.outside_bytes
    if total_bytes > limit_bytes:
        raise DeviceLimitExceeded(
            f"The process passed the {format_bytes(limit_bytes)} of the device that may be filled "
            f"by {format_bytes(total_bytes - limit_bytes)}.",
            total_bytes,
        )
    return total_bytes
