"""Checks that come before any search: does accumulation train the same, does checkpointing help?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.errors import WorkloadError
from autotune.trial.device import allocated_bytes
from autotune.trial.failure import describe, memory_verdict
from autotune.trial.protocol import CheckpointingTried, ParityFound
from autotune.trial.readings.live_bytes import LiveBytes
from autotune.trial.stepper import Driver, Stepper, TrainerStepper, make_stepper
from autotune.trial.training_arguments import set_checkpointing, supported_checkpointing
from autotune.units import counted
from autotune.workload.facts import CheckpointingForm
from autotune.workload.loaded import Batch, LoadedWorkload

LEAST_SAVING = 0.02
"""Part of the kept bytes that a checkpointing form must save to be worth a trial."""
CHECK_ROWS = 2
"""Rows of the batch on which checkpointing forms are compared."""


def check_parity(
    workload: LoadedWorkload,
    *,
    num_rows: int,
    accumulation_steps: int,
    driver: Driver,
    output_dir: str,
) -> ParityFound:
    """Trains on the same rows whole and in micro-batches, in fp32 with dropout off.

    The rows are collated once and split afterwards, so that padding and random masking are the
    same on both sides. Only where a collator joins rows, the parts are collated by themselves.
    """
    # Rounding of a lower precision would hide, or be taken for, a difference.
    arguments = {**workload.arguments, "bf16": False, "fp16": False}
    workload.model.float()
    stepper = make_stepper(
        replace(workload, arguments=arguments),
        Configuration(micro_batch_size=num_rows, accumulation_steps=1),
        driver=driver,
        output_dir=output_dir,
        repair_loss=False,
    )
    rows = workload.typical_rows(num_rows)
    whole = stepper.collate(rows)
    if workload.count_rows is None:
        parts = split(whole, accumulation_steps)
    else:
        share = num_rows // accumulation_steps
        parts = [stepper.collate(rows[i : i + share]) for i in range(0, num_rows, share)]
    with without_dropout(workload.model):
        losses, norms = _compare(stepper, whole, parts)
        repaired: tuple[tuple[float, float], tuple[float, float]] | None = None
        if isinstance(stepper, TrainerStepper) and stepper.trainer.model_accepts_loss_kwargs:
            stepper.trainer.model_accepts_loss_kwargs = False
            repaired = _compare(stepper, whole, parts)
    for loss in losses:
        if not math.isfinite(loss):
            raise WorkloadError(
                f"The loss of the model is {loss} on {counted(num_rows, 'row')} of the data, "
                "before any step.",
                "Look at the labels, the data and the weights: training would learn nothing.",
            )
    unused = _unused_parameters(stepper, parts[0])
    return ParityFound(
        losses=losses,
        gradient_norms=norms,
        repaired_losses=repaired[0] if repaired else None,
        repaired_gradient_norms=repaired[1] if repaired else None,
        unused_parameters=unused,
    )


def _unused_parameters(stepper: Stepper, batch: Batch) -> tuple[str, ...]:
    """Names of trained parameters that get no gradient from a micro-batch of training.

    The wrapper that exchanges gradients waits for every one of them, unless it is told to look.
    """
    trained = {n: p for n, p in stepper.workload.model.named_parameters() if p.requires_grad}
    for parameter in trained.values():
        parameter.grad = None
    stepper.set_window([dict(batch)])
    stepper.micro_step(dict(batch), is_last=True)
    unused = tuple(name for name, parameter in trained.items() if parameter.grad is None)
    for parameter in trained.values():
        parameter.grad = None
    return unused


def split(batch: Batch, num_parts: int) -> list[Batch]:
    """Cuts a batch into parts of as many consecutive rows each."""
    chunks = {
        name: value.tensor_split(num_parts) if value.ndim > 0 else (value,) * num_parts
        for name, value in batch.items()
        if isinstance(value, torch.Tensor)
    }
    return [{name: parts[i] for name, parts in chunks.items()} for i in range(num_parts)]


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Keeps the model in evaluation mode, whatever mode the training step asks for."""
    model.eval()
    # The training step calls model.train(); an instance attribute shadows the method.
    model.train = lambda mode=True: model  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.train
        model.train()


def _compare(
    stepper: Stepper, whole: Batch, parts: list[Batch]
) -> tuple[tuple[float, float], tuple[float, float]]:
    found = [_loss_and_norm(stepper, window) for window in ([whole], parts)]
    return (found[0][0], found[1][0]), (found[0][1], found[1][1])


def _loss_and_norm(stepper: Stepper, window: list[Batch]) -> tuple[float, float]:
    stepper.optimizer.zero_grad()
    if isinstance(stepper, TrainerStepper):
        # Earlier versions divide by the number in the arguments, not by that of the window.
        stepper.trainer.args.gradient_accumulation_steps = len(window)
    stepper.set_window([dict(batch) for batch in window])
    loss = 0.0
    for index, batch in enumerate(window):
        loss += float(stepper.micro_step(dict(batch), is_last=index == len(window) - 1))
    gradients = [
        parameter.grad.float().norm()
        for parameter in stepper.model.parameters()
        if parameter.grad is not None
    ]
    norm = float(torch.stack(gradients).norm()) if gradients else 0.0
    stepper.optimizer.zero_grad()
    return loss, norm


