"""The one protocol through which trials, parity checks and memory passes drive a training loop."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from autotune.configuration import Configuration
from autotune.trial.training_arguments import (
    is_stream,
    set_checkpointing,
    training_arguments,
)
from autotune.workload.live.trainer import make_trainer
from autotune.workload.loaded import Batch, LoadedWorkload, Row, num_rows

if TYPE_CHECKING:
    from accelerate import Accelerator

Driver: TypeAlias = Literal["trainer", "accelerate"]

SCHEDULE_STEPS = 1_000_000
"""Length of the learning-rate schedule in trials: long enough that the rate never reaches zero."""


class Stepper(ABC):
    """A training loop bound to one configuration, taken apart into its steps.

    A window is the list of micro-batches of one optimizer step. Call order: `next_window` or
    `set_window`, then `micro_step` for each of its batches, then `optimizer_step`.
    """

    accelerator: Accelerator
    model: torch.nn.Module
    """As the loop calls it: wrapped by Accelerate."""
    optimizer: torch.optim.Optimizer
    device: torch.device

    def __init__(self, workload: LoadedWorkload, configuration: Configuration) -> None:
        self.workload = workload
        self.configuration = configuration
        self._batches: Iterator[Batch] | None = None
        self._epoch = 0
        self._rows_per_batch = 0

    @abstractmethod
    def collate(self, rows: Sequence[Row]) -> Batch:
        """One micro-batch of these rows, as the loop's own data loader would make it."""

    @abstractmethod
    def set_window(self, window: list[Batch]) -> None:
        """Announces the micro-batches of the coming optimizer step."""

    @abstractmethod
    def loss(self, batch: Batch) -> torch.Tensor:
        """Forward pass of one micro-batch of the announced window, as the loop runs it."""

    @abstractmethod
    def micro_step(self, batch: Batch, *, is_last: bool) -> torch.Tensor:
        """Forward and backward of one micro-batch; returns its share of the window's loss."""

    @abstractmethod
    def optimizer_step(self) -> torch.Tensor | float | None:
        """Clips, steps optimizer and schedule, clears gradients; returns the norm if known."""

    @abstractmethod
    def _loader(self) -> Iterator[Batch]:
        """A new pass over the training data in the loop's own order."""

    def num_rows(self, batch: Batch) -> int:
        """Rows of a micro-batch."""
        return (self.workload.count_rows or num_rows)(batch)

    def next_window(self) -> list[Batch]:
        """Fetches the micro-batches of the next full optimizer step.

        The short window at the end of an epoch is passed over, since its rows are not a global
        batch; where no epoch holds a full window, the short one is returned.

        Raises:
            ValueError: The data yields no batch at all.
        """
        num = self.configuration.accumulation_steps
        while True:
            is_first = self._batches is None
            if self._batches is None:
                self._batches = self._loader()
            taken = zip(range(num), self._batches, strict=False)
            # Of a loader without any batch, earlier versions of Accelerate make a None.
            window = [batch for _, batch in taken if batch is not None]
            rows = [self.num_rows(batch) for batch in window]
            self._rows_per_batch = max([self._rows_per_batch, *rows])
            is_full = len(window) == num and min(rows) == self._rows_per_batch
            if not is_full:
                self._batches = None
                self._epoch += 1
            if is_full or (window and is_first):
                self.set_window(window)
                return window
            if is_first:
                raise ValueError(
                    "The training data yields no batch at a micro-batch size of "
                    f"{self.configuration.micro_batch_size}."
                )


