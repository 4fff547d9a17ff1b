"""tune() on live jobs, from end to end, in real processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

import autotune
from autotune import control
from autotune.errors import NothingFeasible, UsageError
from autotune.folding import fold
from autotune.journal import read
from autotune.library import stored
from autotune.run_directory import RunDirectory
from tests.testing import examples, live
from tests.testing.tuned import ROOT, SHORT, Tuned, tune_once
from tests.testing.untouched import Snapshot

pytestmark = pytest.mark.long
TOO_SMALL = autotune.Goal(memory_limit_bytes=2**20)
"""Ends a run after its first trial."""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A finished run, which tests leave as it is."""
    return tune_once(tmp_path_factory.mktemp("tuned"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a directory of its own to run in, and children find the tests' modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Started(Exception):
    """An engine would have been started."""


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting an engine raises instead, with the run that it would have worked on."""

    def start(run: RunDirectory, environment: object) -> None:
        raise Started(run.path)

    monkeypatch.setattr("autotune.library.call.start_engine", start)


def test_a_trainer_is_tuned_and_the_files_are_there(
    tuned: Tuned,
) -> None:
    directory, found = tuned.directory, tuned.found
    assert found.configuration.global_batch_size == 4
    assert found.baseline.micro_batch_size == 2
    assert found.run is not None
    names = {path.name for path in (found.run / "out").iterdir()}
    assert {"recommendation.json", "training_arguments.json", "accelerate.yaml"} <= names
    assert "trainer.py" not in names, "no script can be written of live objects"
    assert autotune.load(found.run / "out") == found
    assert not list(directory.rglob("capsule.pt")), "live objects are deleted at the end"


def test_the_files_can_be_written_again_elsewhere(tuned: Tuned, tmp_path: Path) -> None:
    paths = tuned.found.export(tmp_path / "files")
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "files").iterdir()}


def test_a_known_answer_is_written_where_it_is_wanted(tuned: Tuned, tmp_path: Path) -> None:
    for _ in range(2):
        again = autotune.tune(
            live.trainer(tuned.directory),
            budget=SHORT,
            run_dir=tuned.directory / "runs",
            out=tmp_path / "wanted",
            display="none",
        )
        assert again == tuned.found
        assert autotune.load(tmp_path / "wanted") == again


def test_the_example_does_what_it_says(tuned: Tuned, tmp_path: Path) -> None:
    """Its job was tuned before; the answer is known."""
    shutil.copytree(tuned.directory / "runs", "autotune-runs")
    names = {"autotune": autotune, "trainer": live.trainer(tmp_path)}
    found = examples.of("tune", autotune.tune, names)
    assert found.examples
    examples.run(found)


def test_the_arguments_are_the_jobs_own(tuned: Tuned) -> None:
    directory, found = tuned.directory, tuned.found
    made = found.training_arguments(learning_rate=0.25)
    assert made.output_dir == str(directory / "out")
    assert made.learning_rate == 0.25
    size = made.per_device_train_batch_size * made.gradient_accumulation_steps
    assert size == 4


def test_the_second_call_answers_from_the_first(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, found = tuned.directory, tuned.found
    trainer = live.trainer(directory)
    start_s = time.perf_counter()
    again = autotune.tune(trainer, budget=SHORT, run_dir=directory / "runs", display="plain")
    assert time.perf_counter() - start_s < 20.0, "no engine was started"
    assert again == found
    assert "Known from run" in capsys.readouterr().err
    assert len(list((directory / "runs").iterdir())) == 1


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    "change",
    [
        lambda d: {"trainer": live.trainer(d, train_dataset=live.Tokens(40))},
        lambda d: {"goal": autotune.Goal(global_batch_size=8)},
        lambda d: {"budget": autotune.Budget(trials=3, seconds=240.0)},
    ],
)
def test_another_job_or_goal_is_not_answered_from_it(
    change: Callable[[Path], dict[str, object]],
    tuned: Tuned,
) -> None:
    directory = tuned.directory
    asked = {"trainer": live.trainer(directory), "budget": SHORT, **change(directory)}
    trainer = asked.pop("trainer")
    with pytest.raises(Started):
        autotune.tune(trainer, run_dir=directory / "runs", display="none", **asked)


def test_nothing_of_the_users_is_touched(tuned: Tuned) -> None:
    assert tuned.after.differences(tuned.before) == []


_INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
import autotune
from tests.testing import examples, live
from tests.testing.tuned import ROOT, SHORT, Tuned, tune_once
from tests.testing.untouched import Snapshot

here = Path(sys.argv[1])
trainer = live.trainer(here)
before = Snapshot.of(trainer, here)

def interrupt():
    journal = None
    while journal is None or "workload_loaded" not in journal.read_text():
        journal = next(iter(here.glob("runs/*/journal.jsonl")), None)
    os.kill(os.getpid(), signal.SIGINT)

thread = threading.Thread(target=interrupt)
thread.start()
try:
    autotune.tune(trainer, run_dir=here / "runs", display="none")
except KeyboardInterrupt:
    thread.join()
    print("interrupted", Snapshot.of(trainer, here).differences(before))
"""


@pytest.mark.usefixtures("no_engine")
def test_ctrl_c_stops_cleanly_and_the_next_call_goes_on(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ended.stdout == "interrupted []\n", ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert '"reason":"stopped"' in (run / "journal.jsonl").read_text()
    assert not list(tmp_path.rglob("capsule.pt"))
    assert not _processes_of(run)
    begun = RunDirectory(run)
    # A run that cannot be read hides none, and what was asked of the last engine is past.
    shutil.copytree(run, tmp_path / "runs" / "odd")
    (tmp_path / "runs" / "odd" / "journal.jsonl").unlink()
    (tmp_path / "runs" / "odd" / "journal.jsonl").mkdir()
    for name in (None, run.name):
        control.send(begun.control, "stop_now", "the caller")
        with pytest.raises(Started, match=str(run)):
            autotune.tune(
                live.trainer(tmp_path), run_dir=tmp_path / "runs", name=name, display="none"
            )
        assert control.take(begun.control) == []
    with pytest.raises(UsageError, match="There is a run 'odd' already"):
        autotune.tune(live.trainer(tmp_path), run_dir=tmp_path / "runs", name="odd", display="none")


@pytest.mark.usefixtures("no_engine")
def test_a_job_that_cannot_be_captured_leaves_no_run(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path, kind=live.WeightedTrainer, options={"weight": 2.0})
    trainer.weight_lock = threading.Lock()
    with pytest.raises(UsageError, match="weight_lock"):
        autotune.tune(trainer, name="mine", display="none")
    assert list(Path("autotune-runs").iterdir()) == []
    del trainer.weight_lock
    with pytest.raises(Started, match="mine"):
        autotune.tune(trainer, name="mine", display="none")
    (tmp_path / "wanted").mkdir()
    (tmp_path / "wanted" / "trainer.py").touch()
    with pytest.raises(UsageError, match="that autotune did not write") as caught:
        autotune.tune(trainer, name="other", out=tmp_path / "wanted", display="none")
    assert "export(…, force=True)" in str(caught.value.remedy)
    assert [path.name for path in Path("autotune-runs").iterdir()] == ["mine"]


def _processes_of(run: Path) -> list[str]:
    import psutil

    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] and str(run) in " ".join(process.info["cmdline"])
    ]


_KILLED = """
import sys
from pathlib import Path
import autotune
from tests.testing import examples, live
autotune.tune(live.trainer(Path(sys.argv[1])), run_dir=Path(sys.argv[1]) / "runs", display="none")
"""


def test_an_engine_whose_caller_is_killed_ends_and_leaves_no_live_objects(tmp_path: Path) -> None:
    caller = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)])
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        journals = list(tmp_path.glob("runs/*/journal.jsonl"))
        if journals and "workload_loaded" in journals[0].read_text():
            break
        time.sleep(0.1)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    (run,) = (tmp_path / "runs").iterdir()
    while time.monotonic() < deadline_s and _processes_of(run):
        time.sleep(0.1)
    assert not _processes_of(run)
    assert not list(tmp_path.rglob("capsule.pt"))


