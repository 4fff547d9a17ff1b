"""`accelerate.yaml`: complete launch settings, so that no default file of a user counts."""

from __future__ import annotations

from pathlib import Path

import yaml

from autotune.export import launch
from autotune.export.bundle import Bundle

PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Our word → Accelerate's."""


def settings(bundle: Bundle) -> dict[str, object]:
    """The launch configuration. It has no nested keys, which Accelerate would not check."""
    values: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": distributed_type(bundle.device_type, bundle.configuration.world_size),
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": PRECISION[bundle.facts.precision],
        "num_machines": bundle.num_nodes,
        "num_processes": bundle.configuration.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": bundle.device_type == "cpu",
    }
    if bundle.num_nodes > 1:
        values["main_process_ip"] = launch.host(bundle)
        values["main_process_port"] = bundle.rendezvous_port
    return values


def distributed_type(device_type: str, world_size: int) -> str:
    """Accelerate's name for so many ranks on devices of one kind."""
    if world_size == 1:
        return "NO"
    return f"MULTI_{'GPU' if device_type == 'cuda' else device_type.upper()}"


def as_yaml(bundle: Bundle, comments: tuple[str, ...]) -> str:
    """The file, below comments that say where it comes from and how its ranks are started."""
    lines = [*comments, *_starting(bundle)]
    head = "".join(f"# {line}\n" for line in lines)
    text: str = yaml.safe_dump(settings(bundle), sort_keys=False)
    return head + text


def _starting(bundle: Bundle) -> tuple[str, ...]:
    if bundle.has_cpu_ranks:
        return (
            "On CPUs accelerate launch starts one process whatever num_processes says, unless it",
            "is given an mpirun host file. Start the ranks by torchrun:",
            *(f"    {line}" for line in launch.commands(bundle, "accelerator.py")),
        )
    if bundle.num_nodes > 1:
        others = " or ".join(str(number) for number in range(1, bundle.num_nodes))
        return (f"On the other nodes: accelerate launch with --machine_rank {others} added.",)
    return ()


def verify(path: Path, bundle: Bundle) -> str:
    """Reads the file as `accelerate launch` does and compares every value.

    Raises:
        ValueError: Accelerate refuses the file, or a value is not what was meant.
    """
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    meant = settings(bundle)
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    nested = [key for key, value in written.items() if isinstance(value, (dict, list))]
    if nested:
        raise ValueError(f"{nested[0]} holds nested keys, which accelerate does not check")
    if set(written) != set(meant):
        odd = ", ".join(sorted(set(written) ^ set(meant)))
        raise ValueError(f"the file does not hold the keys that were meant: {odd}")
    for key, value in meant.items():
        read = getattr(config, key)
        read = getattr(read, "value", read)
        if read != value:
            raise ValueError(f"{key} is read as {read!r} and not as {value!r}")
    return "accelerate launch --config_file"
