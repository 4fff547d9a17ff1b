"""What two ranks find of averaging and of a loop with local SGD; `test_loop.py` reads it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedType
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from autotune import FusedLocalSGD
from autotune.errors import AutotuneError, UsageError
from autotune.runtime.plain import find_ddp
from probes.lifetime import end_at_once
from tests.autotune.runtime.averaging_checks import (
    buckets,
    kinds_of_tensors,
    tensors_that_change,
    what_ddp_ignores,
)
from tests.autotune.runtime.ranks import Facts, counted, difference, flat, spread, write_facts

NUM_STEPS = 20


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def batches(num: int = NUM_STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Other ones on each rank."""
    source = torch.Generator().manual_seed(100 + dist.get_rank())
    return [
        (
            torch.randn(4, 6, generator=source),
            torch.randint(0, 2, (4,), generator=source),
        )
        for _ in range(num)
    ]


def step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    x, y = batch
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def momentum(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def trained(accelerator: Accelerator, local_sgd_steps: int | None) -> torch.Tensor:
    """Weights after training, in plain data parallel or averaging every so many steps."""
    net = accelerator.prepare(layers())
    optimizer = momentum(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        block = (
            FusedLocalSGD(accelerator=accelerator, model=net, local_sgd_steps=local_sgd_steps)
            if local_sgd_steps
            else nullcontext()
        )
    with block as local:
        for batch in batches():
            step(net, optimizer, batch)
            if local is not None:
                local.step()
    return flat([*net.parameters()])


def by_hand(every: int) -> torch.Tensor:
    """The same with nothing of ours, nor of DDP."""
    net = layers()
    optimizer = momentum(net)
    for number, batch in enumerate(batches(), start=1):
        step(net, optimizer, batch)
        if number % every == 0:
            for parameter in net.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
    return flat([*net.parameters()])


def parity(accelerator: Accelerator) -> Facts:
    plain = trained(accelerator, None)
    return {
        "every_step_to_ddp": difference(trained(accelerator, 1), plain),
        "every_fourth_to_hand": difference(trained(accelerator, 4), by_hand(4)),
        "every_fourth_to_ddp": difference(trained(accelerator, 4), plain),
    }


def leaving_the_block(accelerator: Accelerator) -> Facts:
    found: Facts = {}
    for num_steps in (8, 9):
        net = accelerator.prepare(layers())
        optimizer = momentum(net)
        with (
            counted() as sizes,
            FusedLocalSGD(accelerator=accelerator, model=net, local_sgd_steps=4) as local,
        ):
            for batch in batches(num_steps):
                step(net, optimizer, batch)
                local.step()
            inside = spread([*net.parameters()])
        found[str(num_steps)] = {
            "sizes": sizes,
            "spread_inside": inside,
            "spread": spread([*net.parameters()]),
            "exchanges_again": net.require_backward_grad_sync,
        }
    # Here step() is called before the optimizer's: the last averaging misses its last step.
    net = accelerator.prepare(layers())
    optimizer = momentum(net)
    with FusedLocalSGD(accelerator, net, 2) as local:
        for batch in batches(4):
            x, y = batch
            nn.functional.cross_entropy(net(x), y).backward()
            local.step()
            optimizer.step()
            optimizer.zero_grad()
    found["wrong_order"] = spread([*net.parameters()])
    return found


def an_exception_everywhere(accelerator: Accelerator) -> Facts:
    net = accelerator.prepare(layers())
    optimizer = momentum(net)
    caught = ""
    with counted() as sizes:
        try:
            with FusedLocalSGD(accelerator, net, 4) as local:
                for batch in batches(2):
                    step(net, optimizer, batch)
                    local.step()
                raise ZeroDivisionError("an accident")
        except ZeroDivisionError as error:
            caught = str(error)
    return {
        "caught": caught,
        "sizes": sizes,
        "spread": spread([*net.parameters()]),
        "exchanges_again": net.require_backward_grad_sync,
    }


def accumulation() -> Facts:
    """Averages by optimizer step, in the guarded form."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = accelerator.prepare(layers())
    optimizer = accelerator.prepare(torch.optim.SGD(net.parameters(), 0.1))
    averaged = []
    with FusedLocalSGD(accelerator, net, 2) as local:
        for x, y in batches(12):
            with accelerator.accumulate(net):
                accelerator.backward(nn.functional.cross_entropy(net(x), y))
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    local.step()
            averaged.append(spread([*net.parameters()]) == 0)
    return {
        "equal_after": [number for number, equal in enumerate(averaged, 1) if equal],
        "num_steps": local.num_steps,
    }


def batch_norm(accelerator: Accelerator) -> Facts:
    net = accelerator.prepare(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    optimizer = momentum(net)
    buffers = [b for b in net.buffers() if b.is_floating_point()]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        local = FusedLocalSGD(accelerator, net, 4)
    with local:
        for batch in batches(6):
            step(net, optimizer, batch)
            local.step()
        inside = spread(buffers)
    with warnings.catch_warnings(record=True) as told_of_exchange:
        warnings.simplefilter("always")
        synchronised = DistributedDataParallel(nn.Linear(2, 2))
        synchronised.module.norm = nn.SyncBatchNorm(2)
        FusedLocalSGD(accelerator, synchronised, 4)
    return {
        "told": [str(warning.message) for warning in told],
        "told_at": [Path(warning.filename).name for warning in told],
        "spread_inside": inside,
        "spread": spread(buffers),
        "told_of_exchange": [str(warning.message) for warning in told_of_exchange],
    }


def compiled(accelerator: Accelerator) -> Facts:
    net = accelerator.prepare(layers())
    wrapped: Any = torch.compile(net, backend="eager")
    optimizer = momentum(net)
    with FusedLocalSGD(accelerator, wrapped, 2) as local:
        for batch in batches(3):
            step(wrapped, optimizer, batch)
            local.step()
        inside = spread([*net.parameters()])
    return {
        "is_found": find_ddp(wrapped) is net,
        "spread_inside": inside,
        "spread": spread([*net.parameters()]),
    }


def refused(make: Callable[[], object]) -> str:
    try:
        make()
    except UsageError as error:
        return f"{error.cause} | {error.remedy}"
    return "nothing was refused"


def refusals(accelerator: Accelerator) -> Facts:
    net = accelerator.prepare(layers())
    found: Facts = {"unprepared": refused(lambda: FusedLocalSGD(accelerator, layers(), 4))}
    state = accelerator.state
    plain = state.distributed_type
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        state.distributed_type = DistributedType(kind)
        found[kind] = refused(lambda: FusedLocalSGD(accelerator, net, 4))
        with FusedLocalSGD(accelerator, layers(), 4, enabled=False) as local:
            local.step()
        found[f"{kind} switched off"] = [local.enabled, local.num_steps]
    state.distributed_type = plain
    state._mixed_precision = "fp16"
    found["fp16"] = refused(lambda: FusedLocalSGD(accelerator, net, 4))
    state._mixed_precision = "no"
    if hasattr(accelerate, "ParallelismConfig"):
        own = state.parallelism_config
        state.parallelism_config = accelerate.ParallelismConfig(tp_size=2)
        found["tp"] = refused(lambda: FusedLocalSGD(accelerator, net, 4))
        state.parallelism_config = own
    sharded = nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (2,))
    sharded.weight = nn.Parameter(distribute_tensor(sharded.weight.detach(), mesh, [Shard(0)]))
    found["sharded"] = refused(lambda: FusedLocalSGD(accelerator, sharded, 4))
    fixed = DistributedDataParallel(layers(), static_graph=True)
    found["static"] = refused(lambda: FusedLocalSGD(accelerator, fixed, 4))
    found["none"] = refused(lambda: FusedLocalSGD(accelerator, net, 0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        FusedLocalSGD(accelerator, net, 1)
    found["one"] = [str(warning.message) for warning in told]
    return found


def different_steps(accelerator: Accelerator) -> Facts:
    net = accelerator.prepare(layers())
    optimizer = momentum(net)
    found: Facts = {}
    try:
        with FusedLocalSGD(accelerator, net, 3) as local:
            for batch in batches(9 if dist.get_rank() == 0 else 8):
                step(net, optimizer, batch)
                found["before"] = flat([*net.parameters()])
                local.step()
    except AutotuneError as error:
        found["told"] = str(error)
    found["untouched"] = bool((found.pop("before") == flat([*net.parameters()])).all())
    return found


def an_exception_on_one_rank(accelerator: Accelerator) -> Facts:
    """The last thing that is done: the rank is gone afterwards."""
    net = accelerator.prepare(layers())
    optimizer = momentum(net)
    rank = dist.get_rank()
    found: Facts = {}
    dist.barrier()
    try:
        with FusedLocalSGD(accelerator, net, 4) as local:
            for number, batch in enumerate(batches(4), start=1):
                step(net, optimizer, batch)
                found["before"] = flat([*net.parameters()])
                if rank == 1 and number == 3:
                    raise ZeroDivisionError("an accident")
                local.step()
    except (ZeroDivisionError, AutotuneError) as error:
        found["told"] = str(error)
    found["untouched"] = bool((found.pop("before") == flat([*net.parameters()])).all())
    return found


def main() -> None:
    accelerator = Accelerator(
        cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=60))]
    )
    write_facts(
        {
            "parity": parity(accelerator),
            "kinds": kinds_of_tensors(),
            "buckets": buckets(),
            "changing": tensors_that_change(),
            "ignored": what_ddp_ignores(),
            "leaving": leaving_the_block(accelerator),
            "exception": an_exception_everywhere(accelerator),
            "accumulation": accumulation(),
            "batch_norm": batch_norm(accelerator),
            "compiled": compiled(accelerator),
            "refusals": refusals(accelerator),
            "different_steps": different_steps(accelerator),
            "one_exception": an_exception_on_one_rank(accelerator),
        }
    )
    end_at_once(0)


if __name__ == "__main__":
    main()
