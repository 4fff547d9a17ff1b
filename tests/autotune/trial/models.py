"""Models with, without and with only the looks of a switch for checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from autotune.trial.training_arguments import supported_checkpointing
from autotune.workload.loaded import Row

try:
    from transformers.modeling_layers import GradientCheckpointingLayer
except ImportError:

    class GradientCheckpointingLayer(nn.Module):  # type: ignore[no-redef]
        """What earlier versions wrote out in every model."""

        gradient_checkpointing = False
        _gradient_checkpointing_func: Any

        def __call__(self, *args: Any) -> Any:
            if self.gradient_checkpointing and self.training:
                return self._gradient_checkpointing_func(super().__call__, *args)
            return super().__call__(*args)


def token_rows(num: int, *, length: int = 12, vocabulary: int = 64) -> list[Row]:
    """Rows for a language model, all of one length."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (num, length), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def float_rows(num: int, *, width: int = 48) -> list[Row]:
    """Rows for a classifier of vectors."""
    values = torch.randn(num, width, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "labels": torch.tensor(i % 4)} for i, row in enumerate(values)]


class RecurrentConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "recurrent_by_hand"


class Recurrent(PreTrainedModel):  # type: ignore[misc]
    """Never said that it supports checkpointing."""

    config_class = RecurrentConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(64, 24)
        self.layer = nn.GRU(24, 24, batch_first=True)
        self.head = nn.Linear(24, 64)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.layer(self.table(input_ids))[0])
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def recurrent() -> Recurrent:
    return Recurrent(RecurrentConfig())


class Bare(nn.Module):
    """Of torch alone, so without any switch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = recurrent()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output: dict[str, torch.Tensor] = self.inner(input_ids, labels)
        return output


class _Deaf(nn.Module):
    gradient_checkpointing = False
    """The attribute is there, so that the switch is accepted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.as_tensor(self.narrow(torch.tanh(self.wide(hidden))))


class _Obeying(GradientCheckpointingLayer):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.as_tensor(self.narrow(torch.tanh(self.wide(hidden))))


class LayersConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "layers_by_hand"

    def __init__(self, num_layers: int = 6, obeys: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.num_layers = num_layers
        self.obeys = obeys


class Layers(PreTrainedModel):  # type: ignore[misc]
    """Says that it supports checkpointing, and may or may not do so."""

    config_class = LayersConfig
    supports_gradient_checkpointing = True
    main_input_name = "x"

    def __init__(self, config: LayersConfig) -> None:
        super().__init__(config)
        kind = _Obeying if config.obeys else _Deaf
        self.blocks = nn.ModuleList([kind(48) for _ in range(config.num_layers)])
        self.head = nn.Linear(48, 4)
        self.post_init()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _takes_every_n() -> bool:
    return supported_checkpointing(recurrent()).get("every_n_layers", False)


needs_every_n = pytest.mark.skipif(
    not _takes_every_n(), reason="the installed transformers checkpoints every layer or none"
)


def layers(num_layers: int = 6, *, obeys: bool = True) -> Layers:
    torch.manual_seed(0)
    return Layers(LayersConfig(num_layers=num_layers, obeys=obeys))


class Failing(Layers):
    """Its switch is taken, and its forward pass then fails."""

    error: Exception

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.blocks[1].gradient_checkpointing:
            raise self.error
        output: dict[str, torch.Tensor] = super().forward(x, labels)
        return output


def failing(error: Exception) -> Failing:
    model = Failing(LayersConfig())
    model.error = error
    return model
