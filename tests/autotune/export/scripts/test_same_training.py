"""The scripts train as the trials do: same rows in the same order, same weights, same loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autotune.configuration import Checkpointing
from autotune.export.bundle import Bundle
from autotune.export.installed import Installed, look
from autotune.export.scripts import accelerate_script, trainer_script
from autotune.export.scripts.preparation import look as look_at_job
from autotune.workload.loaded import Batch
from autotune.workload.spec import WorkloadSpec
from tests.autotune.export import jobs
from tests.autotune.export.bundles import bundle_of

pytestmark = pytest.mark.usefixtures("_light")


@pytest.fixture(scope="module")
def installed() -> Installed:
    return look()


def write_scripts(job: jobs.Job, bundle: Bundle, installed: Installed) -> dict[str, Path]:
    with jobs.quiet():
        preparation = look_at_job(bundle, job.directory / "scratch")
    name = f"{bundle.configuration.micro_batch_size}x{bundle.configuration.accumulation_steps}"
    scripts = {}
    for module in (trainer_script, accelerate_script):
        path = job.directory / f"{Path(module.NAME).stem}-{name}.py"
        path.write_text(module.render(bundle, preparation, installed))
        scripts[Path(module.NAME).stem] = path
    return scripts


def unmasked(batch: Batch) -> Batch:
    """Undoes the random masks of masked language modelling."""
    labels = batch["labels"]
    ids = torch.where(labels == -100, batch["input_ids"], labels)
    return {**{n: t for n, t in batch.items() if n != "labels"}, "input_ids": ids}


def assert_same(found: Batch, meant: Batch) -> None:
    assert set(found) == set(meant)
    for name, tensor in meant.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", jobs.KINDS, ids=lambda kind: kind.__name__)
def test_rows_and_weights_are_those_of_the_trials(
    kind: Callable[[Path], WorkloadSpec], tmp_path: Path, installed: Installed
) -> None:
    job = jobs.make(kind, tmp_path)
    bundle = bundle_of(job.workload, micro_batch_size=2, accumulation_steps=2, repair_loss=True)
    rows = job.workload.typical_rows(4)
    meant = [job.workload.data_collator(rows[:2]), job.workload.data_collator(rows[2:])]
    undo = unmasked if job.spec.task == "masked-lm" else dict
    for name, script in write_scripts(job, bundle, installed).items():
        run = jobs.run(script, num_steps=1)
        assert [step.rows for step in run.observed.steps] == [[2, 2]], name
        for found, batch in zip(run.batches, meant, strict=True):
            assert_same(undo(found), undo(batch))
        assert_same(run.weights, dict(job.workload.model.state_dict()))


EXACT = (jobs.classify, jobs.causal, jobs.tag, jobs.translate)
"""One job for each thing that losses are means of, the mean over both sides of t5 included."""


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.__name__)
def test_accumulation_is_exact_in_the_short_last_window_too(
    kind: Callable[[Path], WorkloadSpec], tmp_path: Path, installed: Installed
) -> None:
    job = jobs.make(kind, tmp_path)
    num_rows = job.workload.facts.num_rows
    assert num_rows is not None
    assert num_rows % 4 != 0, "the last window has to be a short one"
    whole = bundle_of(job.workload, micro_batch_size=4, accumulation_steps=1)
    split = bundle_of(job.workload, micro_batch_size=1, accumulation_steps=4)
    num_steps = num_rows // 4 + 2
    meant = jobs.run(write_scripts(job, whole, installed)["accelerator"], num_steps)
    found = jobs.run(write_scripts(job, split, installed)["accelerator"], num_steps)
    assert [sum(s.rows) for s in found.observed.steps] == [
        sum(s.rows) for s in meant.observed.steps
    ]
    assert sum(found.observed.steps[num_rows // 4].rows) == num_rows % 4
    assert found.losses == pytest.approx(meant.losses, rel=1e-5)


@pytest.mark.parametrize("local_sgd_steps", [1, 4])
def test_scripts_for_several_ranks_train_on_one_too(
    local_sgd_steps: int, tmp_path: Path, installed: Installed
) -> None:
    job = jobs.make(jobs.classify, tmp_path)
    one = bundle_of(job.workload, micro_batch_size=2, accumulation_steps=2)
    two = bundle_of(
        job.workload,
        micro_batch_size=2,
        accumulation_steps=2,
        world_size=2,
        local_sgd_steps=local_sgd_steps,
    )
    meant = jobs.run(write_scripts(job, one, installed)["accelerator"], 2)
    found = jobs.run(write_scripts(job, two, installed)["accelerator"], 2)
    assert found.losses == pytest.approx(meant.losses, rel=1e-6)


def test_the_repair_makes_the_loss_of_trainer_right(tmp_path: Path, installed: Installed) -> None:
    job = jobs.make(jobs.classify, tmp_path)
    bundle = bundle_of(job.workload, micro_batch_size=2, accumulation_steps=2)
    accelerator = jobs.run(write_scripts(job, bundle, installed)["accelerator"], 2)
    broken = jobs.run(write_scripts(job, bundle, installed)["trainer"], 2)
    mended = write_scripts(job, replace(bundle, repair_loss=True), installed)["trainer"]
    repaired = jobs.run(mended, 2)
    assert repaired.losses == pytest.approx(accelerator.losses, rel=1e-5)
    assert broken.losses[0] == pytest.approx(2 * accelerator.losses[0], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "every_n_layers"),
    [(jobs.classify, None), (jobs.classify, 1), (jobs.translate, 2), (jobs.classify_with_lora, 2)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_checkpointing_recomputes_the_layers_that_it_should(
    kind: Callable[[Path], WorkloadSpec],
    every_n_layers: int | None,
    tmp_path: Path,
    installed: Installed,
) -> None:
    from autotune.export.running.observe import seen
    from autotune.export.running.script_check import check_checkpointing

    job = jobs.make(kind, tmp_path)
    meant = Checkpointing(every_n_layers=every_n_layers)
    bundle = bundle_of(job.workload, micro_batch_size=2, accumulation_steps=2, checkpointing=meant)
    for script in write_scripts(job, bundle, installed).values():
        run = jobs.run(script, 1)
        account = seen(run.observed)
        check_checkpointing(account, meant)
        for other in (None, 1, 2):
            if other != every_n_layers:
                with pytest.raises(ValueError, match="checkpoint"):
                    check_checkpointing(account, Checkpointing(every_n_layers=other))