def facts_of(directory: Path) -> dict[str, object]:
    """What the child of the only run found out about its workload."""
    (run,) = (directory / "autotune-runs").iterdir()
    loaded = fold(read(RunDirectory(run).journal)).workload
    assert loaded is not None
    return dict(loaded.facts)


def test_the_parts_of_a_trainer_will_do_and_nothing_is_touched_where_nothing_fits(
    tmp_path: Path,
) -> None:
    changes: dict[str, Any] = {live.CHECKPOINTING: True}
    trainer = live.trainer(tmp_path, train_dataset=live.TokenStream(), max_steps=8, **changes)
    before = Snapshot.of(trainer, tmp_path)
    with pytest.raises(NothingFeasible, match="None of") as caught:
        autotune.tune(
            model=trainer.model,
            train_dataset=trainer.train_dataset,
            data_collator=trainer.data_collator,
            args=trainer.args,
            goal=TOO_SMALL,
            budget=SHORT,
            display="none",
        )
    assert "Goal(memory_limit_bytes=…)" in (caught.value.remedy or "")
    assert "--" not in (caught.value.remedy or "")
    assert Snapshot.of(trainer, tmp_path).differences(before) == []
    facts = facts_of(tmp_path)
    assert facts["num_rows"] is None
    assert facts["baseline"] == {
        "micro_batch_size": 2,
        "accumulation_steps": 2,
        "world_size": 1,
        "checkpointing": {"every_n_layers": 1, "offload": False},
        "local_sgd_steps": 1,
    }


