"""accelerate.yaml is complete, flat, and read as it is meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.export import accelerate_config
from tests.autotune.export.bundles import SPEC, bundle


def test_one_process_on_a_cpu() -> None:
    assert accelerate_config.settings(bundle()) == {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "NO",
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": 1,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": True,
    }


def test_several_ranks_on_devices() -> None:
    made = bundle(replace(SPEC, precision="bf16"), world_size=4, device_type="cuda")
    found = accelerate_config.settings(made)
    assert found["distributed_type"] == "MULTI_GPU"
    assert found["num_processes"] == 4
    assert found["mixed_precision"] == "bf16"
    assert found["use_cpu"] is False


@pytest.mark.parametrize(
    ("device_type", "world_size", "name"),
    [("cpu", 1, "NO"), ("cpu", 2, "MULTI_CPU"), ("xpu", 2, "MULTI_XPU"), ("cuda", 1, "NO")],
)
def test_accelerate_knows_the_kind(device_type: str, world_size: int, name: str) -> None:
    from accelerate.utils import DistributedType

    assert accelerate_config.distributed_type(device_type, world_size) == name
    assert DistributedType(name).value == name


@pytest.mark.parametrize(("world_size", "device_type"), [(1, "cpu"), (2, "cpu"), (2, "cuda")])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_accelerate_reads_what_was_meant(
    world_size: int, device_type: str, num_nodes: int, tmp_path: Path
) -> None:
    made = bundle(world_size=world_size * num_nodes, device_type=device_type)
    made = replace(made, num_nodes=num_nodes, address="10.0.0.1")
    path = tmp_path / "accelerate.yaml"
    path.write_text(accelerate_config.as_yaml(made, ("where from",)))
    assert accelerate_config.verify(path, made) == "accelerate launch --config_file"


def test_several_nodes_are_told_where_the_first_is() -> None:
    made = bundle(
        world_size=4, device_type="cuda", num_nodes=2, address="10.0.0.1", rendezvous_port=29600
    )
    found = accelerate_config.settings(made)
    assert (found["num_machines"], found["num_processes"], found["machine_rank"]) == (2, 4, 0)
    assert (found["main_process_ip"], found["main_process_port"]) == ("10.0.0.1", 29600)
    assert "# On the other nodes: accelerate launch with --machine_rank 1 added." in (
        accelerate_config.as_yaml(made, ())
    )


def test_the_file_says_what_starts_ranks_on_cpus(tmp_path: Path) -> None:
    text = accelerate_config.as_yaml(bundle(world_size=2), ("where from",))
    assert "# On CPUs accelerate launch starts one process" in text
    assert "#     OMP_NUM_THREADS=2 torchrun --nproc-per-node 2 accelerator.py\n" in text
    assert "torchrun" not in accelerate_config.as_yaml(bundle(world_size=2, device_type="cuda"), ())
    assert "torchrun" not in accelerate_config.as_yaml(bundle(), ())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_processes: 1", "num_processes: 2", "num_processes is read as 2 and not as 1"),
        ("mixed_precision: 'no'", "mixed_precision: fp16", "mixed_precision is read as 'fp16'"),
        ("debug: false", "debag: false", "unknown keys.*debag"),
        ("debug: false", "debug: false\nfsdp_config:\n  fsdp_vresion: 2", "fsdp_config.*nested"),
        ("debug: false\n", "", "does not hold the keys.*debug"),
        ("distributed_type: 'NO'", "distributed_type: NOPE", "NOPE"),
    ],
)
def test_a_damaged_file_is_found(old: str, new: str, message: str, tmp_path: Path) -> None:
    made = bundle()
    text = accelerate_config.as_yaml(made, ())
    assert old in text
    path = tmp_path / "accelerate.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        accelerate_config.verify(path, made)
