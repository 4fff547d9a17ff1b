"""Local SGD for Accelerate loops: what `accelerate.local_sgd.LocalSGD` does, in few exchanges."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from torch.nn import Module

from autotune.errors import UsageError
from autotune.runtime import arguments
from autotune.runtime.averaging import ParameterAverage
from autotune.runtime.plain import find_ddp, refuse_unless_plain, warn_of_batch_norm
from autotune.runtime.telling import tell

if TYPE_CHECKING:
    from accelerate import Accelerator


class FusedLocalSGD:
    """Ranks train by themselves inside of the block, and average every so many steps.

    Takes the place of `accelerate.local_sgd.LocalSGD`: same arguments, same methods, same unit.
    What is averaged travels in few large messages instead of one for each tensor, and is

    - trainable parameters and floating-point buffers: adapters without their frozen base, models
      with quantised frozen weights, running statistics;
    - written into the storage that is there, so that compiled and captured code stays valid.

    Leaving the block averages once more, unless the ranks are equal already. After an exception
    nothing is averaged. Ranks that have made different numbers of steps are found at the next
    averaging, and every one of them raises. On one rank, and with `enabled=False`, it does nothing.

    Optimizer state is not averaged: make the optimizer anew before going on in plain data parallel.
    Gradients are clipped by each rank alone, whose norm is larger than that of their mean.

    Args:
        accelerator: Of the job.
        model: As `accelerator.prepare` returned it, perhaps compiled.
        local_sgd_steps: Calls of `step()` between two averagings. Call it after each *optimizer*
            step, as below, for local SGD steps as everywhere in this package; in a loop that calls
            it after every micro-batch, as in Accelerate's own documentation, multiply by the
            accumulation steps.
        enabled: Whether to do anything. Where not, nothing else of what is given is looked at.

    Raises:
        UsageError: An argument is of the wrong kind or cannot work, or nothing of the model is
            trainable; or several ranks under FSDP, DeepSpeed, Megatron-LM, XLA or tensor parallel,
            with fp16, or with a model that was not prepared.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        >>> model = accelerator.prepare(trainer.model)
        >>> optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters()))
        >>> with autotune.FusedLocalSGD(
        ...     accelerator=accelerator, model=model, local_sgd_steps=16
        ... ) as local_sgd:
        ...     for batch in trainer.get_train_dataloader():
        ...         with accelerator.accumulate(model):
        ...             accelerator.backward(model(**batch).loss)
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        ...             if accelerator.sync_gradients:
        ...                 local_sgd.step()
        >>> local_sgd.num_steps
        8
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: Module,
        local_sgd_steps: int,
        enabled: bool = True,
    ) -> None:
        self.num_steps = 0
        self.local_sgd_steps = local_sgd_steps
        self._without_exchange: AbstractContextManager[None] | None = None
        self.enabled = arguments.switch("enabled", enabled)
        if not enabled:
            return
        arguments.check_accelerator(accelerator)
        arguments.check_model(model)
        remedy = "Give local_sgd_steps of 2 or more."
        self.local_sgd_steps = arguments.whole("local_sgd_steps", local_sgd_steps, remedy)
        if self.local_sgd_steps < 1:
            raise UsageError(f"Ranks cannot average every {local_sgd_steps} steps.", remedy)
        self.enabled = accelerator.num_processes > 1
        if not self.enabled:
            return
        refuse_unless_plain(accelerator)
        self._ddp = find_ddp(model)
        self._average = ParameterAverage(self._ddp)
        is_first = accelerator.is_main_process
        warn_of_batch_norm(self._ddp, is_first=is_first)
        if self.local_sgd_steps == 1:
            tell(
                "averaging after every step is slower than plain data parallel training and not "
                "the same under Adam or clipping; use enabled=False instead.",
                is_first=is_first,
            )

    def __enter__(self) -> FusedLocalSGD:
        if self.enabled:
            self._without_exchange = self._ddp.no_sync()
            self._without_exchange.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._without_exchange is None:
            return
        self._without_exchange.__exit__(kind, error, traceback)
        self._without_exchange = None
        if error is None:
            self._average.average_if_different(num_steps=self.num_steps)

    def step(self) -> None:
        """Counts a step, and averages after each `local_sgd_steps` of them.

        Raises:
            AutotuneError: The ranks have made different numbers of steps, or one is gone.

        Example:
            >>> from accelerate import Accelerator
            >>> accelerator = Accelerator(cpu=True)
            >>> with autotune.FusedLocalSGD(accelerator, trainer.model, 16) as local_sgd:
            ...     local_sgd.step()
            >>> local_sgd.num_steps
            1
        """
        self.num_steps += 1
        if self.enabled and self.num_steps % self.local_sgd_steps == 0:
            self.average()

    def average(self) -> None:
        """Averages now, as is needed before evaluating or saving inside of the block.

        Every rank must call it after the same step.

        Raises:
            AutotuneError: The ranks have made different numbers of steps, or one is gone.

        Example:
            >>> from accelerate import Accelerator
            >>> accelerator = Accelerator(cpu=True)
            >>> with autotune.FusedLocalSGD(accelerator, trainer.model, 16) as local_sgd:
            ...     local_sgd.average()
            ...     accelerator.save_model(trainer.model, "checkpoint")
        """
        if self.enabled:
            self._average.average(num_steps=self.num_steps)
