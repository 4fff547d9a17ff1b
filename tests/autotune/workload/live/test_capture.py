"""Live objects in a file, and the names of those that cannot be."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autotune.errors import UsageError
from autotune.workload.live.capture import capture, release
from autotune.workload.live.job import Job, job_of_trainer
from tests.testing import live


def test_logits_that_cannot_be_handed_over_are_taken_to_be_kept_whole(tmp_path: Path) -> None:
    lock = threading.Lock()

    def preprocess(logits: object, labels: object) -> object:
        with lock:
            return logits

    trainer = live.trainer(tmp_path)
    trainer.compute_metrics = lambda prediction: {}
    trainer.preprocess_logits_for_metrics = preprocess
    capture(job_of_trainer(trainer), tmp_path / "capsule.pt")
    job = release(tmp_path / "capsule.pt")
    assert isinstance(job, Job)
    assert job.evaluation.keeps_outputs
    assert job.evaluation.preprocess_logits is None


def test_a_job_comes_back_as_it_was(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    capture(job_of_trainer(trainer), tmp_path / "capsule.pt")
    job = release(tmp_path / "capsule.pt")
    assert isinstance(job, Job)
    for (name, found), (_, meant) in zip(
        job.model.named_parameters(), trainer.model.named_parameters(), strict=True
    ):
        assert torch.equal(found, meant), name
    parameters = dict(job.model.named_parameters(remove_duplicate=False))
    tied = ("lm_head.weight", "transformer.wte.weight")
    assert parameters[tied[0]] is parameters[tied[1]], "tied weights stay tied"
    assert job.train_dataset[3] == trainer.train_dataset[3]  # type: ignore[index]
    assert job.configuration == job_of_trainer(trainer).configuration


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "capsule.pt"
    path.write_bytes(b"older, and open to everybody")
    path.chmod(0o644)
    path.unlink()
    capture(job_of_trainer(live.trainer(tmp_path)), path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step")
def test_an_optimizer_still_holds_the_parameters_of_its_model(tmp_path: Path) -> None:
    model = live.gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    trainer = live.trainer(tmp_path, model=model, options={"optimizers": (optimizer, schedule)})
    capture(job_of_trainer(trainer), tmp_path / "capsule.pt")
    job = release(tmp_path / "capsule.pt")
    assert isinstance(job, Job)
    found, again = job.optimizers
    assert isinstance(found, torch.optim.AdamW)
    assert isinstance(again, torch.optim.lr_scheduler.LambdaLR)
    assert {id(p) for group in found.param_groups for p in group["params"]} == {
        id(p) for p in job.model.parameters()
    }
    found.step()
    again.step()
    assert found.param_groups[0]["lr"] == 0.125


def test_a_script_of_lambdas_and_classes_of_main_reaches_another_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from pathlib import Path
            import torch
            from transformers import Trainer
            from autotune.workload.live.capture import capture
            from autotune.workload.live.job import job_of_trainer
            from tests.testing import live

            FACTOR = 2

            class Doubled(torch.utils.data.Dataset):
                def __len__(self):
                    return 8
                def __getitem__(self, index):
                    return {"input_ids": [index, FACTOR * index]}

            trainer = live.trainer(Path(sys.argv[1]), train_dataset=Doubled())
            trainer.data_collator = lambda rows: live.pad(rows)
            capture(job_of_trainer(trainer), Path(sys.argv[2]))
            """
        )
    )
    path = tmp_path / "capsule.pt"
    root = Path(__file__).parents[4]
    subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(path)],
        check=True,
        env={**_environment(), "PYTHONPATH": str(root)},
    )
    job = release(path)
    assert isinstance(job, Job)
    assert job.train_dataset[3] == {"input_ids": [3, 6]}  # type: ignore[index]
    assert job.data_collator([{"input_ids": [1, 2]}])["labels"].tolist() == [[1, 2]]  # type: ignore[operator]


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


class _Locked(live.Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.helper = {"cache": {"lock": threading.Lock()}}


def test_what_cannot_be_captured_is_named_with_the_remedy(tmp_path: Path) -> None:
    job = replace(job_of_trainer(live.trainer(tmp_path)), train_dataset=_Locked())
    path = tmp_path / "capsule.pt"
    with pytest.raises(UsageError) as caught:
        capture(job, path)
    assert caught.value.cause.startswith("train_dataset.helper.cache cannot be handed")
    assert "lock" in caught.value.cause
    assert "tune(make_trainer)" in (caught.value.remedy or "")
    assert not path.exists(), "no half of a capsule stays behind"


def test_a_function_that_holds_something_open_is_told_so(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:

        def make_trainer() -> object:
            return file

        with pytest.raises(UsageError) as caught:
            capture(make_trainer, tmp_path / "capsule.pt")
    assert caught.value.cause.startswith("make_trainer")
    assert "make everything inside" in (caught.value.remedy or "")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        capture(job_of_trainer(live.trainer(tmp_path)), tmp_path / "missing" / "capsule.pt")
