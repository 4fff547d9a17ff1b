"""Reads the norms of the micro-gradients that training makes anyway.

A pass of its own: its steps train as all others do, but they exchange their gradients differently
and stop to read them, so that they are never timed against anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

from autotune.outcome import GradientNorms, GradientWindow
from autotune.trial.protocol import Progress
from autotune.trial.readings.meter import Report
from autotune.trial.stepper import Stepper, train_window
from autotune.workload.loaded import Batch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NUM_WINDOWS = 20
PRECONDITIONED_AFTER_STEPS = 5
"""Optimizer steps after which Adam's second moments have seen enough to divide by."""
BUCKET_ELEMENTS = 2**24
"""Elements that are reduced at once: 64 MiB in fp32."""

Gradients: TypeAlias = dict[torch.nn.Parameter, torch.Tensor]


def measure_gradients(
    stepper: Stepper,
    num_windows: int = NUM_WINDOWS,
    *,
    report: Report,
    num_warmup_steps: int = PRECONDITIONED_AFTER_STEPS,
    num_steps_before: int = 0,
) -> GradientNorms | None:
    """Trains some optimizer steps on and reads the norms of their micro-gradients.

    The weights move as in training: each step ends with the loop's own clipping, optimizer and
    schedule, on the mean gradient of all ranks. A step with a gradient that is not finite is left
    out and counted; without a loss scaler, which would skip it, its gradients are dropped, since
    they would ruin the weights for the steps that follow.

    Gradients of a whole model are held twice for a while, once more than in training. On several
    ranks, one sum over the stepper's process group follows each window, in buckets of 64 MiB; all
    ranks must make the call.

    Args:
        stepper: Bound to a configuration with at least two micro-batches a step, over all ranks,
            which exchanges gradients in every step.
        num_windows: Optimizer steps to read.
        report: Told before each step.
        num_warmup_steps: Plain optimizer steps before the first that is read.
        num_steps_before: Optimizer steps that the stepper has made already.

    Returns:
        The norms, or None where a step makes a single micro-gradient.
    """
    ranks = _Ranks.of(stepper)
    num_micro_batches = stepper.configuration.accumulation_steps * ranks.num
    if num_micro_batches < 2:
        return None
    num_steps = num_warmup_steps + num_windows
    for step in range(num_warmup_steps):
        report(Progress(stage="gradients", step=step, num_steps=num_steps))
        train_window(stepper, stepper.next_window())
    reader = _Reader(stepper, ranks)
    windows: list[GradientWindow] = []
    rows_per_micro_batch = stepper.configuration.micro_batch_size
    for step in range(num_warmup_steps, num_steps):
        report(Progress(stage="gradients", step=step, num_steps=num_steps))
        found = reader.read(num_steps_before + step)
        if found is not None:
            windows.append(found[0])
            rows_per_micro_batch = found[1]
    return GradientNorms(
        windows=tuple(windows),
        num_micro_batches=num_micro_batches,
        rows_per_micro_batch=rows_per_micro_batch,
        num_skipped=num_windows - len(windows),
    )


@dataclass(frozen=True, slots=True)
class _Ranks:
    num: int
    index: int
    group: ProcessGroup | None
    """Of the wrapped model; None is the default group."""

    @classmethod
    def of(cls, stepper: Stepper) -> _Ranks:
        accelerator = stepper.accelerator
        return cls(
            num=accelerator.num_processes,
            index=accelerator.process_index,
            group=getattr(stepper.model, "process_group", None),
        )

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat, group=self.group)
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@dataclass(frozen=True, slots=True)
class _Micro:
    """What one micro-batch showed, as numbers."""

    squared_norm: float
    preconditioned: float
    """NaN where it could not be told."""
    num_rows: int
    loss: float


