"""Two real ranks train with the scripts as a plain loop would: same rows, same losses."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments

from autotune.export.bundle import Bundle
from autotune.export.installed import look
from autotune.export.running import ranks
from autotune.export.running.ranks import Caches, RankedResult, RankedRun
from autotune.export.running.script_check import accelerator_flags, trainer_flags
from autotune.export.scripts import accelerate_script, trainer_script
from autotune.export.scripts.preparation import look as look_at_job
from autotune.workload.loaded import Batch
from autotune.workload.spec import Lora, WorkloadSpec
from probes.errors import RANK_KILLED
from tests.autotune.export import jobs
from tests.autotune.export.bundles import bundle_of
from tests.autotune.export.test_child import is_gone
from tests.testing import tiny_models

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("_light")]

ROOT = Path(__file__).parents[4]
NUM_RANKS = 2
SIZE, ACCUMULATION_STEPS = 1, 2
LOCAL_SGD_STEPS = 2
NUM_STEPS = 5
LEARNING_RATE = 0.3
TEXTS = tuple(
    " ".join((text, *tiny_models.WORDS[i : i + i % 4])) for i, text in enumerate(jobs.SENTENCES * 2)
)
"""Twenty texts of many lengths: a step of four rows each, five steps."""


def adapters(place: Path) -> WorkloadSpec:
    """Losses that are means over rows, of a model with a frozen base."""
    model = jobs.without_dropout(tiny_models.bert(place / "bert"))
    columns = {"text": TEXTS, "label": jobs.CLASSES * 2}
    return WorkloadSpec(
        task="sequence-classification",
        model_config=str(model),
        dataset=jobs.write_csv(place / "rows.csv", columns),
        optim="sgd",
        learning_rate=LEARNING_RATE,
        lora=Lora(rank=2, alpha=4, target_modules=("query", "value")),
    )


def causal(place: Path) -> WorkloadSpec:
    """Losses that are means over tokens, of which ranks have different numbers."""
    model = jobs.without_dropout(tiny_models.gpt2(place / "gpt2"))
    rows = [{"text": f"{text} fine"} for text in TEXTS]
    return WorkloadSpec(
        task="causal-lm",
        model_config=str(model),
        dataset=jobs.write_jsonl(place / "rows.jsonl", rows),
        optim="sgd",
        learning_rate=LEARNING_RATE,
    )


def stream(place: Path) -> WorkloadSpec:
    """The same as a stream, of which every rank takes its own."""
    return replace(causal(place), streaming=True)


@dataclass(frozen=True)
class Ran:
    """A script and what became of it."""

    job: jobs.Job
    bundle: Bundle
    result: RankedResult

    @property
    def losses(self) -> list[float]:
        """Loss of each step, the mean over the ranks."""
        by_rank = zip(*(account.losses for account in self.result.accounts), strict=True)
        return [sum(step) / NUM_RANKS for step in by_rank]

    @property
    def averaged_after(self) -> list[int]:
        """The optimizer steps after which all that is trained was summed over the ranks."""
        num = sum(p.numel() for p in self.job.workload.model.parameters() if p.requires_grad)
        found = [account.extra["numels"] for account in self.result.accounts]
        assert found[0] == found[1]
        assert isinstance(found[0], dict)
        return [int(step) for step, numel in found[0].items() if int(str(numel)) >= num]


SCRIPTS = [
    (kind, name, steps)
    for kind, step_counts in (
        (causal, (1, LOCAL_SGD_STEPS)),
        (adapters, (1, LOCAL_SGD_STEPS)),
        (stream, (LOCAL_SGD_STEPS,)),
    )
    for name in ("trainer", "accelerator")
    for steps in step_counts
]


def unused(place: Path) -> list[RankedRun]:
    """A loop over a model with layers that look at an encoder, where there is none."""
    spec = causal(place)
    config = place / "gpt2" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "add_cross_attention": True}))
    job = jobs.make(lambda place: spec, place)
    bundle = bundle_of(job.workload, micro_batch_size=2, accumulation_steps=1, world_size=2)
    with jobs.quiet():
        preparation = look_at_job(bundle, place / "scratch")
    # Ranks that exchange gradients notice in the second step what the first one lacked.
    num_steps = ranks.ranks_here(bundle).num_steps
    runs = []
    for is_told in (True, False):
        script = place / f"told-{is_told}.py"
        told = replace(bundle, has_unused_parameters=is_told)
        script.write_text(accelerate_script.render(told, preparation, look()))
        flags = accelerator_flags(num_steps, place / f"out-{is_told}")
        runs.append(RankedRun(script=script, flags=tuple(flags)))
    return runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], Ran]:
    """All scripts of all jobs, run in one start of two ranks; and one that fails on them."""
    installed = look()
    made, runs = {}, []
    found: dict[str, jobs.Job] = {}
    scratch = tmp_path_factory.mktemp("scratch")
    for kind, name, steps in SCRIPTS:
        key = kind.__name__
        if key not in found:
            found[key] = jobs.make(kind, tmp_path_factory.mktemp(key))
        job = found[key]
        bundle = bundle_of(
            job.workload,
            micro_batch_size=SIZE,
            accumulation_steps=ACCUMULATION_STEPS,
            world_size=NUM_RANKS,
            local_sgd_steps=steps,
            repair_loss=job.spec.task == "sequence-classification",
        )
        with jobs.quiet():
            preparation = look_at_job(bundle, job.directory / "scratch")
        module = trainer_script if name == "trainer" else accelerate_script
        script = job.directory / f"{name}-{steps}.py"
        script.write_text(module.render(bundle, preparation, installed))
        flags = trainer_flags if name == "trainer" else accelerator_flags
        output = scratch / f"{key}-{name}-{steps}"
        runs.append(RankedRun(script=script, flags=tuple(flags(NUM_STEPS, output))))
        made[key, name, steps] = job, bundle
    runs += unused(tmp_path_factory.mktemp("unused"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        results = ranks.run(
            runs,
            num_ranks=NUM_RANKS,
            scratch=scratch,
            caches=Caches(scratch=scratch, is_hub=False),
            hook="tests.autotune.export.ranked:recording",
        )
    *good, told, untold = results
    assert told.failure is None
    assert "find_unused_parameters" in (untold.failure or "")
    assert not any(path.name.startswith("ranks-") for path in scratch.iterdir())
    return {
        key: Ran(job=job, bundle=bundle, result=result)
        for (key, (job, bundle)), result in zip(made.items(), good, strict=True)
    }


def windows(job: jobs.Job) -> list[list[list[Batch]]]:
    """Micro-batches of each step and rank, in the order of the training data."""
    rows = job.workload.typical_rows(NUM_STEPS * ACCUMULATION_STEPS * NUM_RANKS * SIZE)
    batches = [job.workload.data_collator(rows[i : i + SIZE]) for i in range(0, len(rows), SIZE)]
    a_step = ACCUMULATION_STEPS * NUM_RANKS
    return [
        [batches[begin + rank : begin + a_step : NUM_RANKS] for rank in range(NUM_RANKS)]
        for begin in range(0, len(batches), a_step)
    ]


def num_items(batch: Batch, task: str) -> int:
    """What the model's own loss is the mean of."""
    if task == "sequence-classification":
        return len(batch["input_ids"])
    return int((batch["labels"][:, 1:] != -100).sum())


