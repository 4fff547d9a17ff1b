"""One choice of all the knobs, and its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Checkpointing:
    """Which layers drop their activations and recompute them in the backward pass.

    Example:
        >>> print(autotune.Checkpointing(every_n_layers=2))
        checkpointing every 2nd layer
    """

    every_n_layers: int | None = None
    """None: no layer. 1: every layer. n: every n-th layer, counted from the first."""
    offload: bool = False
    """Whether the kept inputs of checkpointed layers wait in host memory."""

    def __post_init__(self) -> None:
        if self.every_n_layers is not None and self.every_n_layers < 1:
            raise ValueError(f"every_n_layers must be at least 1, not {self.every_n_layers}.")
        if self.offload and self.every_n_layers is None:
            raise ValueError("offload needs checkpointing: set every_n_layers.")

    @property
    def is_on(self) -> bool:
        """Whether any layer is checkpointed.

        Example:
            >>> autotune.Checkpointing().is_on
            False
        """
        return self.every_n_layers is not None

    def __str__(self) -> str:
        if self.every_n_layers is None:
            return "no checkpointing"
        layers = {1: "every layer", 2: "every 2nd layer", 3: "every 3rd layer"}.get(
            self.every_n_layers, f"every {self.every_n_layers}th layer"
        )
        return f"checkpointing {layers}{', offloaded' if self.offload else ''}"


NO_CHECKPOINTING = Checkpointing()
"""Every layer keeps its activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One choice of all the knobs.

    The global batch size is derived, so that it cannot disagree with its factors.

    Example:
        >>> print(autotune.Configuration(micro_batch_size=8, accumulation_steps=4))
        8×4
    """

    micro_batch_size: int
    """Samples per device in one forward and backward pass."""
    accumulation_steps: int
    """Micro-batches per optimizer step."""
    world_size: int = 1
    """Ranks that train together."""
    checkpointing: Checkpointing = NO_CHECKPOINTING
    local_sgd_steps: int = 1
    """Optimizer steps between two averagings of the parameters; 1 is plain data parallel."""

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "accumulation_steps", "world_size", "local_sgd_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step, over all ranks.

        Example:
            >>> autotune.Configuration(micro_batch_size=8, accumulation_steps=4).global_batch_size
            32
        """
        return self.micro_batch_size * self.accumulation_steps * self.world_size

    def to_json(self) -> dict[str, object]:
        """The public JSON form, which also states the global batch size.

        Example:
            >>> autotune.Configuration(micro_batch_size=8, accumulation_steps=4).to_json()
            {'micro_batch_size': 8, 'accumulation_steps': 4, ... 'local_sgd_steps': 1}
        """
        return {
            "micro_batch_size": self.micro_batch_size,
            "accumulation_steps": self.accumulation_steps,
            "world_size": self.world_size,
            "global_batch_size": self.global_batch_size,
            "checkpointing": asdict(self.checkpointing),
            "local_sgd_steps": self.local_sgd_steps,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Configuration:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: A field is missing or not one of ours, or the stated global batch size is
                not the product of its factors.

        Example:
            >>> document = {'micro_batch_size': 2, 'accumulation_steps': 3}
            >>> print(autotune.Configuration.from_json(document))
            2×3
        """
        fields = dict(document)
        stated = fields.pop("global_batch_size", None)
        checkpointing = fields.pop("checkpointing", {})
        if not isinstance(checkpointing, Mapping):
            raise ValueError("checkpointing must be an object.")
        try:
            configuration = cls(checkpointing=Checkpointing(**checkpointing), **fields)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(f"This is no configuration: {document}.") from error
        if stated is not None and stated != configuration.global_batch_size:
            raise ValueError(
                f"global_batch_size {stated} is not {configuration.micro_batch_size} × "
                f"{configuration.accumulation_steps} × {configuration.world_size}."
            )
        return configuration

    def __str__(self) -> str:
        parts = [f"{self.micro_batch_size}×{self.accumulation_steps}"]
        if self.world_size > 1:
            parts[0] += f"×{self.world_size} ranks"
        if self.checkpointing.is_on:
            parts.append(str(self.checkpointing))
        if self.local_sgd_steps > 1:
            parts.append(f"local SGD {self.local_sgd_steps}")
        return ", ".join(parts)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of `number`, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def default_baseline(global_batch_size: int, world_size: int = 1) -> Configuration:
    """The configuration of a user who has none: micro-batch 8, or the largest divisor below it.

    Args:
        global_batch_size: Samples per optimizer step, over all ranks.
        world_size: Ranks that share it; must divide it.
    """
    per_device, rest = divmod(global_batch_size, world_size)
    if rest:
        raise ValueError(f"{global_batch_size} is not a multiple of {world_size} ranks.")
    micro_batch_size = max(d for d in divisors(per_device) if d <= 8)
    return Configuration(
        micro_batch_size=micro_batch_size,
        accumulation_steps=per_device // micro_batch_size,
        world_size=world_size,
    )