class _Reader:
    """Makes optimizer steps of a stepper and reads the gradients on the way."""

    def __init__(self, stepper: Stepper, ranks: _Ranks) -> None:
        self._stepper = stepper
        self._ranks = ranks
        self._num_micro_batches = stepper.configuration.accumulation_steps * ranks.num
        self._parameters = [p for p in stepper.model.parameters() if p.requires_grad]
        self._options: Mapping[torch.nn.Parameter, dict[str, Any]] = {
            parameter: group
            for group in stepper.optimizer.param_groups
            for parameter in group["params"]
        }

    def read(self, step: int) -> tuple[GradientWindow, int] | None:
        """Makes one optimizer step; returns its norms and rows per micro-batch.

        None where it is left out.
        """
        stepper = self._stepper
        window = stepper.next_window()
        # The scaler keeps its factor until the optimizer's step.
        scaler = stepper.accelerator.scaler
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        micro, total = self._accumulate(window, scale)
        shares = self._gather(micro, total)
        for gradient in total.values():
            gradient.div_(self._ranks.num)
        whole, preconditioned_whole = self._squared_norms(total, 1 / scale)
        norms = [share.squared_norm for share in shares]
        is_finite = all(math.isfinite(norm) for norm in [*norms, whole])
        if is_finite or scaler is not None:
            for parameter, gradient in total.items():
                parameter.grad = gradient.to(parameter.dtype)
            stepper.optimizer_step()
        else:
            stepper.model.zero_grad()
        sizes = {share.num_rows for share in shares}
        is_whole = len(shares) == self._num_micro_batches and len(sizes) == 1
        if not is_finite or not is_whole:
            return None
        preconditioned = [share.preconditioned for share in shares]
        has_preconditioned = all(
            math.isfinite(norm) for norm in [*preconditioned, preconditioned_whole]
        )
        loss = sum(share.loss for share in shares) / self._ranks.num
        found = GradientWindow(
            step=step,
            micro_squared_norms=tuple(norms),
            mean_squared_norm=whole,
            preconditioned_micro_squared_norms=(
                tuple(preconditioned) if has_preconditioned else None
            ),
            preconditioned_mean_squared_norm=preconditioned_whole if has_preconditioned else None,
            loss=loss if math.isfinite(loss) else None,
        )
        return found, sizes.pop()

    def _accumulate(self, window: list[Batch], scale: float) -> tuple[list[_Micro], Gradients]:
        """Forward and backward of a window; returns what each showed and the sum in fp32."""
        stepper = self._stepper
        micro: list[_Micro] = []
        total: Gradients = {}
        stepper.model.zero_grad()
        # Nested in it, no micro-step reduces its gradients, the last one included.
        with stepper.accelerator.no_sync(model=stepper.model):
            for index, batch in enumerate(window):
                num_rows = stepper.num_rows(batch)
                loss = float(stepper.micro_step(batch, is_last=index == len(window) - 1))
                gradients = self._take()
                # What is accumulated is a share of the mean; the micro-gradient is a mean itself.
                squared_norm, preconditioned = self._squared_norms(gradients, len(window) / scale)
                micro.append(_Micro(squared_norm, preconditioned, num_rows, loss))
                for parameter, gradient in gradients.items():
                    if parameter in total:
                        total[parameter] += gradient
                    else:
                        total[parameter] = gradient
        return micro, total

    def _take(self) -> Gradients:
        """The gradients that the last backward pass left, which are taken off the parameters."""
        taken: Gradients = {}
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None:
                dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
                taken[parameter] = dense.detach().float()
                parameter.grad = None
        return taken

    def _gather(self, micro: list[_Micro], total: Gradients) -> list[_Micro]:
        """Adds the gradients of all ranks up in place; returns the numbers of all of them."""
        ranks = self._ranks
        if ranks.num == 1:
            return micro
        device = self._stepper.device
        num_slots = self._stepper.configuration.accumulation_steps
        table = torch.zeros(ranks.num, num_slots, 4, device=device)
        for slot, share in enumerate(micro):
            table[ranks.index, slot] = torch.tensor(
                [share.squared_norm, share.preconditioned, float(share.num_rows), share.loss]
            )
        has_gradient = torch.tensor(
            [float(parameter in total) for parameter in self._parameters], device=device
        )
        for parameter in self._parameters:
            if parameter not in total:
                total[parameter] = torch.zeros_like(parameter, dtype=torch.float32)
        ranks.add_up([table, has_gradient, *(total[p] for p in self._parameters)])
        # A parameter that no rank has used keeps no gradient, and the optimizer passes it over.
        for parameter, count in zip(self._parameters, has_gradient.tolist(), strict=True):
            if count == 0:
                del total[parameter]
        return [
            _Micro(squared_norm, preconditioned, round(num_rows), loss)
            for row in table.tolist()
            for squared_norm, preconditioned, num_rows, loss in row
        ]

    def _squared_norms(self, gradients: Gradients, factor: float) -> tuple[float, float]:
        """Squared norm of gradients times `factor`, plain and preconditioned.

        The second is NaN where any second moment is missing.
        """
        plain: list[torch.Tensor] = []
        preconditioned: list[torch.Tensor] = []
        is_complete = True
        for parameter, gradient in gradients.items():
            options = self._options.get(parameter)
            if options is None:
                continue
            plain.append(torch.linalg.vector_norm(gradient))
            denominator = self._denominator(parameter, options) if is_complete else None
            if denominator is None:
                is_complete = False
            else:
                preconditioned.append(torch.linalg.vector_norm(gradient / denominator))
        return (
            _sum_of_squares(plain, factor),
            _sum_of_squares(preconditioned, factor) if is_complete else math.nan,
        )

    def _denominator(
        self, parameter: torch.nn.Parameter, options: dict[str, Any]
    ) -> torch.Tensor | None:
        """What Adam divides the step of a parameter by; None where that cannot be read.

        Kingma and Ba 2015, "Adam", algorithm 1: `sqrt(v / (1 - beta2 ** t)) + eps`.
        """
        state = self._stepper.optimizer.state.get(parameter, {})
        second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
        if not isinstance(second, torch.Tensor) or second.shape != parameter.shape:
            return None
        if "betas" not in options or "eps" not in options or "step" not in state:
            return None
        num_steps = float(state["step"])
        if num_steps < PRECONDITIONED_AFTER_STEPS:
            return None
        correction = 1 - float(options["betas"][1]) ** num_steps
        root: torch.Tensor = (second.float() / correction).sqrt_()
        return root.add_(float(options["eps"]))


def _sum_of_squares(norms: list[torch.Tensor], factor: float) -> float:
    if not norms:
        return 0.0
    return math.fsum((norm * factor) ** 2 for norm in torch.stack(norms).tolist())
