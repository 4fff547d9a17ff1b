"""Local SGD for `Trainer`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, ClassVar

from autotune.errors import UsageError
from autotune.runtime import arguments
from autotune.runtime.exchanges import drop_token_exchange
from autotune.runtime.local_steps import LocalSteps, is_first_rank
from autotune.runtime.plain import refuse_unless_plain
from autotune.runtime.schedule import AveragingSchedule
from autotune.runtime.telling import tell

if TYPE_CHECKING:
    from transformers import Trainer


class LocalSGDCallback(LocalSteps):
    """Has the ranks of a Trainer train by themselves, and average every so many optimizer steps.

    They average trainable parameters and floating-point buffers, and do so before every evaluation,
    every checkpoint, a stop and the end of the training, whichever callback asks for it. Steps are
    those of the whole training, so that a resumed one averages where it would have. On an
    exception nothing is averaged. On one rank it says once that it does nothing.

    Optimizer state is not averaged, and a checkpoint holds that of the first rank, as the Trainer
    saves it; `detach` before going on in plain data parallel. Gradients are clipped by each rank
    alone, whose norm is larger than that of their mean, so that the same `max_grad_norm` clips
    more. A callback of yours that evaluates or saves by itself calls `average` first, on every
    rank.

    Args:
        local_sgd_steps: Optimizer steps between two averagings, 2 or more; 1 would be plain data
            parallel training, which needs no callback.
        ddp_steps: First optimizer steps that are trained in plain data parallel: post-local SGD
            (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020, arXiv 1808.07217).
        qsr_alpha: Averages ever more rarely as the learning rate falls, after
            max(local_sgd_steps, floor((qsr_alpha / learning rate)²)) optimizer steps: the quadratic
            synchronisation rule (Gu et al., 2024, arXiv 2310.14423). The number changes only right
            after an averaging and stays at `local_sgd_steps` while the learning rate rises. With
            qsr_alpha = learning rate × √local_sgd_steps it grows from the first fall on.

    Raises:
        UsageError: A number cannot work, or is none.

    Example:
        >>> callback = autotune.LocalSGDCallback(local_sgd_steps=16).attach(trainer)
        >>> callback.local_sgd_steps
        16
    """

    _fewest_steps: ClassVar[int] = 2

    def __init__(
        self, local_sgd_steps: int = 16, *, ddp_steps: int = 0, qsr_alpha: float | None = None
    ) -> None:
        remedy = "Leave the callback out for plain data parallel training, or give 2 or more."
        steps = arguments.whole("local_sgd_steps", local_sgd_steps, remedy)
        if steps < self._fewest_steps:
            unit = "optimizer step" if steps == 1 else "optimizer steps"
            raise UsageError(f"Local SGD cannot average every {steps} {unit}.", remedy)
        remedy = "Give ddp_steps of 0 or more."
        num_first = arguments.whole("ddp_steps", ddp_steps, remedy)
        if num_first < 0:
            raise UsageError(f"There are no {num_first} first steps.", remedy)
        if qsr_alpha is not None:
            qsr_alpha = arguments.positive(
                "qsr_alpha",
                qsr_alpha,
                "Leave it out, or give a number such as learning rate × √local_sgd_steps.",
            )
        super().__init__(
            AveragingSchedule(local_sgd_steps=steps, ddp_steps=num_first, qsr_alpha=qsr_alpha)
        )
        self._dropped_token_exchange = False

    @property
    def local_sgd_steps(self) -> int:
        """Optimizer steps between two averagings; the fewest, with `qsr_alpha`.

        Example:
            >>> autotune.LocalSGDCallback(8).local_sgd_steps
            8
        """
        return self._schedule.local_sgd_steps

    def attach(self, trainer: Trainer) -> LocalSGDCallback:
        """Adds the callback to a Trainer; it takes effect with the next `train()`.

        On several ranks, unless the training has begun, `average_tokens_across_devices` is switched
        off, which would have ranks wait for each other in every step; a warning of the first rank
        says so. What else defeats local SGD is told when training begins.

        Args:
            trainer: Changed in place, and known from now on; a callback serves one Trainer.

        Returns:
            The callback.

        Raises:
            UsageError: It is attached already, the Trainer has another LocalSGDCallback, every
                parameter is frozen, or the job has several ranks and runs under FSDP, DeepSpeed,
                tensor parallel or with fp16.

        Example:
            >>> callback = autotune.LocalSGDCallback(local_sgd_steps=16, ddp_steps=100)
            >>> callback.attach(trainer) is callback
            True
        """
        from transformers import Trainer as AnyTrainer

        if not isinstance(trainer, AnyTrainer):
            raise UsageError(
                f"A {type(trainer).__name__} is no Trainer.",
                "Give attach() a transformers.Trainer; in an Accelerate loop use FusedLocalSGD.",
            )
        owner = self._trainer() if self._trainer is not None else None
        if owner not in (None, trainer):
            raise UsageError(
                "This LocalSGDCallback serves another Trainer.", "Make one for each Trainer."
            )
        has_ranks = trainer.accelerator.num_processes > 1
        if has_ranks:
            refuse_unless_plain(trainer.accelerator)
        arguments.check_trainable(trainer.model)
        other = attached_to(trainer)
        if other is self and owner is not None:
            raise UsageError(
                "This LocalSGDCallback is attached to this Trainer already.",
                "Leave the second attach() out.",
            )
        if other not in (None, self):
            raise UsageError(
                "This Trainer has another LocalSGDCallback, and two of them would average at cross "
                "purposes.",
                "Call detach() of that one first."
                if other._trainer is not None
                else "Take that one off first, by trainer.remove_callback(LocalSGDCallback).",
            )
        if other is None:
            trainer.add_callback(self)
        self._trainer = weakref.ref(trainer)
        if has_ranks and drop_token_exchange(trainer):
            self._dropped_token_exchange = True
            tell(
                "average_tokens_across_devices is switched off: it would have the ranks wait for "
                "each other in every step.",
                is_first=is_first_rank(trainer),
            )
        return self

    def detach(self) -> None:
        """Takes the callback off its Trainer, which then exchanges gradients in every step again.

        Token counts are exchanged again too, where `attach` had switched that off. Where ranks have
        trained by themselves the optimizer forgets its state, which is another one on each rank,
        and a warning says so; call it on every rank.

        Example:
            >>> callback = autotune.LocalSGDCallback().attach(trainer)
            >>> callback.detach()
            >>> callback in trainer.callback_handler.callbacks
            False
        """
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is not None:
            self._forget_moments(trainer)
            self._leave(trainer)

    def _leave(self, trainer: Trainer) -> None:
        self._release()
        self._trained_apart = False
        if self in trainer.callback_handler.callbacks:
            trainer.remove_callback(self)
        if self._dropped_token_exchange:
            trainer.args.average_tokens_across_devices = True
        self._dropped_token_exchange = False
        self._trainer = None

    def average(self) -> None:
        """Averages now, where a callback evaluates or saves by itself; on every rank.

        Does nothing where nothing was learnt since the last averaging.

        Raises:
            AutotuneError: The ranks have made different numbers of steps, or one is gone.

        Example:
            >>> autotune.LocalSGDCallback().attach(trainer).average()
        """
        self._meet(self._attached_trainer().state.global_step)


def attached_to(trainer: Trainer) -> LocalSGDCallback | None:
    """The callback that a Trainer has."""
    callbacks = trainer.callback_handler.callbacks
    return next((found for found in callbacks if isinstance(found, LocalSGDCallback)), None)