class TrainerStepper(Stepper):
    """Drives a real Trainer through its own batches, training step and optimizer path."""

    def __init__(
        self,
        workload: LoadedWorkload,
        configuration: Configuration,
        output_dir: str,
        *,
        repair_loss: bool = False,
        find_unused: bool = False,
    ) -> None:
        super().__init__(workload, configuration)
        self.trainer = make_trainer(
            workload.model,
            training_arguments(workload, configuration, output_dir, find_unused=find_unused),
            train_dataset=workload.train_dataset,
            data_collator=workload.data_collator,
            processing_class=workload.processing_class,
            optimizers=workload.optimizers,
            trainer_class=workload.trainer_class,
            options=workload.trainer_options,
            attributes=workload.trainer_attributes,
        )
        trainer = self.trainer
        self.accelerator = trainer.accelerator
        if repair_loss:
            trainer.model_accepts_loss_kwargs = False
        self._dataloader = trainer.get_train_dataloader()
        set_checkpointing(trainer.model, configuration.checkpointing)
        trainer.create_optimizer_and_scheduler(SCHEDULE_STEPS)
        wrapped = trainer._wrap_model(trainer.model_wrapped)
        self.model, trainer.optimizer = trainer.accelerator.prepare(wrapped, trainer.optimizer)
        trainer.model_wrapped = self.model
        self.optimizer = trainer.optimizer
        self.device = trainer.args.device
        self._num_items: torch.Tensor | int | None = None
        self._takes_device = "device" in inspect.signature(trainer.get_batch_samples).parameters

    def collate(self, rows: Sequence[Row]) -> Batch:
        """One micro-batch, by the collator of the Trainer's own data loader."""
        collate = getattr(self._dataloader, "collate_fn", self.trainer.data_collator)
        batch: Batch = collate(list(rows))
        return batch

    def set_window(self, window: list[Batch]) -> None:
        """Lets the Trainer count what its loss is averaged over."""
        device = (self.device,) if self._takes_device else ()
        batches, self._num_items = self.trainer.get_batch_samples(
            iter(window), len(window), *device
        )
        self.trainer.current_gradient_accumulation_steps = len(batches)

    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss as the Trainer computes it."""
        trainer = self.trainer
        loss: torch.Tensor = trainer.compute_loss(
            self.model, trainer._prepare_inputs(batch), num_items_in_batch=self._num_items
        )
        return loss

    def micro_step(self, batch: Batch, *, is_last: bool) -> torch.Tensor:
        """The Trainer's training step, synchronising gradients only after the last micro-batch."""
        trainer = self.trainer
        trainer.accelerator.gradient_state._set_sync_gradients(is_last)
        context: AbstractContextManager[object] = (
            nullcontext() if is_last else trainer.accelerator.no_sync(model=self.model)
        )
        with context:
            loss: torch.Tensor = trainer.training_step(self.model, batch, self._num_items)
        if trainer.args.logging_nan_inf_filter:
            # The Trainer looks at every loss, which on a device waits for it.
            bool(torch.isnan(loss) or torch.isinf(loss))
        return loss

    def optimizer_step(self) -> torch.Tensor | float | None:
        """Clips as the Trainer's arguments say, steps, and clears the gradients."""
        trainer = self.trainer
        norm: torch.Tensor | float | None = None
        if trainer.args.max_grad_norm is not None and trainer.args.max_grad_norm > 0:
            norm = trainer.accelerator.clip_grad_norm_(
                self.model.parameters(), trainer.args.max_grad_norm
            )
        self.optimizer.step()
        if not trainer.accelerator.optimizer_step_was_skipped and not isinstance(
            trainer.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
        ):
            trainer.lr_scheduler.step()
        self.model.zero_grad()
        trainer.state.global_step += 1
        return norm

    def _loader(self) -> Iterator[Batch]:
        if hasattr(self._dataloader, "set_epoch"):
            self._dataloader.set_epoch(self._epoch)
        return iter(self._dataloader)