def reference(
    job: jobs.Job, local_sgd_steps: int, *, counts_first: bool, counts_together: bool
) -> list[float]:
    """The losses of a plain loop that plays both ranks.

    Args:
        job: What is trained.
        local_sgd_steps: Steps between two averagings; 1 sums the gradients of both ranks.
        counts_first: A loss is divided by all labelled tokens, the first of each row included.
        counts_together: It is divided by those of both ranks, and not by a rank's own.
    """
    task = job.spec.task
    models = [copy.deepcopy(job.workload.model).train() for _ in range(NUM_RANKS)]
    trained = [[p for p in model.parameters() if p.requires_grad] for model in models]
    optimizers = [torch.optim.SGD(parameters, lr=LEARNING_RATE) for parameters in trained]
    losses = []
    for step, window in enumerate(windows(job)):
        totals = [
            sum(
                int((b["labels"] != -100).sum()) if counts_first else num_items(b, task)
                for b in batches
            )
            for batches in window
        ]
        shares = []
        for model, batches, total in zip(models, window, totals, strict=True):
            divisor = sum(totals) / NUM_RANKS if counts_together else total
            share = sum(model(**b).loss * num_items(b, task) / divisor for b in batches)
            assert isinstance(share, torch.Tensor)
            share.backward()
            shares.append(float(share.detach()))
        losses.append(sum(shares) / NUM_RANKS)
        if local_sgd_steps == 1:
            for copies in zip(*trained, strict=True):
                mean = torch.stack([p.grad for p in copies if p.grad is not None]).mean(0)
                for parameter in copies:
                    parameter.grad = mean.clone()
        for parameters, optimizer in zip(trained, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / NUM_STEPS)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % local_sgd_steps == 0 and local_sgd_steps > 1:
            with torch.no_grad():
                for copies in zip(*trained, strict=True):
                    mean = torch.stack(copies).mean(0)
                    for parameter in copies:
                        parameter.copy_(mean)
    return losses


def names(script: tuple[Callable[[Path], WorkloadSpec], str, int]) -> str:
    kind, name, steps = script
    return f"{kind.__name__}-{name}-{'local' if steps > 1 else 'ddp'}"


