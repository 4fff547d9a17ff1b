"""Makes a Trainer of its parts, also one of a subclass whose constructor is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import Trainer, TrainingArguments


def make_trainer(
    model: torch.nn.Module,
    arguments: TrainingArguments,
    *,
    train_dataset: object,
    data_collator: object | None,
    processing_class: object | None,
    optimizers: tuple[object | None, object | None] = (None, None),
    trainer_class: type[Trainer] | None = None,
    options: Mapping[str, object],
    attributes: Mapping[str, object],
) -> Trainer:
    """A Trainer of `trainer_class` that was made by the base class alone.

    A subclass's own constructor has run once, when the user made the Trainer; what it left behind
    comes back as attributes. They are set first, since the base calls methods of the subclass, and
    once more at the end, since the base sets some of them itself.
    """
    from transformers import Trainer

    trainer: Trainer = object.__new__(trainer_class or Trainer)
    vars(trainer).update(attributes)
    Trainer.__init__(
        trainer,
        model=model,
        args=arguments,
        data_collator=data_collator,
        train_dataset=train_dataset,
        processing_class=processing_class,
        optimizers=optimizers,
        **options,
    )
    vars(trainer).update(attributes)
    return trainer
