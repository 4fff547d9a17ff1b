"""Norms of micro-gradients over two real ranks, against those that each rank's autograd gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.autotune.trial.readings.gradients_by_hand import DRIVERS

ROOT = Path(__file__).parents[4]

TWO_RANKS = """
import copy, json
from dataclasses import replace
from pathlib import Path
import torch
import torch.distributed as dist
from autotune.trial.readings.gradients import measure_gradients
from autotune.configuration import Configuration
from autotune.trial.stepper import make_stepper, train_window
from probes.lifetime import end_at_once
from tests.autotune.trial.readings.gradients_by_hand import odd_workload

torch.set_num_threads(1)
found = {}
for driver in ("trainer", "accelerate"):
    workload = odd_workload(arguments={"use_cpu": True, "ddp_backend": "gloo"})

    def stepper(micro=2, accumulation=2, wrong_call=None):
        model = copy.deepcopy(workload.model)
        model._wrong_call = wrong_call
        return make_stepper(
            replace(workload, model=model),
            Configuration(micro_batch_size=micro, accumulation_steps=accumulation, world_size=2),
            driver=driver, output_dir="output", repair_loss=True,
            # Some weights stay unused, and the ranks would wait for their gradients.
            find_unused=True,
        )

    read, plain = stepper(), stepper()
    assert read.accelerator.num_processes == 2, read.accelerator.num_processes
    calls = []
    reduce = dist.all_reduce
    def counted(tensor, *args, **kwargs):
        calls.append(tensor.numel())
        return reduce(tensor, *args, **kwargs)
    dist.all_reduce = counted
    norms = measure_gradients(read, 7, report=lambda progress: None, num_warmup_steps=0)
    dist.all_reduce = reduce

    expected = []
    for _ in range(7):
        window = plain.next_window()
        own = []
        for batch in window:
            reference = copy.deepcopy(plain.workload.model)
            reference.zero_grad()
            reference(**batch)["loss"].backward()
            own.append(torch.cat([p.grad.flatten() for p in reference.layer.parameters()]))
        everyone = [torch.zeros(2, own[0].numel()) for _ in range(2)]
        dist.all_gather(everyone, torch.stack(own))
        gradients = torch.cat(everyone)
        mean = gradients.mean(dim=0)
        expected.append([(gradients ** 2).sum(dim=1).tolist(), float((mean ** 2).sum())])
        train_window(plain, window)
    differences = [
        float((a - b).abs().max())
        for a, b in zip(read.workload.model.parameters(), plain.workload.model.parameters())
    ]

    # One rank alone goes wrong: both leave the step out.
    wrong = stepper(wrong_call=3 if dist.get_rank() == 1 else None)
    skipped = measure_gradients(wrong, 3, report=lambda progress: None, num_warmup_steps=0)
    # With one micro-batch a rank there is a pair all the same.
    single = measure_gradients(
        stepper(micro=4, accumulation=1), 2, report=lambda progress: None, num_warmup_steps=0)
    found[driver] = {
        "micro": [w.micro_squared_norms for w in norms.windows],
        "whole": [w.mean_squared_norm for w in norms.windows],
        "preconditioned": [w.preconditioned_mean_squared_norm for w in norms.windows],
        "losses": [w.loss for w in norms.windows],
        "num_micro_batches": norms.num_micro_batches,
        "expected": expected,
        "difference": max(differences),
        "num_all_reduces": len(calls),
        "skipped": [skipped.num_skipped, [w.step for w in skipped.windows]],
        "single": [single.num_micro_batches, single.rows_per_micro_batch, len(single.windows)],
    }
Path(f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
dist.barrier()
end_at_once(0)
"""


def test_two_ranks_read_the_gradients_of_both(tmp_path: Path) -> None:
    path = tmp_path / "ranks.py"
    path.write_text(textwrap.dedent(TWO_RANKS))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(path)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    for driver in DRIVERS:
        found = first[driver]
        assert found["micro"] == second[driver]["micro"]
        assert found["whole"] == second[driver]["whole"]
        assert found["losses"] == second[driver]["losses"]
        assert found["num_micro_batches"] == 4
        for micro, whole, (micro_by_hand, whole_by_hand) in zip(
            found["micro"], found["whole"], found["expected"], strict=True
        ):
            assert micro == pytest.approx(micro_by_hand, rel=1e-3)
            assert whole == pytest.approx(whole_by_hand, rel=1e-3)
            assert len({round(norm, 9) for norm in micro}) == 4
        assert found["preconditioned"][:5] == [None] * 5
        assert all(norm > 0 for norm in found["preconditioned"][5:])
        assert found["difference"] <= 1e-5
        assert found["num_all_reduces"] == 7
        assert found["skipped"] == [1, [0, 2]]
        assert found["single"] == [2, 4, 2]
