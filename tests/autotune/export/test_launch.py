"""The commands start what was measured, on every node, and torchrun understands them."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed.run import config_from_args, get_args_parser

from autotune.export import launch
from autotune.export.bundle import Bundle
from tests.autotune.export.bundles import bundle


def nodes(**changes: object) -> Bundle:
    """Four ranks on two nodes whose interfaces have names of their own."""
    made = bundle(world_size=4, environment={"OMP_NUM_THREADS": "3"})
    two = {"num_nodes": 2, "address": "10.0.0.1", "interfaces": ("eth0", "ens5")}
    return replace(made, **{**two, **changes})  # type: ignore[arg-type]


def test_one_process_needs_no_launcher() -> None:
    assert launch.commands(bundle(), "trainer.py") == ("OMP_NUM_THREADS=2 python trainer.py",)
    assert launch.commands(bundle(), "accelerator.py") == (
        "OMP_NUM_THREADS=2 accelerate launch --config_file accelerate.yaml accelerator.py",
    )
    assert launch.slurm(bundle(), "trainer.py") is None


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("script", ["trainer.py", "accelerator.py"])
def test_several_ranks_are_started_by_torchrun(device_type: str, script: str) -> None:
    made = bundle(world_size=2, device_type=device_type)
    assert launch.commands(made, script) == (
        f"OMP_NUM_THREADS=2 torchrun --nproc-per-node 2 {script}",
    )


def test_each_node_has_its_number_and_its_interface() -> None:
    rest = "--master-addr 10.0.0.1 --master-port 29500 trainer.py"
    assert launch.commands(nodes(), "trainer.py") == (
        "GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=3 torchrun --nnodes 2 --nproc-per-node 2 "
        f"--node-rank 0 {rest}",
        "GLOO_SOCKET_IFNAME=ens5 OMP_NUM_THREADS=3 torchrun --nnodes 2 --nproc-per-node 2 "
        f"--node-rank 1 {rest}",
    )
    on_devices = launch.commands(nodes(device_type="cuda"), "trainer.py")[1]
    assert on_devices.startswith("GLOO_SOCKET_IFNAME=ens5 NCCL_SOCKET_IFNAME=ens5 OMP")


def test_an_interface_of_the_node_counts_more_than_that_of_the_trials() -> None:
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    first, second = launch.commands(nodes(environment=variables), "trainer.py")
    assert "GLOO_SOCKET_IFNAME=eth0 " in first
    assert "GLOO_SOCKET_IFNAME=ens5 " in second
    for line in launch.commands(nodes(environment=variables, interfaces=()), "trainer.py"):
        assert line.startswith("GLOO_SOCKET_IFNAME=lo ")


def understood(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables of a command line, and its words from the program on."""
    words = shlex.split(line)
    start = words.index("torchrun")
    return dict(word.split("=", 1) for word in words[:start]), words[start + 1 :]


def test_torchrun_understands_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for made in (bundle(world_size=2), nodes(rendezvous_port=29600), nodes(address="fe80::1")):
        for node, line in enumerate(launch.commands(made, "trainer.py")):
            variables, words = understood(line)
            monkeypatch.setenv("OMP_NUM_THREADS", variables["OMP_NUM_THREADS"])
            read = get_args_parser().parse_args([*words, "--max_steps", "5"])
            config, _, command = config_from_args(read)
            assert (config.min_nodes, config.max_nodes) == (made.num_nodes, made.num_nodes)
            assert config.nproc_per_node == made.ranks_per_node
            assert command[-3:] == ["trainer.py", "--max_steps", "5"]
            if made.num_nodes > 1:
                assert config.rdzv_backend == "static"
                assert config.rdzv_configs["rank"] == node
                assert config.rdzv_endpoint == f"{launch.host(made)}:{made.rendezvous_port}"
        launch.verify(made, "trainer.py")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--nproc-per-node 2", "--nproc-per-node 3", "reads nproc_per_node .*'3'"),
        ("--node-rank", "--nod-erank", "does not understand .*--nod-erank"),
        ("--master-port 29500", "--master-port 1", "reads master_port"),
        ("trainer.py", "train.py", "reads training_script"),
    ],
)
def test_a_line_that_means_something_else_is_found(
    old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = nodes()
    lines = tuple(line.replace(old, new) for line in launch.commands(made, "trainer.py"))
    monkeypatch.setattr(launch, "commands", lambda *arguments: lines)
    with pytest.raises(ValueError, match=message):
        launch.verify(made, "trainer.py")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with the names of Slurm's, and a torchrun that says how it was started."""
    programs = {
        "srun": 'for SLURM_NODEID in 0 1; do SLURM_NODEID=$SLURM_NODEID "${@:5}"; done',
        "scontrol": 'test "$*" = "show hostnames node[7-8]" && printf "node7\\nnode8\\n"',
        "torchrun": 'echo "$OMP_NUM_THREADS ${GLOO_SOCKET_IFNAME-none} $*"',
    }
    for name, text in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[7-8]")


@pytest.mark.parametrize(
    ("interfaces", "interface"), [(("eth0", "eth0"), "eth0"), (("eth0", "ens5"), "none"), ((), "")]
)
@pytest.mark.usefixtures("cluster")
def test_under_slurm_one_line_starts_all_nodes(
    interfaces: tuple[str, ...], interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    line = launch.slurm(nodes(interfaces=interfaces), "it's mine.py")
    assert line is not None
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    options = "--nnodes 2 --nproc-per-node 2 --node-rank"
    rest = "--master-addr node7 --master-port 29500 it's mine.py"
    assert ran.stdout.splitlines() == [
        f"3 {interface or 'none'} {options} {node} {rest}" for node in (0, 1)
    ]


def test_a_number_of_the_longer_kind_stands_in_brackets() -> None:
    assert launch.host(nodes(address="fe80::1")) == "[fe80::1]"
    assert launch.host(nodes()) == "10.0.0.1"