def make_trainer() -> Trainer:
    """Makes what could not be captured."""
    trainer = live.trainer(Path.cwd(), kind=live.WeightedTrainer, options={"weight": 2.0})
    trainer.weight_lock = lambda: threading.Lock()
    return trainer


def test_a_function_that_makes_a_trainer_is_run_in_the_child(tmp_path: Path) -> None:
    with pytest.raises(NothingFeasible):
        autotune.tune(make_trainer, goal=TOO_SMALL, budget=SHORT, display="none")
    assert facts_of(tmp_path)["task"] == "WeightedTrainer"


_SCRIPT = """
import torch
import autotune
from pathlib import Path
from transformers import Trainer
from tests.testing import examples, live

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(60, 8)
        self.scale = FACTOR
    def forward(self, input_ids, labels=None, attention_mask=None):
        logits = self.scale * self.embed(input_ids) @ self.embed.weight.T
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}

FACTOR = 0.5

class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = model(**inputs)["loss"] * FACTOR
        return (loss, None) if return_outputs else loss

if __name__ == "__main__":
    trainer = Mine(
        model=Tied(), args=live.arguments(Path.cwd(), max_grad_norm=0.0),
        train_dataset=live.Tokens(), data_collator=lambda rows: live.pad(rows),
    )
    found = autotune.tune(trainer, budget=autotune.Budget(trials=2, seconds=240))
    found.apply(trainer)
    counter = live.BatchCounter(trainer.model)
    trainer.args.max_steps = 2
    trainer.train()
    print()
    print("rows", sum(counter.rows), "micro", found.configuration.micro_batch_size, counter.rows[0])
    print(any("checkpointing" in r for r in found.reasons))
"""


@pytest.mark.slow
def test_a_script_with_its_own_model_loss_and_collator(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(_SCRIPT))
    ended = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, check=False, timeout=280
    )
    assert ended.returncode == 0, ended.stderr
    trained, told = ended.stdout.splitlines()[-2:]
    rows, size, first = (int(word) for word in trained.split() if word.isdigit())
    assert rows == 8
    assert size == first
    assert told == "True", "a model without a switch for checkpointing is told of"
    assert "autotune: " in ended.stderr


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"trainer": 3}, "was given a int"),
        ({}, "The model is a NoneType"),
        ({"trainer": make_trainer, "model": torch.nn.Linear(1, 1)}, "a Trainer and model"),
        ({"trainer": make_trainer, "optimizers": (object(), None)}, "a Trainer and optimizers"),
        ({"trainer": make_trainer, "optimizers": object()}, "optimizers is a object, and no pair"),
        ({"trainer": make_trainer, "display": "loud"}, "no display 'loud'"),
        ({"trainer": lambda: 3}, "returned a int"),
        ({"trainer": torch.nn.Linear(1, 1)}, "was given a model, a Linear"),
        ({"trainer": lambda size: size}, "needs arguments: missing a required argument: 'size'"),
        ({"trainer": make_trainer, "goal": 64}, "The goal is a int"),
        ({"trainer": make_trainer, "budget": 64}, "The budget is a int"),
        ({"trainer": make_trainer, "sampler": "foo"}, "no sampler 'foo'"),
        ({"trainer": make_trainer, "seed": "a"}, "The seed 'a' is none"),
        ({"trainer": make_trainer, "local_sgd": "often"}, "local_sgd cannot be 'often'"),
        ({"trainer": make_trainer, "local_sgd": 0}, "local_sgd cannot be 0"),
        ({"trainer": make_trainer, "name": "../x"}, r"cannot be called '\.\./x'"),
        ({"trainer": make_trainer, "name": 3}, "The name is a int"),
        ({"trainer": make_trainer, "storage": 3}, "The storage is a int"),
        ({"trainer": make_trainer, "run_dir": 3}, "run_dir is a int"),
        ({"trainer": make_trainer, "run_dir": ""}, "run_dir: That is an empty path"),
        ({"trainer": make_trainer, "out": 3}, "out is a int"),
        ({"trainer": Trainer}, "was given the class Trainer"),
    ],
)
def test_a_call_that_cannot_work_says_why(asked: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        autotune.tune(**{"display": "none", **asked})  # type: ignore[arg-type]
    assert caught.value.remedy


def test_a_storage_that_cannot_be_opened_leaves_no_run() -> None:
    with pytest.raises(UsageError, match="The storage nonsense is no database URL") as caught:
        autotune.tune(make_trainer, storage="nonsense", display="none")
    assert str(caught.value.remedy).startswith("Give storage one such as")
    assert not Path("autotune-runs").exists()


def test_two_requests_are_the_same_only_if_both_are_live(
    tuned: Tuned,
) -> None:
    from autotune import request as requests
    from autotune.workload.spec import WorkloadSpec

    assert tuned.found.run is not None
    request = requests.load(RunDirectory(tuned.found.run))
    declared = requests.Request(workload=WorkloadSpec(task="causal-lm", demo=True))
    assert stored.is_same(request, request)
    assert not stored.is_same(declared, declared)
