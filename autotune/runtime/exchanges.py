"""What a Trainer exchanges between ranks beside gradients, which undoes what local SGD saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from transformers import Trainer


def drop_token_exchange(trainer: Trainer) -> bool:
    """Has each rank count its own tokens, unless the training has begun.

    Returns:
        Whether that is a change.
    """
    if not _averages_tokens(trainer) or trainer.state.global_step > 0:
        return False
    trainer.args.average_tokens_across_devices = False
    return True


def remaining_exchanges(trainer: Trainer, local_sgd_steps: int) -> Iterator[str]:
    """Settings under which ranks wait for each other between two averagings, with the remedy."""
    arguments = trainer.args
    if _averages_tokens(trainer):
        yield (
            "tokens are counted over all ranks in every optimizer step: set "
            "average_tokens_across_devices=False before training"
        )
    dispatches = getattr(trainer.accelerator, "dispatch_batches", None)
    is_iterable = isinstance(trainer.train_dataset, IterableDataset)
    if dispatches or (dispatches is None and is_iterable):
        yield (
            "the first rank reads all batches and sends them to the others: set "
            'accelerator_config={"dispatch_batches": False}'
        )
    if arguments.include_num_input_tokens_seen not in (False, "no"):
        yield (
            "tokens seen are added up over all ranks in every micro-batch: set "
            "include_num_input_tokens_seen=False"
        )
    strategy = getattr(arguments.logging_strategy, "value", arguments.logging_strategy)
    interval = trainer.state.logging_steps
    if strategy == "steps" and 0 < interval < local_sgd_steps:
        yield (
            f"the loss is gathered from all ranks every {interval} steps to be logged: set "
            f"logging_steps to {local_sgd_steps} or more"
        )


def _averages_tokens(trainer: Trainer) -> bool:
    return bool(getattr(trainer.args, "average_tokens_across_devices", False))
