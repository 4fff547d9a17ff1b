"""Averaging and local SGD in an Accelerate loop, on two real gloo ranks that are started once."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.nn.parallel import DistributedDataParallel

from autotune import FusedLocalSGD
from tests.autotune.runtime.ranks import Facts, counted, facts_of, run
from tests.testing.shared import case_folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    return facts_of("loop_job", tmp_path_factory.mktemp("loop"))


@pytest.fixture(scope="module")
def first(ranks: list[Facts]) -> Facts:
    return ranks[0]


def test_averaging_every_step_is_data_parallel_training(first: Facts) -> None:
    assert first["parity"]["every_step_to_ddp"] <= 1e-6


def test_averaging_every_fourth_step_is_what_a_loop_by_hand_does(first: Facts) -> None:
    assert first["parity"]["every_fourth_to_hand"] <= 1e-6
    assert first["parity"]["every_fourth_to_ddp"] > 1e-3, "which is not what DDP does"


def test_trainable_tensors_and_float_buffers_of_any_type_and_layout_are_averaged(
    ranks: list[Facts],
) -> None:
    for found in ranks:
        assert {*found["kinds"]["is_one"]} == {
            *("linear.weight", "linear.bias", "brief", "wave", "gaps"),
            *("single", "long_buffer", "half_buffer", "eighth"),
        }
        assert found["kinds"]["image_error"] == 0
        assert found["kinds"]["lowest"] is True


def test_frozen_tensors_and_counts_stay_as_they_are(ranks: list[Facts]) -> None:
    assert [found["kinds"]["frozen"] for found in ranks] == [[0, 0, 0], [2, 2, 2]]


def test_tensors_keep_their_storage_and_layout(first: Facts) -> None:
    assert first["kinds"]["places_kept"]
    assert first["kinds"]["layout_kept"]


def test_tensors_of_one_type_travel_together(first: Facts) -> None:
    # 9 + 3 + 2·2 (complex) + 96 + 12 parameters, and 4 + 2 buffers and 4 of one byte, all fp32.
    sizes = {"fp32": 134, "bf16": 5, "fp64": 4, "fp16": 4}
    assert sorted(first["kinds"]["sizes"]) == sorted(sizes.values())
    assert first["kinds"]["num_collectives"] == 4
    assert first["kinds"]["num_bytes"] == 134 * 4 + 5 * 2 + 4 * 8 + 4 * 2


def test_a_bucket_holds_no_more_than_it_may_and_a_large_tensor_is_cut(first: Facts) -> None:
    found = first["buckets"]
    # 3000 weights and 30 of the bias, 1000 numbers a bucket.
    assert found["sizes"] == [1000, 1000, 1000, 30]
    assert found["num_collectives"] == 4
    assert found["num_bytes"] == 3030 * 4
    assert found["error"] < 1e-7


def test_what_a_model_replaces_or_freezes_on_its_way_is_averaged(first: Facts) -> None:
    found = first["changing"]
    assert found["spread"] == 0
    assert found["level"] == 0.5
    assert found["num_bytes"] == found["num_bytes_later"] == 14 * 4


def test_what_ddp_ignores_stays_with_its_rank(first: Facts) -> None:
    assert first["ignored"]["first"] == 0
    assert first["ignored"]["second"] > 0.1


def test_leaving_the_block_averages_only_where_ranks_differ(first: Facts) -> None:
    # 146 parameters, and four numbers to compare steps with before each averaging.
    after_averaging, a_step_later = first["leaving"]["8"], first["leaving"]["9"]
    assert after_averaging["sizes"] == [4, 146, 4, 146, 4]
    assert after_averaging["spread_inside"] == 0
    assert a_step_later["sizes"] == [4, 146, 4, 146, 4, 146]
    assert a_step_later["spread_inside"] > 1e-3
    for found in (after_averaging, a_step_later):
        assert found["spread"] == 0
        assert found["exchanges_again"] is True


def test_a_step_after_the_last_averaging_is_not_missed(first: Facts) -> None:
    assert first["leaving"]["wrong_order"] == 0


def test_after_an_exception_nothing_is_averaged(first: Facts) -> None:
    found = first["exception"]
    assert found["caught"] == "an accident"
    assert found["sizes"] == []
    assert found["spread"] > 1e-3
    assert found["exchanges_again"] is True


def test_an_exception_on_one_rank_is_told_on_the_other_and_changes_nothing(
    ranks: list[Facts],
) -> None:
    told = [found["one_exception"]["told"] for found in ranks]
    assert told[1] == "an accident"
    assert told[0].startswith("The parameters could not be averaged, since a rank is gone")
    assert "Look at the output of the other ranks" in told[0]
    assert all(found["one_exception"]["untouched"] for found in ranks)


def test_ranks_with_different_steps_are_told_so_and_left_as_they_were(ranks: list[Facts]) -> None:
    for found in ranks:
        told = found["different_steps"]["told"]
        assert told.startswith("The ranks have made different numbers of steps, 8 to 9,")
        assert "even_batches=True" in told
        assert found["different_steps"]["untouched"] is True


def test_steps_are_optimizer_steps_in_the_guarded_form(first: Facts) -> None:
    assert first["accumulation"] == {"equal_after": [1, 4, 5, 8, 9, 12], "num_steps": 6}


def test_running_statistics_are_averaged_and_batch_norm_is_warned_of(ranks: list[Facts]) -> None:
    found, others = ranks[0]["batch_norm"], ranks[1]["batch_norm"]
    assert found["spread_inside"] > 1e-3
    assert found["spread"] == 0
    (told,) = found["told"]
    assert "each rank normalises by its own batches" in told
    assert found["told_at"] == ["loop_job.py"]
    assert others["told"] == others["told_of_exchange"] == [], "one rank speaks for all"
    (told,) = found["told_of_exchange"]
    assert "SyncBatchNorm exchanges statistics in every forward pass" in told


def test_a_compiled_model_is_looked_through(first: Facts) -> None:
    assert first["compiled"]["is_found"]
    assert first["compiled"]["spread_inside"] > 1e-3
    assert first["compiled"]["spread"] == 0


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("unprepared", "This Sequential is not wrapped .* that accelerator.prepare\\(\\) returned"),
        ("FSDP", "this job runs under FSDP. .* plain data parallel"),
        ("DEEPSPEED", "this job runs under DeepSpeed"),
        ("MEGATRON_LM", "this job runs under Megatron-LM"),
        ("XLA", "this job runs under XLA"),
        ("fp16", "does not work with fp16.* Use bf16"),
        ("sharded", "this job runs under tensor parallel"),
        ("static", "static_graph=True.* Leave static_graph out"),
        ("none", "cannot average every 0 steps.* 2 or more"),
    ],
)
def test_what_cannot_work_is_refused_with_cause_and_remedy(
    first: Facts, what: str, expected: str
) -> None:
    assert re.search(expected, first["refusals"][what])


def test_tensor_parallelism_of_accelerate_is_refused(first: Facts) -> None:
    if "tp" not in first["refusals"]:
        pytest.skip("this accelerate has no ParallelismConfig")
    assert "this job runs under tensor parallel" in first["refusals"]["tp"]


def test_switched_off_it_does_nothing_under_any_sharding(first: Facts) -> None:
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        assert first["refusals"][f"{kind} switched off"] == [False, 1]


def test_averaging_every_step_is_warned_of(first: Facts) -> None:
    (told,) = first["refusals"]["one"]
    assert "slower than plain data parallel" in told


@pytest.fixture
def lonely(monkeypatch: pytest.MonkeyPatch) -> Iterator[Accelerator]:
    """This process as the one rank that a launcher started."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    launched = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    for name, value in {**launched, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True)
    dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


