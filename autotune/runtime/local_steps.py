"""Local SGD inside of `Trainer.train()`: who exchanges gradients, and when ranks average."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from transformers import TrainerCallback

from autotune.errors import UsageError
from autotune.runtime.averaging import ParameterAverage
from autotune.runtime.exchanges import remaining_exchanges
from autotune.runtime.plain import find_ddp, refuse_unless_plain, warn_of_batch_norm
from autotune.runtime.schedule import AveragingSchedule
from autotune.runtime.telling import tell

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments


class LocalSteps(TrainerCallback):  # type: ignore[misc]
    """Reacts to what a Trainer tells its callbacks while it trains.

    The wrapped model is looked up whenever training begins, since the Trainer may wrap it anew.
    Gradients stay on their rank only during the passes of a step, so that whatever comes between
    them finds the model as the Trainer left it.

    It keeps itself the last of the callbacks: whatever another one asks for in the same event, an
    evaluation, a checkpoint, a stop, it then knows of, and averages before the Trainer does it.

    Args:
        schedule: When ranks average.
    """

    def __init__(self, schedule: AveragingSchedule) -> None:
        self._schedule = schedule
        self._trainer: weakref.ref[Trainer] | None = None
        self._ddp: DistributedDataParallel | None = None
        self._average: ParameterAverage | None = None
        self._is_ahead = False
        """Whether this rank has made optimizer steps since the last averaging."""
        self._trained_apart = False
        """Whether the optimizer's state is another one on each rank."""
        self._next_step: int | None = None
        """The optimizer step that the running round ends with; None until its first one is made."""
        self._learning_rate = 0.0
        """At the beginning of the running step."""
        self._has_told = False

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Finds the model; ranks that an earlier training left apart are made equal."""
        self._release()
        trainer = self._attached_trainer()
        if trainer.accelerator.num_processes == 1:
            self._tell_once(
                "local SGD does nothing on one rank; start the job on several, as torchrun does.",
                trainer,
            )
            return
        refuse_unless_plain(trainer.accelerator)
        self._ddp = find_ddp(trainer.model_wrapped)
        self._average = ParameterAverage(self._ddp)
        self._average.average_if_different(num_steps=state.global_step)
        if state.global_step == 0 and self._schedule.ddp_steps:
            self._forget_moments(trainer)
        self._keep_last(trainer)
        if not self._has_told:
            warn_of_batch_norm(self._ddp, is_first=is_first_rank(trainer))
        exchanges = list(remaining_exchanges(trainer, self._schedule.local_sgd_steps))
        if exchanges:
            self._tell_once(f"ranks still wait for each other: {'; '.join(exchanges)}.", trainer)
        self._has_told = True

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        optimizer: Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        """Keeps the gradients of a local step on their rank."""
        if self._ddp is None:
            return
        self._keep_last(self._attached_trainer())
        self._learning_rate = _learning_rate(optimizer)
        self._ddp.require_backward_grad_sync = state.global_step < self._schedule.ddp_steps

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Leaves the model as it was: the backward pass is over."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = True

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        optimizer: Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        """Averages at the end of a round, or where the Trainer is about to need it."""
        step = state.global_step
        if self._ddp is None or step <= self._schedule.ddp_steps:
            return
        self._is_ahead = self._trained_apart = True
        if self._next_step is None:
            self._next_step = self._schedule.next_after(
                step - 1,
                learning_rate=self._learning_rate,
                is_rising=_learning_rate(optimizer) > self._learning_rate,
                last_step=state.max_steps,
            )
        if step >= self._next_step or _is_needed(control):
            self._meet(step)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Averages where an epoch ends with an evaluation, a checkpoint or a stop."""
        if self._ddp is None:
            return
        # An epoch can be left between two micro-batches of a step.
        self._ddp.require_backward_grad_sync = True
        if _is_needed(control):
            self._meet(state.global_step)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Averages what is left, and lets go of the model."""
        self._meet(state.global_step)
        self._release()

    def _meet(self, step: int) -> None:
        """Averages with the other ranks, unless nothing was learnt since the last time."""
        if self._average is None or not self._is_ahead:
            return
        self._average.average(num_steps=step)
        self._is_ahead = False
        self._next_step = None

    def _release(self) -> None:
        """Has the model exchange its gradients again, and forgets it."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = True
        self._ddp = self._average = self._next_step = None
        self._is_ahead = False

    def _forget_moments(self, trainer: Trainer) -> None:
        """Has the optimizer begin anew where ranks are to make equal steps from now on.

        With the moments of another past on each rank, equal gradients would part them again.
        """
        if self._trained_apart and trainer.optimizer is not None:
            trainer.optimizer.state.clear()
            tell(
                "the optimizer begins anew, since each rank had come to moments of its own.",
                is_first=is_first_rank(trainer),
            )
        self._trained_apart = False

    def _attached_trainer(self) -> Trainer:
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is None:
            raise UsageError(
                "This LocalSGDCallback was not attached, and cannot find the Trainer's model.",
                "Write LocalSGDCallback(...).attach(trainer) instead of adding it as a callback.",
            )
        return trainer

    def _keep_last(self, trainer: Trainer) -> None:
        handler = trainer.callback_handler
        if handler.callbacks[-1] is not self:
            # The handler may be going through the old list right now, which must not change.
            others = [callback for callback in handler.callbacks if callback is not self]
            handler.callbacks = [*others, self]

    def _tell_once(self, text: str, trainer: Trainer) -> None:
        if not self._has_told:
            tell(text, is_first=is_first_rank(trainer))
        self._has_told = True


def is_first_rank(trainer: Trainer) -> bool:
    """Whether this process speaks for all ranks of a Trainer."""
    return bool(trainer.accelerator.is_main_process)


def _is_needed(control: TrainerControl) -> bool:
    """Whether the Trainer is about to do something that all ranks must agree on."""
    return bool(control.should_evaluate or control.should_save or control.should_training_stop)


def _learning_rate(optimizer: Optimizer | None) -> float:
    """The largest of all groups, by which ranks drift fastest."""
    groups = optimizer.param_groups if optimizer is not None else []
    return max((float(group["lr"]) for group in groups), default=0.0)