def try_checkpointing(
    workload: LoadedWorkload,
    every_n_layers: Sequence[int],
    *,
    driver: Driver,
    output_dir: str,
) -> CheckpointingTried:
    """Counts the bytes that the forward pass of one small batch keeps under each form.

    Live bytes are compared before and after the forward pass, which also sees the inputs that
    checkpointed layers keep outside autograd.
    """
    stepper = make_stepper(
        workload,
        Configuration(micro_batch_size=CHECK_ROWS, accumulation_steps=1),
        driver=driver,
        output_dir=output_dir,
        repair_loss=False,
    )
    batch = _first_batch(stepper)
    without = _kept_bytes(stepper, batch, NO_CHECKPOINTING)
    supported = supported_checkpointing(workload.model)
    wanted = [(n, False) for n in every_n_layers]
    if stepper.device.type != "cpu" and supported.get("offload"):
        wanted.append((1, True))
    forms: list[CheckpointingForm] = []
    for n, offload in sorted(wanted):
        form = Checkpointing(every_n_layers=n, offload=offload)
        forms.append(_try_form(stepper, batch, form, without, supported, forms))
    set_checkpointing(workload.model, NO_CHECKPOINTING)
    return CheckpointingTried(saved_bytes_without=without, forms=tuple(forms))


def _first_batch(stepper: Stepper) -> Batch:
    """A batch that the model takes, after a first pass over it.

    The first pass makes what a model keeps for good, such as tables of positions.
    """
    rows = stepper.workload.typical_rows(CHECK_ROWS)
    try:
        batch = stepper.collate(rows)
        _kept_bytes(stepper, batch, NO_CHECKPOINTING)
    except ValueError:
        # Without a padding token there is no batch of two; one row shows the same layers.
        batch = stepper.collate(rows[:1])
        _kept_bytes(stepper, batch, NO_CHECKPOINTING)
    return batch


def _try_form(
    stepper: Stepper,
    batch: Batch,
    form: Checkpointing,
    without: int,
    supported: Mapping[str, bool],
    earlier: Sequence[CheckpointingForm],
) -> CheckpointingForm:
    kept: int | None = None
    reason: str | None = None
    if not supported:
        reason = "the model has no switch for checkpointing"
    elif form.every_n_layers != 1 and not supported.get("every_n_layers"):
        reason = "the installed transformers checkpoints every layer or none"
    else:
        try:
            kept = _kept_bytes(stepper, batch, form)
        except (ValueError, AttributeError, NotImplementedError) as error:
            # How models say that they have no checkpointing.
            reason = str(error).partition("\n")[0] or type(error).__name__
        except Exception as error:
            if memory_verdict(error) is not None:
                raise
            reason = describe(error)
        else:
            reason = _why_useless(form, kept, without, earlier)
    return CheckpointingForm(
        every_n_layers=form.every_n_layers or 1,
        offload=form.offload,
        is_available=kept is not None,
        saved_bytes=kept,
        reason=reason,
    )


def _why_useless(
    form: Checkpointing, kept: int, without: int, earlier: Sequence[CheckpointingForm]
) -> str | None:
    if kept > without * (1 - LEAST_SAVING):
        saved = max(0.0, 1 - kept / without) if without else 0.0
        return (
            "no saving measured: the model accepts the switch and keeps as much as before"
            if saved < 0.001
            else f"it saves only {saved:.1%} of what the forward pass keeps"
        )
    twin = next((f for f in earlier if f.saved_bytes == kept and f.offload == form.offload), None)
    if twin is not None:
        same = Checkpointing(every_n_layers=twin.every_n_layers, offload=twin.offload)
        return f"on this model it is the same as {same}"
    return None


def _kept_bytes(stepper: Stepper, batch: Batch, form: Checkpointing) -> int:
    """Bytes that stay alive between the forward and the backward pass."""
    model = stepper.workload.model
    set_checkpointing(model, form)
    model.train()
    stepper.set_window([batch])
    inputs = {
        name: value.to(stepper.device) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }
    if stepper.device.type != "cpu":
        before = allocated_bytes(stepper.device)
        loss = stepper.loss(inputs)
        kept = allocated_bytes(stepper.device) - before
        del loss
        return kept
    live = LiveBytes()
    live.add(model.parameters())
    live.add(model.buffers())
    live.add(value for value in inputs.values() if isinstance(value, torch.Tensor))
    with live:
        before = live.current_bytes
        loss = stepper.loss(inputs)
        kept = live.current_bytes - before
        del loss
    return kept
