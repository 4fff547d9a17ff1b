"""Scripts are watched from outside, and nothing of the watching stays behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, PartialState

from autotune.export.running.observe import run_script, watching

LOOP = """
import pathlib
import sys
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, 2.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
model, optimizer = accelerator.prepare(model, optimizer)
with torch.no_grad():
    model(input=torch.ones(99, 1))
for rows in ([3, 1], [2, 2]):
    for n in rows:
        with accelerator.accumulate(model):
            loss = model(input=torch.ones(n, 1)).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
pathlib.Path(sys.argv[1]).write_text(__name__)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    return path


def test_rows_losses_and_times_of_every_step(script: Path, tmp_path: Path) -> None:
    with watching() as observed:
        run_script(script, [str(tmp_path / "flag")])
    assert [step.rows for step in observed.steps] == [[3, 1], [2, 2]]
    # Each micro-batch counts half, as accelerate's backward divides.
    assert [step.loss for step in observed.steps] == [2.0, 2.0]
    times = observed.step_times_s()
    assert len(times) == 2
    assert min(times) > 0
    assert (tmp_path / "flag").read_text() == "__main__"


def test_everything_is_as_before_afterwards(script: Path, tmp_path: Path) -> None:
    before = (Accelerator.prepare_model, Accelerator.backward, AcceleratedOptimizer.step)
    with watching(recomputation=True):
        run_script(script, [str(tmp_path / "flag")])
    assert (Accelerator.prepare_model, Accelerator.backward, AcceleratedOptimizer.step) == before
    assert AcceleratorState._shared_state == {}
    assert PartialState._shared_state == {}
    assert torch.nn.modules.module._global_forward_pre_hooks == {}


def test_the_end_of_a_script_is_an_error_where_it_is_one(tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text("import sys\nsys.exit(int(sys.argv[1]))")
    run_script(path, ["0"])
    with pytest.raises(RuntimeError, match="ended itself: 2"):
        run_script(path, ["2"])


def test_a_script_finds_its_neighbours_but_leaves_no_path(tmp_path: Path) -> None:
    import sys

    (tmp_path / "neighbour_of_a_script.py").write_text("NAME = 'found'")
    path = tmp_path / "main.py"
    path.write_text("import os, neighbour_of_a_script as n\nos.environ['AUTOTUNE_TEST'] = n.NAME")
    before = list(sys.path)
    try:
        run_script(path, [])
        assert os.environ["AUTOTUNE_TEST"] == "found"
    finally:
        os.environ.pop("AUTOTUNE_TEST", None)
        sys.modules.pop("neighbour_of_a_script", None)
    assert sys.path == before
