"""Where local SGD can work: plain data parallel training, in which every rank holds the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import Module, SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from autotune.errors import UsageError
from autotune.runtime.telling import tell

if TYPE_CHECKING:
    from accelerate import Accelerator

_WITHOUT = "Train with plain data parallel (DDP), or without local SGD."
_NAMES = {
    "DEEPSPEED": "DeepSpeed",
    "MEGATRON_LM": "Megatron-LM",
    "TP": "tensor parallel",
}
_PARALLELISMS = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "sp": "sequence parallel",
    "dp_shard": "sharded data parallel",
}
"""Of Accelerate's ParallelismConfig, beside plain data parallel."""


def refuse_unless_plain(accelerator: Accelerator) -> None:
    """Refuses jobs whose ranks do not each train the whole model by themselves.

    Raises:
        UsageError: The job runs under FSDP, DeepSpeed, Megatron-LM, XLA, another parallelism, or
            scales its loss for fp16.
    """
    kind = accelerator.distributed_type.value
    if not kind.startswith("MULTI_"):
        raise _not_plain(_NAMES.get(kind, kind))
    parallelism = getattr(accelerator, "parallelism_config", None)
    for name, words in _PARALLELISMS.items():
        if getattr(parallelism, f"{name}_enabled", False):
            raise _not_plain(words)
    if accelerator.mixed_precision == "fp16":
        raise UsageError(
            "Local SGD does not work with fp16: each rank would scale its loss and skip steps on "
            "its own.",
            "Use bf16.",
        )


def find_ddp(model: Module) -> DistributedDataParallel:
    """The data parallel wrapper of a prepared model, through `torch.compile`.

    Raises:
        UsageError: There is none, it cannot keep gradients on their rank, or the model is sharded.
    """
    inner = model
    while (compiled := getattr(inner, "_orig_mod", None)) is not None:
        inner = compiled
    if isinstance(inner, DistributedDataParallel):
        if inner.static_graph:
            raise UsageError(
                "This model is wrapped with static_graph=True, which has it exchange gradients "
                "whatever it is told.",
                "Leave static_graph out; local SGD does not need it.",
            )
        return inner
    if isinstance(inner, Module) and _is_sharded(inner):
        raise _not_plain("tensor parallel")
    raise UsageError(
        f"This {type(inner).__name__} is not wrapped for data parallel training.",
        "Give the model that accelerator.prepare() returned.",
    )


def warn_of_batch_norm(model: Module, *, is_first: bool) -> None:
    """Says what becomes of batch normalisation where each rank trains by itself.

    Args:
        model: What is trained.
        is_first: Whether this is the first rank; the others say nothing.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if any(isinstance(layer, SyncBatchNorm) for layer in layers):
        tell(
            "SyncBatchNorm exchanges statistics in every forward pass, which undoes what local SGD "
            "saves.",
            is_first=is_first,
        )
    elif any(layer.track_running_stats for layer in layers):
        tell(
            "the running statistics of batch normalisation are averaged with the parameters, but "
            "each rank normalises by its own batches.",
            is_first=is_first,
        )


def _not_plain(what: str) -> UsageError:
    return UsageError(
        f"Local SGD needs every rank to hold the whole model, and this job runs under {what}.",
        _WITHOUT,
    )


def _is_sharded(model: Module) -> bool:
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())
