"""One rank of the interconnect probe: the module that the launcher starts.

Rank 0 writes what is found, line by line, to a file that the caller follows; so what was measured
before a rank hangs is not lost.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from probes.collectives.buffers import buffers_reading, left_bytes
from probes.collectives.group import Group, Node
from probes.collectives.said import SAID, Options, Said, Started
from probes.collectives.steps import measure
from probes.lifetime import end_at_once
from probes.ranks.launch import rank_store
from probes.wording import first_line


def main(arguments: Sequence[str]) -> int:
    """One rank's part."""
    options = Options(**json.loads(arguments[0]))
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        index = int(os.environ["LOCAL_RANK"])
        torch.accelerator.set_device_index(index)
        device = torch.device(accelerator.type, index)
    backend = dist.get_default_backend_for_device(device)
    rank_of_job = int(os.environ["RANK"])
    node = Node(
        rank=int(os.environ["GROUP_RANK"]),
        num=int(os.environ["GROUP_WORLD_SIZE"]),
        is_first_here=os.environ["LOCAL_RANK"] == "0",
    )

    def hear(said: Said) -> None:
        with open(options.out, "ab") as file:
            file.write(SAID.dump_json(said, exclude_defaults=True) + b"\n")

    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=options.call_limit_s))
        group = Group(torch=torch, dist=dist, device=device, node=node, hear=hear)
        group.tell(Said(started=Started(backend=backend, device_kind=device.type)))
        before_bytes = left_bytes(torch, device)
        measure(
            group,
            rank_store("probe", options.call_limit_s),
            payload_bytes=options.payload_bytes,
            time_limit_s=options.time_limit_s,
        )
        group.barrier()
        reading = buffers_reading(before_bytes, left_bytes(torch, device))
        if reading is not None:
            group.tell(Said(reading=reading))
    except RuntimeError as error:  # what every backend raises for a peer that hangs or is gone
        print(f"Rank {rank_of_job}: {first_line(error)}", file=sys.stderr, flush=True)  # noqa: T201
        if rank_of_job == 0:
            with suppress(OSError):
                hear(Said(fault=first_line(error)))
        return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    end_at_once(main(sys.argv[1:]))
