from __future__ import annotations

from dataclasses import replace

import pytest

from probes.errors import ProbeError
from probes.ranks.nodes import FACTS, Node, NodeFacts, compare, facts_of_here, first_host
from probes.ranks.nodes import node_of_this_process as node_of

GIB = 2**30
TORCHRUN = {
    "RANK": "1",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "4",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
}
FACTS_OF_A = NodeFacts(
    host="a",
    versions=(("python", "3.11"), ("torch", "2.9")),
    num_cores=8,
    device_kind="cuda",
    device_bytes=(80 * GIB, 80 * GIB),
)


def test_a_process_on_its_own_is_no_node() -> None:
    assert node_of({}) is None
    assert node_of({**TORCHRUN, "WORLD_SIZE": "1"}) is None
    # A rank of a job that something else than torchrun started.
    assert node_of({"WORLD_SIZE": "2", "RANK": "0"}) is None
    # What somebody left in the environment, and says nothing.
    assert (
        node_of({"WORLD_SIZE": "", "LOCAL_WORLD_SIZE": "", "SLURM_STEP_NUM_TASKS": "auto"}) is None
    )


def test_torchrun_with_one_process_a_node_starts_agents() -> None:
    assert node_of(TORCHRUN) == Node(
        rank=1, num_nodes=2, meeting="10.0.0.1:29500/job.2", has_store=True
    )
    own = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_ADDR": "fd00::1"}
    node = node_of(own)
    assert node is not None
    assert (node.meeting, node.has_store) == ("[fd00::1]:29500/job.2", False)


def test_srun_with_one_task_a_node_starts_agents() -> None:
    node = node_of(SRUN)
    assert node is not None
    assert (node.rank, node.num_nodes, node.has_store) == (2, 3, False)
    assert node.meeting == f"gpu03:{20000 + 123 * 16 + 4}/123.4"
    told = node_of({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert told is not None
    assert told.meeting == "head:1234/123.4"


def test_a_batch_script_outside_of_srun_is_on_its_own() -> None:
    assert node_of({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}) is None


@pytest.mark.parametrize(
    ("environment", "remedy"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "--nproc-per-node 1"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "6"}, "--ntasks-per-node 1"),
    ],
)
def test_several_processes_on_a_node_are_refused(environment: dict[str, str], remedy: str) -> None:
    with pytest.raises(ProbeError, match="one of 2 processes on its node") as raised:
        node_of(environment)
    assert remedy in raised.value.remedy
    assert raised.value.is_usage


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("gpu[11],cpu1", "gpu11"),
        ("a,b", "a"),
        ("rack1-node[2,4]-ib", "rack1-node2-ib"),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_equal_nodes_train_together() -> None:
    assert compare([FACTS_OF_A, replace(FACTS_OF_A, host="b")], 2) == ()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            replace(FACTS_OF_A, host="b", versions=(("python", "3.11"), ("torch", "2.8"))),
            r"other versions of torch: 2\.9 on node 0 \(a\), 2\.8 on node 1 \(b\)\.",
        ),
        (
            replace(FACTS_OF_A, host="b", device_kind="cpu"),
            r"Node 0 \(a\) trains on cuda, node 1 \(b\) on cpu\.",
        ),
        (
            replace(FACTS_OF_A, host="b", device_bytes=(80 * GIB,)),
            r"2 processes on node 1 \(b\), which has 1 cuda devices",
        ),
        (
            replace(FACTS_OF_A, host="b", fault=("There is no eth9.", "Name another.")),
            r"On node 1 \(b\): There is no eth9\. Name another\.",
        ),
    ],
)
def test_nodes_that_cannot_train_together_are_told(other: NodeFacts, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        compare([FACTS_OF_A, other], 2)


def test_far_more_ranks_than_a_node_has_cores_are_refused() -> None:
    cpus = replace(FACTS_OF_A, device_kind="cpu", device_bytes=(GIB,))
    with pytest.raises(ProbeError, match=r"12 processes on each node .* 2 cores of node 1 \(b\)"):
        compare([cpus, replace(cpus, host="b", num_cores=2)], 12)


def test_unequal_memory_and_cores_are_said_with_the_waste() -> None:
    smaller = replace(FACTS_OF_A, host="b", device_bytes=(40 * GIB, 80 * GIB))
    (finding,) = compare([FACTS_OF_A, smaller], 2)
    assert "40 960 MiB on node 1 (b), 81 920 MiB on node 0 (a)" in finding.cause
    assert "the smallest decides and 40 960 MiB stay unused" in finding.cause
    assert not finding.is_problem
    cpus = replace(FACTS_OF_A, device_kind="cpu", device_bytes=(GIB,))
    (finding,) = compare([cpus, replace(cpus, num_cores=4)])
    assert "8 on node 0, 4 on node 1" in finding.cause


def test_facts_of_this_node_go_to_json_and_back() -> None:
    facts = facts_of_here({"GLOO_SOCKET_IFNAME": "none9"})
    assert dict(facts.versions).keys() == {"python", "torch", "transformers", "accelerate"}
    assert facts.fault is not None
    assert "'none9'" in facts.fault[0]
    assert len(facts.device_bytes) >= 1
    assert FACTS.validate_json(FACTS.dump_json(facts)) == facts