class AccelerateStepper(Stepper):
    """Drives the plain Accelerate loop that is exported as `accelerator.py`, line by line.

    The loss of a micro-batch is weighted with its share of the window's items, so that a window
    trains as one batch whatever its split.
    """

    def __init__(
        self,
        workload: LoadedWorkload,
        configuration: Configuration,
        output_dir: str,
        *,
        find_unused: bool = False,
    ) -> None:
        super().__init__(workload, configuration)
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration, DistributedDataParallelKwargs
        from transformers import Trainer, get_scheduler, set_seed

        arguments = training_arguments(workload, configuration, output_dir)
        has_no_length = is_stream(workload)
        self.accelerator = Accelerator(
            gradient_accumulation_steps=configuration.accumulation_steps,
            mixed_precision="bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "no",
            cpu=arguments.use_cpu,
            # Without it the order of the rows would depend on what drew random numbers before.
            dataloader_config=DataLoaderConfiguration(
                use_seedable_sampler=not has_no_length,
                dispatch_batches=False if has_no_length else None,
            ),
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=find_unused)],
        )
        set_seed(arguments.seed)
        config: Any = getattr(workload.model, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False
        set_checkpointing(workload.model, configuration.checkpointing)
        dataloader: torch.utils.data.DataLoader[Row] = torch.utils.data.DataLoader(
            workload.train_dataset,
            batch_size=configuration.micro_batch_size,
            shuffle=not has_no_length,
            collate_fn=workload.data_collator,
        )
        optimizer_class, optimizer_options = Trainer.get_optimizer_cls_and_kwargs(arguments)
        optimizer = optimizer_class(
            decay_groups(workload.model, arguments.weight_decay), **optimizer_options
        )
        self.model, self.optimizer, self._dataloader = self.accelerator.prepare(
            workload.model, optimizer, dataloader
        )
        self._scheduler = get_scheduler(
            arguments.lr_scheduler_type,
            self.optimizer,
            num_warmup_steps=0,
            num_training_steps=SCHEDULE_STEPS,
        )
        self.device = self.accelerator.device
        self._max_grad_norm = arguments.max_grad_norm
        self._window_items: torch.Tensor | int = 0
        self.shares_items = (
            self.accelerator.num_processes > 1
            and configuration.local_sgd_steps == 1
            and (configuration.accumulation_steps > 1 or workload.loss_items != "rows")
        )
        """Whether the mean runs over the windows of all ranks, since their gradients are joined."""

    def collate(self, rows: Sequence[Row]) -> Batch:
        """One micro-batch, by the workload's collator."""
        return self.workload.data_collator(list(rows))

    def set_window(self, window: list[Batch]) -> None:
        """Counts the items that the window's loss is averaged over, on all ranks that meet."""
        self._window_items = sum(self._num_items(batch) for batch in window)
        if self.shares_items:
            items = torch.as_tensor(self._window_items, device=self.device)
            self._window_items = self.accelerator.gather(items).sum()
        self.model.train()

    def _num_items(self, batch: Batch) -> torch.Tensor | int:
        labels = batch.get("labels")
        if self.workload.loss_items == "rows" or labels is None:
            return self.num_rows(batch)
        if self.workload.loss_items == "shifted_tokens":
            labels = labels[..., 1:]
        return (labels != -100).sum()

    def loss(self, batch: Batch) -> torch.Tensor:
        """The model's own loss."""
        inputs = {
            name: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        loss: torch.Tensor = self.model(**inputs).loss
        return loss

    def micro_step(self, batch: Batch, *, is_last: bool) -> torch.Tensor:
        """Forward, and backward of the weighted loss."""
        accelerator = self.accelerator
        context: AbstractContextManager[object] = (
            nullcontext() if is_last else accelerator.no_sync(self.model)
        )
        with context:
            loss = self.loss(batch) * self._num_items(batch) / self._window_items
            scale = self.configuration.accumulation_steps
            if self.shares_items:
                scale *= accelerator.num_processes
            accelerator.backward(loss * scale)
        # On this rank's part of the rows, in the mean over the ranks.
        return loss.detach() * (accelerator.num_processes if self.shares_items else 1)

    def optimizer_step(self) -> torch.Tensor | float | None:
        """Clips, steps optimizer and schedule, clears the gradients."""
        norm: torch.Tensor | float | None = self.accelerator.clip_grad_norm_(
            self.model.parameters(), self._max_grad_norm
        )
        self.optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:
            self._scheduler.step()
        self.optimizer.zero_grad()
        return norm

    def _loader(self) -> Iterator[Batch]:
        if hasattr(self._dataloader, "set_epoch"):
            self._dataloader.set_epoch(self._epoch)
        return iter(self._dataloader)


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Parameter groups by the rule of the installed Trainer: weights decay, the rest does not."""
    from transformers import Trainer

    # The rule looks at the model alone, never at the Trainer that it is a method of.
    names = set(Trainer.get_decay_parameter_names(None, model))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in trained if name in names], "weight_decay": weight_decay},
        {"params": [p for name, p in trained if name not in names], "weight_decay": 0.0},
    ]


def make_stepper(
    workload: LoadedWorkload,
    configuration: Configuration,
    *,
    driver: Driver,
    output_dir: str,
    repair_loss: bool,
    find_unused: bool = False,
) -> Stepper:
    """The stepper of a driver, bound to a configuration and ready for its first window.

    Args:
        workload: What is trained.
        configuration: How.
        driver: Whose loop it is.
        output_dir: For what a loop insists on writing.
        repair_loss: Whether a Trainer's loss must not be handed a count that it ignores.
        find_unused: Whether ranks that exchange gradients look for parameters without one.
    """
    if driver == "trainer":
        return TrainerStepper(
            workload, configuration, output_dir, repair_loss=repair_loss, find_unused=find_unused
        )
    return AccelerateStepper(workload, configuration, output_dir, find_unused=find_unused)


def train_window(stepper: Stepper, window: list[Batch]) -> torch.Tensor:
    """One whole optimizer step over a window; returns its loss."""
    total: torch.Tensor | None = None
    for index, batch in enumerate(window):
        loss = stepper.micro_step(batch, is_last=index == len(window) - 1)
        total = loss if total is None else total + loss
    stepper.optimizer_step()
    assert total is not None, "a window has at least one micro-batch"
    return total
