"""Averages what a model learns over the ranks that train it, in few large exchanges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from autotune.errors import AutotuneError

BUCKET_BYTES = 64 * 1024**2
"""What is exchanged at once: large enough that the wire and not the number of messages decides,
small enough that the copy is lost beside the gradients that averaging follows."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes, to look at the bits of any number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kind:
    """Pieces that can travel in one message, in buckets."""

    dtype: torch.dtype
    """On the wire."""
    device: torch.device
    buckets: list[list[Tensor]]
    """Views of what is averaged."""

    def add(self, piece: Tensor, bucket_bytes: int) -> None:
        """Puts a piece into the last bucket, or into a new one."""
        room = bucket_bytes // self.dtype.itemsize
        if not self.buckets or _numel(self.buckets[-1]) + piece.numel() > room:
            self.buckets.append([])
        self.buckets[-1].append(piece)


class ParameterAverage:
    """The mean over all ranks of what a model learns, written back in place.

    Averaged are trainable parameters and floating-point buffers, such as the running statistics of
    batch normalisation. Frozen parameters of whatever type stay, and so does what DDP was told to
    ignore. Tensors are looked up for every averaging, so that a model may replace its own; one
    that was trainable once stays among them. Each is copied back into its own storage.

    Pieces of one dtype and device travel together, at most `bucket_bytes` at a time and in their
    own precision. Every rank must call the same methods in the same order.

    Args:
        ddp: The model as the data parallel wrapper holds it; its process group is used.
        bucket_bytes: Largest message; only a tensor whose elements do not lie side by side can
            be larger, alone.
    """

    def __init__(self, ddp: DistributedDataParallel, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._ddp = ddp
        self._bucket_bytes = bucket_bytes
        self._group = ddp.process_group
        self._num_ranks = dist.get_world_size(self._group)
        self._trained: set[str] = set()
        self._note_trainable()

    @property
    def num_bytes(self) -> int:
        """Bytes that one averaging hands to the exchange, on each rank."""
        return sum(
            _numel(bucket) * kind.dtype.itemsize for kind in self._plan() for bucket in kind.buckets
        )

    @property
    def num_collectives(self) -> int:
        """All-reduces of one averaging; comparing the counts of steps is one more, of 32 bytes."""
        return sum(len(kind.buckets) for kind in self._plan())

    def average(self, *, num_steps: int | None = None) -> None:
        """Replaces every tensor by its mean over the ranks.

        Args:
            num_steps: How many steps this rank has made; where it is given, ranks compare it first.

        Raises:
            AutotuneError: The ranks have made different numbers of steps, and nothing was changed;
                or a rank is gone, or does not come before the process group's time limit.
        """
        if num_steps is not None:
            self._compare(num_steps)
        self._exchange()

    def parameters(self) -> Iterator[Tensor]:
        """What is averaged, without buffers, in the same order on every rank; complex as real."""
        self._note_trainable()
        for name, parameter in self._ddp.module.named_parameters():
            if name in self._trained and name not in self._ddp.parameters_to_ignore:
                value = parameter.detach()
                yield torch.view_as_real(value) if value.is_complex() else value

    def average_if_different(self, *, num_steps: int) -> bool:
        """Averages only where the ranks differ in any bit, which costs one small message to know.

        Returns:
            Whether they differed.

        Raises:
            AutotuneError: As `average` does.
        """
        differs = not self._compare(num_steps, self._checksum())
        if differs:
            self._exchange()
        return differs

    def _note_trainable(self) -> None:
        self._trained.update(
            name
            for name, parameter in self._ddp.module.named_parameters()
            if parameter.requires_grad
        )

    def _tensors(self) -> Iterator[Tensor]:
        """Everything that is averaged, in the same order on every rank."""
        yield from self.parameters()
        for name, buffer in self._ddp.module.named_buffers():
            if buffer.is_floating_point() and name not in self._ddp.parameters_to_ignore:
                yield buffer.detach()

    def _plan(self) -> Sequence[_Kind]:
        kinds: dict[tuple[torch.dtype, torch.device], _Kind] = {}
        for tensor in self._tensors():
            # No backend adds up numbers of one byte.
            dtype = tensor.dtype if tensor.dtype.itemsize > 1 else torch.float32
            kind = kinds.setdefault(
                (dtype, tensor.device), _Kind(dtype=dtype, device=tensor.device, buckets=[])
            )
            for view in _views(tensor, self._bucket_bytes // dtype.itemsize):
                kind.add(view, self._bucket_bytes)
        return tuple(kinds.values())

    @torch.no_grad()
    def _exchange(self) -> None:
        for kind in self._plan():
            largest = max((_numel(bucket) for bucket in kind.buckets), default=0)
            staging = torch.empty(largest, dtype=kind.dtype, device=kind.device)
            for bucket in kind.buckets:
                message = staging[: _numel(bucket)]
                chunks = message.split([piece.numel() for piece in bucket])
                for chunk, piece in zip(chunks, bucket, strict=True):
                    chunk.view(piece.shape).copy_(piece)
                # Dividing first keeps the largest number of a dtype, which masks hold, finite.
                message.div_(self._num_ranks)
                self._all_reduce(message)
                for chunk, piece in zip(chunks, bucket, strict=True):
                    piece.copy_(chunk.view(piece.shape))

    @torch.no_grad()
    def _checksum(self) -> Tensor:
        """The sum of all bits read as integers: equal where ranks hold the same values."""
        total = torch.zeros((), dtype=torch.int64, device=self._ddp.device)
        for tensor in self._tensors():
            bits = tensor.view(_INTEGERS[tensor.dtype.itemsize])
            total += bits.sum(dtype=torch.int64).to(total.device)
        return total

    def _compare(self, num_steps: int, checksum: Tensor | None = None) -> bool:
        """Whether all ranks have the same checksum; their steps must be the same."""
        steps = torch.tensor(num_steps, dtype=torch.int64, device=self._ddp.device)
        checksum = torch.zeros_like(steps) if checksum is None else checksum
        ends = torch.stack([steps, -steps, checksum, -checksum])
        self._all_reduce(ends, dist.ReduceOp.MAX)
        most, fewest, highest, lowest = ends.tolist()
        if most != -fewest:
            raise AutotuneError(
                f"The ranks have made different numbers of steps, {-fewest} to {most}, so that "
                "their parameters cannot be averaged.",
                "Give every rank the same number of batches (even_batches=True), and let all leave "
                "the loop after the same step.",
            )
        return bool(highest == -lowest)

    def _all_reduce(self, message: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
        try:
            dist.all_reduce(message, op=op, group=self._group)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise AutotuneError(
                "The parameters could not be averaged, since a rank is gone or did not come in "
                f"time: {_reason(error)}.",
                "Look at the output of the other ranks for what came first; all must make the same "
                "number of steps.",
            ) from error


def _reason(error: RuntimeError) -> str:
    """The first sentence of a message, without the place in the library that it begins with."""
    return re.sub(r"^\s*\[[^\]]*\]\s*", "", str(error)).partition(". ")[0].strip().rstrip(".")


def _numel(bucket: Sequence[Tensor]) -> int:
    return sum(piece.numel() for piece in bucket)


def _views(tensor: Tensor, num_most: int) -> Sequence[Tensor]:
    """Views of a tensor that together are all of it, each of so many elements at most.

    Elements that fill their storage are taken in its order, whatever the strides; others cannot be
    cut without a copy, and are one view.
    """
    if not tensor.numel():
        return ()
    in_order = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return in_order.view(-1).split(num_most) if in_order.is_contiguous() else (tensor,)
