"""What changes against the configuration that somebody has, in the names that they use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.configuration import Checkpointing, Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting, before and after."""

    name: str
    """As TrainingArguments, Accelerate or the launcher call it."""
    before: str
    after: str

    @property
    def is_change(self) -> bool:
        """Whether anything is different."""
        return self.before != self.after


def settings(before: Configuration, after: Configuration) -> Iterator[Change]:
    """Every knob, changed or not, in a fixed order."""
    yield Change(
        name="per_device_train_batch_size",
        before=str(before.micro_batch_size),
        after=str(after.micro_batch_size),
    )
    yield Change(
        name="gradient_accumulation_steps",
        before=str(before.accumulation_steps),
        after=str(after.accumulation_steps),
    )
    yield Change(
        name="gradient_checkpointing",
        before=_checkpointing(before.checkpointing),
        after=_checkpointing(after.checkpointing),
    )
    if before.world_size > 1 or after.world_size > 1:
        yield Change(name="processes", before=str(before.world_size), after=str(after.world_size))
    if before.local_sgd_steps > 1 or after.local_sgd_steps > 1:
        yield Change(
            name="local SGD steps",
            before=_averaging(before.local_sgd_steps),
            after=_averaging(after.local_sgd_steps),
        )
    yield Change(
        name="global batch size",
        before=str(before.global_batch_size),
        after=str(after.global_batch_size),
    )


def _checkpointing(form: Checkpointing) -> str:
    return str(form).removeprefix("checkpointing ") if form.is_on else "off"


def _averaging(steps: int) -> str:
    return str(steps) if steps > 1 else "off"