def test_one_rank_of_a_launcher_exchanges_nothing(lonely: Accelerator) -> None:
    assert lonely.distributed_type.value == "MULTI_CPU"
    net = lonely.prepare(torch.nn.Linear(2, 2))
    assert isinstance(net, DistributedDataParallel)
    with counted() as sizes, FusedLocalSGD(lonely, net, 2) as local:
        for _ in range(3):
            net(torch.ones(1, 2)).sum().backward()
            local.step()
    assert sizes == []
    assert (local.enabled, local.num_steps) == (False, 3)


@pytest.fixture(scope="module")
def case_22(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The case's own script, with our class in place of the stock one, ended as our own ranks are.

    Ending as Python does, it is aborted now and then, with either class and with none.
    """
    script = (case_folder("22-localsgd-buffers-uneven") / "train.py").read_text(encoding="utf-8")
    stock = "from accelerate.local_sgd import LocalSGD\n"
    assert script.count(stock) == 1
    path = tmp_path_factory.mktemp("case") / "train.py"
    ours = script.replace(stock, "from autotune import FusedLocalSGD as LocalSGD\n")
    path.write_text(f"{ours}\nfrom probes.lifetime import end_at_once\nend_at_once(0)\n")
    return path


def test_case_22_buffers_are_equal_at_the_end(case_22: Path) -> None:
    ended = run([str(case_22)], case_22.parent)
    assert ended.returncode == 0, ended.stderr
    assert "steps [8, 8] mid-syncs 2" in ended.stdout
    assert "weights 0.0e+00 buffers 0.0e+00 adam-moments" in ended.stdout


def test_case_22_uneven_ranks_end_with_a_clear_error(case_22: Path) -> None:
    ended = run(
        [
            *(str(case_22), "--rows", "68", "--uneven", "1"),
            *("--local_sgd_steps", "3", "--collective_timeout", "15"),
        ],
        case_22.parent,
        time_limit_s=60,
    )
    assert ended.returncode == 1
    assert "The ranks have made different numbers of steps, 8 to 9" in ended.stderr
