"""What two ranks find of one averaging: which tensors, in which messages, and how they are left."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autotune.runtime.averaging import ParameterAverage
from tests.autotune.runtime.ranks import Facts, counted, difference, flat, spread


class Mixed(nn.Module):
    """One of each: types, layouts, frozen and trainable, buffers."""

    lowest: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        frame = torch.arange(4.0)
        self.linear = nn.Linear(3, 3)
        self.brief = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
        self.wave = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        self.image = nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.gaps = nn.Parameter(torch.zeros(4, 6)[:, ::2])
        self.frozen = nn.Parameter(torch.zeros(7), requires_grad=False)
        self.packed = nn.Parameter(torch.zeros(9, dtype=torch.uint8), requires_grad=False)
        self.register_buffer("single", frame.clone())
        self.register_buffer("long_buffer", frame.double())
        self.register_buffer("half_buffer", frame.half())
        self.register_buffer("eighth", frame.to(torch.float8_e4m3fn))
        self.register_buffer("lowest", torch.full((2,), torch.finfo(torch.float32).min))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Is never called."""
        found: torch.Tensor = self.linear(x)
        return found


def diverge(net: Mixed) -> None:
    """Values that depend on the rank and, for the image, on the place."""
    rank = float(dist.get_rank())
    with torch.no_grad():
        for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
            if name != "lowest":
                tensor.copy_(torch.full_like(tensor, 2 * rank))
        net.image.add_(torch.arange(96.0).view(2, 3, 4, 4))


def kinds_of_tensors() -> Facts:
    net = DistributedDataParallel(Mixed(), init_sync=False)
    inner: Mixed = net.module
    diverge(inner)
    average = ParameterAverage(net)
    places = [tensor.data_ptr() for tensor in [*inner.parameters(), *inner.buffers()]]
    with counted() as sizes:
        average.average()
    expected = torch.arange(96.0).view(2, 3, 4, 4) + 1
    return {
        "is_one": [
            name
            for name, tensor in [*inner.named_parameters(), *inner.named_buffers()]
            if bool((tensor.to(torch.complex64) == 1).all())
        ],
        "image_error": difference(inner.image.detach(), expected),
        "frozen": [
            float(tensor.flatten()[0]) for tensor in (inner.frozen, inner.packed, inner.count)
        ],
        "lowest": inner.lowest.tolist() == [torch.finfo(torch.float32).min] * 2,
        "places_kept": places == [t.data_ptr() for t in [*inner.parameters(), *inner.buffers()]],
        "layout_kept": inner.image.is_contiguous(memory_format=torch.channels_last),
        "sizes": sizes,
        "num_bytes": average.num_bytes,
        "num_collectives": average.num_collectives,
    }


def buckets() -> Facts:
    torch.manual_seed(dist.get_rank())
    net = DistributedDataParallel(nn.Linear(100, 30))
    with torch.no_grad():
        net.module.weight += dist.get_rank()
    mean = flat([*net.parameters()]).clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    average = ParameterAverage(net, bucket_bytes=4 * 1000)
    with counted() as sizes:
        average.average()
    return {
        "sizes": sizes,
        "num_collectives": average.num_collectives,
        "num_bytes": average.num_bytes,
        "error": difference(flat([*net.parameters()]), mean),
    }


class Replacing(nn.Module):
    """Replaces its buffer in every forward pass, and has two layers."""

    level: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.register_buffer("level", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.level = self.level + x.detach().mean(0)
        found: torch.Tensor = self.second(self.first(x))
        return found


def tensors_that_change() -> Facts:
    net = DistributedDataParallel(Replacing())
    inner: Replacing = net.module
    average = ParameterAverage(net)
    num_bytes = average.num_bytes
    with net.no_sync():
        net(torch.full((1, 2), float(dist.get_rank())))
    with torch.no_grad():
        inner.first.weight += dist.get_rank()
    inner.first.requires_grad_(False)
    average.average()
    return {
        "num_bytes": num_bytes,
        "num_bytes_later": average.num_bytes,
        "spread": spread([*inner.parameters(), inner.level]),
        "level": float(inner.level[0]),
    }


def what_ddp_ignores() -> Facts:
    inner = Replacing()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        inner, ["second.weight", "second.bias", "level"]
    )
    net = DistributedDataParallel(inner)
    with torch.no_grad():
        inner.first.bias.add_(dist.get_rank())
        inner.second.bias.add_(dist.get_rank())
    ParameterAverage(net).average()
    return {"first": spread([inner.first.bias]), "second": spread([inner.second.bias])}
