"""`accelerate.yaml`: complete launch settings, so that no default file of a user counts."""

from __future__ import annotations

from pathlib import Path

import yaml

from autotune.export.bundle import Bundle

PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Our word → Accelerate's."""


def settings(bundle: Bundle) -> dict[str, object]:
    """The launch configuration. It has no nested keys, which Accelerate would not check."""
    on_cpu = bundle.device_type == "cpu"
    world_size = bundle.configuration.world_size
    return {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": distributed_type(bundle.device_type, world_size),
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": PRECISION[bundle.facts.precision],
        "num_machines": 1,
        "num_processes": world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": on_cpu,
    }


def distributed_type(device_type: str, world_size: int) -> str:
    """Accelerate's name for so many ranks on devices of one kind."""
    if world_size == 1:
        return "NO"
    return f"MULTI_{'GPU' if device_type == 'cuda' else device_type.upper()}"


def as_yaml(bundle: Bundle, comments: tuple[str, ...]) -> str:
    """The file, below comments that say where it comes from."""
    head = "".join(f"# {comment}\n" for comment in comments)
    text: str = yaml.safe_dump(settings(bundle), sort_keys=False)
    return head + text


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