@pytest.mark.parametrize("script", SCRIPTS, ids=names)
def test_ranks_train_as_a_plain_loop_that_plays_them(
    script: tuple[Callable[[Path], WorkloadSpec], str, int],
    ran: dict[tuple[str, str, int], Ran],
) -> None:
    kind, name, steps = script
    found = ran[kind.__name__, name, steps]
    assert found.result.failure is None
    meant = windows(found.job)
    for rank, account in enumerate(found.result.accounts):
        assert account.world_size == NUM_RANKS
        assert account.exchanges == (steps == 1,) * NUM_STEPS
        inputs = [batch["input_ids"].tolist() for window in meant for batch in window[rank]]
        assert account.extra["inputs"] == inputs
    # GPT-2 is told how many labels there are, and divides by them; its loss leaves one a row out.
    counts_first = name == "trainer" and found.job.spec.task == "causal-lm"
    # Earlier versions of Trainer let each rank divide by its own.
    field = TrainingArguments.__dataclass_fields__["average_tokens_across_devices"]
    counts_together = steps == 1 and (name == "accelerator" or bool(field.default))
    losses = reference(found.job, steps, counts_first=counts_first, counts_together=counts_together)
    assert found.losses == pytest.approx(losses, rel=1e-5)
    first, second = found.result.accounts
    assert first.parameter_sum == pytest.approx(second.parameter_sum, rel=1e-9)


@pytest.mark.parametrize("kind", ["causal", "adapters"])
def test_averaging_is_told_from_exchanging_by_the_losses(
    kind: str, ran: dict[tuple[str, str, int], Ran]
) -> None:
    exchanging = ran[kind, "trainer", 1].losses
    averaging = ran[kind, "trainer", LOCAL_SGD_STEPS].losses
    assert max(abs(a - b) / b for a, b in zip(exchanging, averaging, strict=True)) > 1e-4


@pytest.mark.parametrize("name", ["trainer", "accelerator"])
@pytest.mark.parametrize("kind", ["causal", "stream", "adapters"])
def test_parameters_are_averaged_every_so_many_optimizer_steps(
    kind: str, name: str, ran: dict[tuple[str, str, int], Ran]
) -> None:
    # Five steps of two micro-batches: after the second, the fourth and at the end.
    assert ran[kind, name, LOCAL_SGD_STEPS].averaged_after == [2, 4, 5]


@pytest.mark.parametrize("name", ["trainer", "accelerator"])
def test_nothing_is_averaged_where_gradients_are_exchanged(
    name: str, ran: dict[tuple[str, str, int], Ran]
) -> None:
    assert ran["causal", name, 1].averaged_after == []


def test_the_callback_sends_adapters_without_their_base(
    ran: dict[tuple[str, str, int], Ran],
) -> None:
    found = ran["adapters", "trainer", LOCAL_SGD_STEPS]
    parameters = list(found.job.workload.model.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    numels = found.result.accounts[0].extra["numels"]
    assert isinstance(numels, dict)
    assert trained <= int(str(numels["2"])) < 2 * trained < sum(p.numel() for p in parameters)


def test_the_rank_that_failed_first_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(num_ranks: int, place: str) -> int:
        for rank, (failure, at_unix_s) in enumerate((("connection lost", 9.0), ("no disk", 8.0))):
            told = {"rank": rank, "failure": failure, "at_unix_s": at_unix_s}
            (Path(place) / ranks.failure_name(0, rank)).write_text(json.dumps(told))
        return 1

    monkeypatch.setattr(ranks, "_start", start)
    script = RankedRun(script=tmp_path / "script.py", flags=())
    first, second = ranks.run([script, script], num_ranks=2, scratch=tmp_path)
    assert first.failure == "on rank 1: no disk"
    assert second.failure == "the script before it failed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "failure"),
    [(RANK_KILLED, "a rank was killed"), (1, "a rank ended without a word")],
)
def test_a_rank_that_says_nothing_is_told_of(
    code: int, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_start", lambda num_ranks, place: code)
    script = RankedRun(script=tmp_path / "script.py", flags=())
    (result,) = ranks.run([script], num_ranks=2, scratch=tmp_path)
    assert result.failure == failure


def test_ranks_end_with_the_process_that_wants_them(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from autotune.export.running import ranks\n"
        "place = Path(sys.argv[1])\n"
        "run = ranks.RankedRun(script=place / 'script.py', flags=())\n"
        "hook = 'tests.autotune.export.ranked:hanging'\n"
        "ranks.run([run], num_ranks=2, scratch=place, hook=hook)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "AUTOTUNE_TEST_PLACE": str(tmp_path),
    }
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    try:
        found = [wait_for(tmp_path / str(rank)) for rank in range(NUM_RANKS)]
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert all(is_gone(process) for process in found)


def wait_for(path: Path) -> int:
    """The number that a process wrote into a file."""
    for _ in range(1200):
        if path.is_file() and path.read_text():
            return int(path.read_text())
        time.sleep(0.1)
    raise AssertionError(f"nobody wrote {path}")
