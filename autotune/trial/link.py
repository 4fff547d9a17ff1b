"""Times the collectives between the ranks of a trial, as the interconnect probe does."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autotune.trial.device import current_device
from autotune.trial.protocol import LinkMeasured, MeasureLink
from autotune.trial.ranks.place import Company, Ranks
from probes.collectives.group import Group, Node
from probes.collectives.said import Said, Started
from probes.collectives.steps import measure


def measure_link(command: MeasureLink, company: Company) -> LinkMeasured:
    """Measures on the process group that stands, together with all other ranks.

    Args:
        command: What to measure, and how long.
        company: The other ranks.

    Raises:
        RuntimeError: There are none, or one of them hangs or is gone.
    """
    if not isinstance(company, Ranks):
        raise RuntimeError("One process alone has no link to measure.")
    place = company.place
    said: list[Said] = []
    device = current_device()
    if device.type != "cpu":
        device = torch.device(device.type, torch.accelerator.current_device_index())
    node = Node(
        rank=place.rank // place.local_world_size,
        num=place.world_size // place.local_world_size,
        is_first_here=place.local_rank == 0,
    )
    group = Group(torch=torch, dist=dist, device=device, node=node, hear=said.append)
    group.tell(Said(started=Started(backend=dist.get_backend(), device_kind=device.type)))
    measure(
        group,
        company.store("link"),
        payload_bytes=command.payload_bytes,
        time_limit_s=command.measuring_s,
    )
    return LinkMeasured(said=tuple(said))
