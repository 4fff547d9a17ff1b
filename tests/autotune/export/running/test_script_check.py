"""What each rank did is held against what was meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from autotune.configuration import Checkpointing
from autotune.export.running import ranks
from autotune.export.running.ranks import Caches, RankedResult, RanksHere, ranks_here
from autotune.export.running.script_check import ScriptCheck, check
from autotune.export.running.seen import Seen, as_json, from_json, losses, rows, slowest
from tests.autotune.export.bundles import GIB, bundle

RANK = Seen(
    world_size=2,
    step_rows=((4, 4),),
    losses=(0.5,),
    step_times_s=(0.2,),
    exchanges=(True,),
    has_recomputed=False,
    recomputed_layers=(False, False),
    parameter_sum=12.0,
)
AVERAGING = replace(RANK, exchanges=(False,))
TWO = bundle(world_size=2)
LOCAL = bundle(world_size=2, local_sgd_steps=8)


def test_two_ranks_that_do_what_they_should() -> None:
    check([RANK, replace(RANK, losses=(0.7,), parameter_sum=12.0 + 1e-9)], TWO, num_steps=1)
    check([AVERAGING, AVERAGING], LOCAL, num_steps=1)
    check([replace(RANK, world_size=1, exchanges=(False,))], bundle(), num_steps=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 1}, r"trained on 1 rank and not 2"),
        ({"step_rows": ((4, 3),)}, r"\[4, 3\] rows and not \[4, 4\]"),
        ({"step_rows": ()}, "made 0 optimizer steps and not 1"),
        ({"losses": (float("nan"),)}, "the loss is nan"),
        ({"exchanges": (False,)}, "do not exchange their gradients"),
        ({"has_recomputed": True}, "checkpointing is on although"),
        ({"parameter_sum": 12.1}, "end with different parameters"),
    ],
)
def test_one_rank_that_does_not_is_found(changes: dict[str, object], message: str) -> None:
    other = replace(RANK, **changes)  # type: ignore[arg-type]
    for accounts in ([RANK, other], [other, RANK]):
        with pytest.raises(ValueError, match=message):
            check(accounts, TWO, num_steps=1)


def test_ranks_that_exchange_gradients_under_local_sgd_are_found() -> None:
    with pytest.raises(ValueError, match="exchange their gradients although local SGD"):
        check([AVERAGING, RANK], LOCAL, num_steps=1)


def test_layers_are_counted_on_every_rank() -> None:
    made = bundle(world_size=2, checkpointing=Checkpointing(every_n_layers=2))
    right = replace(RANK, has_recomputed=True, recomputed_layers=(True, False))
    check([right, right], made, num_steps=1)
    with pytest.raises(ValueError, match="2 of 2 layers are checkpointed, and not 1"):
        check([right, replace(right, recomputed_layers=(True, True))], made, num_steps=1)


def test_accounts_cross_a_process_border() -> None:
    odd = replace(RANK, losses=(float("inf"),), extra={"found": [1, 2]})
    assert from_json(as_json(odd)) == odd


def test_the_slowest_rank_has_the_time_and_all_have_the_rows() -> None:
    first = replace(RANK, step_rows=((4, 4), (4,)), losses=(1.0, 2.0), step_times_s=(9.0, 0.2))
    second = replace(first, losses=(3.0, 4.0), step_times_s=(0.1, 0.3))
    assert slowest([first, second]) is second, "the first step has the start in it"
    assert rows([first, second]) == (16, 8)
    assert losses([first, second]) == (2.0, 3.0)


def test_a_machine_holds_a_rank_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bundle(world_size=4, device_type="cuda")
    for num_devices, num_ranks, steps in (
        (4, 4, "2 optimizer steps on 4 ranks"),
        (2, 2, "2 optimizer steps on 2 of 4 ranks, since this machine has 2 cuda devices"),
        (1, 1, "2 optimizer steps on 1 of 4 ranks, since this machine has 1 cuda device"),
        (0, 1, "2 optimizer steps on 1 of 4 ranks, since this machine has 0 cuda devices"),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda num=num_devices: num)
        here = ranks_here(made)
        assert (here.num_ranks, here.steps) == (num_ranks, steps)
    assert ranks_here(bundle(device_type="cuda")).steps == "1 optimizer step"
    assert ranks_here(LOCAL).steps == "1 optimizer step on 2 ranks"


def test_cpus_hold_the_ranks_of_other_nodes_too_where_there_is_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = bundle(world_size=4, num_nodes=2, address="10.0.0.1")
    for available_bytes, where in (
        (9 * GIB, " on 4 ranks"),
        (7 * GIB, " on 2 of 4 ranks, since this machine has no memory for more"),
    ):
        memory = SimpleNamespace(available=available_bytes)
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        assert ranks_here(made).steps == f"2 optimizer steps{where}"
        assert ranks_here(bundle(world_size=4)).steps == "2 optimizer steps on 4 ranks"


def test_all_scripts_take_one_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[list[str]] = []

    def run(runs: list[ranks.RankedRun], **options: object) -> tuple[RankedResult, ...]:
        starts.append([run.script.name for run in runs])
        assert options["num_ranks"] == 2
        return (
            RankedResult(accounts=(twice, twice)),
            RankedResult(failure="on rank 1: no such column"),
        )

    monkeypatch.setattr(ranks, "run", run)
    flags = {"trainer.py": ["--a"], "accelerator.py": ["--b"]}
    here = RanksHere(num_ranks=2, world_size=2, num_steps=2)
    twice = replace(RANK, step_rows=((4, 4), (4, 4)), losses=(0.5, 0.4), exchanges=(True, True))
    checked = ScriptCheck(TWO, here, flags, Caches(scratch=tmp_path, is_hub=False))
    assert checked.verify(tmp_path / "trainer.py") == "run for 2 optimizer steps on 2 ranks"
    with pytest.raises(ValueError, match="on rank 1: no such column"):
        checked.verify(tmp_path / "accelerator.py")
    assert starts == [["trainer.py", "accelerator.py"]]
