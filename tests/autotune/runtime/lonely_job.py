"""What one rank that a launcher started alone finds of local SGD; `test_loop.py` reads it."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

from autotune import FusedLocalSGD
from tests.autotune.runtime.loop_job import counted
from tests.autotune.runtime.ranks import write_facts


def main() -> None:
    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(nn.Linear(2, 2))
    with counted() as sizes, FusedLocalSGD(accelerator, net, 2) as local:
        for _ in range(3):
            net(torch.ones(1, 2)).sum().backward()
            local.step()
    write_facts(
        {
            "kind": accelerator.distributed_type.value,
            "enabled": local.enabled,
            "num_steps": local.num_steps,
            "sizes": sizes,
        }
    )


if __name__ == "__main__":
    main()
