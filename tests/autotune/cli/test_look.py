"""The first look at a job, in a process of its own, on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.events import Document
from tests.testing.shared import data_file

CHECK = (
    "import json, sys\nfrom autotune.cli import look\ncode = look.main()\n"
    "heavy = [n for n in ('torch', 'transformers', 'numpy', 'datasets') if n in sys.modules]\n"
    "print(json.dumps(heavy), file=sys.stderr)\nsys.exit(code)"
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a model that needs no loading."""
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"architectures": ["BertForSequenceClassification"]})
    )
    (model / "model.safetensors").touch()
    return tmp_path


def _look(here: Path, *words: str) -> tuple[int, Document]:
    found = subprocess.run(
        [sys.executable, "-P", "-c", CHECK, *words],
        capture_output=True,
        text=True,
        cwd=here,
        timeout=60,
    )
    assert found.stderr.splitlines()[-1] == "[]", "nothing heavy was loaded"
    return found.returncode, json.loads(found.stdout)


def test_files_tell_columns_task_and_the_first_error(here: Path) -> None:
    reviews = str(data_file("reviews-train.csv"))
    code, document = _look(here, "--model", "tiny", "--dataset", reviews)
    assert (code, document) == (
        0,
        {
            "schema": 1,
            "columns": ["text", "label"],
            "architecture": "BertForSequenceClassification",
            "task": "sequence-classification",
            "chosen": {"text": "text", "label": "label"},
        },
    )
    words = ("--model", "tiny", "--dataset", reviews, "--label-column", "lable")
    code, document = _look(here, *words)
    assert code == 2
    assert document["columns"] == ["text", "label"], "known for completion all the same"
    assert document["error"] == {
        "cause": "The dataset has no column 'lable' (--label-column).",
        "remedy": "Did you mean 'label'? The dataset has: text, label.",
    }


def test_settings_count_and_what_cannot_be_parsed_is_told(here: Path) -> None:
    (here / "autotune.toml").write_text("demo = true\n")
    assert _look(here) == (
        0,
        {"schema": 1, "columns": None, "architecture": None, "task": "causal-lm", "chosen": {}},
    )
    code, document = _look(here, "--trials", "many")
    assert (code, document["error"]) == (
        2,
        {
            "cause": "--trials takes a whole number, not 'many'.",
            "remedy": "Write one such as 8.",
        },
    )


def _told(document: Document) -> list[str]:
    errors = document["errors"]
    assert isinstance(errors, list)
    assert document["error"] == errors[0]
    return [str(error["cause"]) for error in errors if isinstance(error, dict)]


def test_everything_that_is_wrong_is_told_at_once(here: Path) -> None:
    reviews = str(data_file("reviews-train.csv"))
    wrong = (
        *("--model", "tiny", "--dataset", reviews, "--label-column", "lable"),
        *("--text-column", "txt", "--memory-limit", "2G", "--processes", "few", "--zzz", "2"),
        *("--global-batch-size", "many", "--trials", "0", "--precision=fp8"),
    )
    code, document = _look(here, *wrong)
    assert code == 2
    assert document["columns"] == ["text", "label"]
    told = _told(document)
    assert {cause.split()[0].rstrip(":") for cause in told if cause.startswith("--")} == {
        "--precision",
        "--global-batch-size",
        "--memory-limit",
        "--trials",
        "--processes",
    }
    assert "There is no option --zzz." in told
    remedies = {str(e["cause"]): e["remedy"] for e in document["errors"] if isinstance(e, dict)}  # type: ignore[union-attr]
    assert remedies["There is no option --zzz."] == "`autotune tune --help` lists what there is."
    assert "The dataset has no column 'lable' (--label-column)." in told
    assert "The dataset has no column 'txt' (--text-column)." in told
    assert len(told) == len(set(told)) == 8


def test_what_is_not_there_is_blamed_and_nothing_that_follows_from_it(here: Path) -> None:
    words = ("--model", "./nowhere", "--dataset", "none.csv", "--processes", "0")
    _, document = _look(here, *words)
    assert _told(document) == [
        "The model ./nowhere does not exist.",
        "The dataset none.csv does not exist.",
        "--processes must be at least 1, not 0.",
    ]
    _, document = _look(here, "--trials", "0")
    assert _told(document) == [
        "There is no model to train.",
        "There is no data to train on.",
        "--trials must be at least 1, not 0.",
    ]
    (here / "headless").mkdir()
    (here / "headless" / "config.json").write_text('{"architectures": ["BertModel"]}')
    (here / "headless" / "model.safetensors").touch()
    _, document = _look(here, "--model", "headless", "--dataset", "none.csv")
    missing, unclear = _told(document)
    assert missing == "The dataset none.csv does not exist."
    assert unclear.startswith("What the model should learn is not clear")
    reviews = ("--dataset", str(data_file("reviews-train.csv")))
    _, document = _look(here, "--model", "headless", *reviews, "--label-column", "lable")
    assert _told(document) == ["The dataset has no column 'lable' (--label-column)."]


def test_weights_and_random_weights_exclude_each_other_whatever_else_is_wrong(here: Path) -> None:
    reviews = str(data_file("reviews-train.csv"))
    both = ("--model", "./nowhere", "--model-config", "none.json", "--dataset", reviews)
    _, document = _look(here, *both, "--trials", "0")
    errors = document["errors"]
    assert isinstance(errors, list)
    assert errors[0] == {
        "cause": "--model and --model-config exclude each other.",
        "remedy": "Leave one of them out.",
    }
    assert _told(document)[1:] == [
        "The model ./nowhere does not exist.",
        "--trials must be at least 1, not 0.",
    ]
    _, document = _look(here, "--model", "tiny", "--model-config", "tiny", "--dataset", reviews)
    assert _told(document) == ["--model and --model-config exclude each other."]
    assert document["task"] == "sequence-classification", "of the model"


def test_columns_are_looked_for_though_the_model_is_not_there(here: Path) -> None:
    data = ("--dataset", str(data_file("reviews-train.csv")))
    no_text = "The dataset has no column 'txt' (--text-column)."
    lost = ("--model", "./nowhere", *data, "--text-column", "txt")
    for known in ((), ("--task", "causal-lm")):
        _, document = _look(here, *lost, *known)
        assert _told(document) == ["The model ./nowhere does not exist.", no_text]
    (here / "tiny" / "model.safetensors").unlink()
    _, document = _look(here, "--model", "tiny", *data, "--label-column", "lable")
    no_weights, no_label = _told(document)
    assert no_weights.endswith("has a config.json, but no weights.")
    assert no_label == "The dataset has no column 'lable' (--label-column)."
    assert (document["task"], document["chosen"]) == (
        "sequence-classification",
        {"text": "text", "label": "label"},
    )
    (here / "tiny" / "config.json").write_text("{}")
    _, document = _look(here, "--model", "tiny", *data, "--text-column", "txt")
    assert [cause.split(" ")[0] for cause in _told(document)] == ["The", "The"]


def test_what_can_be_no_path_hides_nothing_else_that_is_wrong(here: Path) -> None:
    home = "begins with a home that is not known."
    data = ("--dataset", str(data_file("reviews-train.csv")))
    _, document = _look(here, "--model", "~nobodyx/m", *data, "--trials", "0", "--out", "~nobodyx")
    assert _told(document) == [
        f"--model: The path ~nobodyx/m {home}",
        f"--out: The path ~nobodyx {home}",
        "--trials must be at least 1, not 0.",
    ]
    assert document["columns"] == ["text", "label"]
    lost = ("--model", "tiny", "--dataset", "~nobodyx/d.csv", "--tokenizer", "~nobodyx")
    _, document = _look(here, *lost, "--memory-limit", "2G")
    assert sorted(cause.split(":")[0] for cause in _told(document)) == [
        "--dataset",
        "--memory-limit",
        "--tokenizer",
    ]


def test_the_batch_that_was_given_is_told_and_never_its_stand_in(here: Path) -> None:
    ranks = ("--demo", "--processes", "99")
    _, document = _look(here, *ranks, "--global-batch-size", "7", "--micro-batch-size", "8")
    assert _told(document) == [
        "--global-batch-size 7 is not a multiple of --micro-batch-size 8.",
        "The global batch size 7 cannot be shared by 99 ranks.",
    ]
    _, document = _look(here, *ranks, "--global-batch-size", "many", "--memory-limit", "5KiB")
    batch, limit = _told(document)
    assert batch.startswith("--global-batch-size takes a number, a range or auto, not 'many'")
    assert limit == "--memory-limit 5KiB is less than any training process occupies."


def test_what_the_built_in_job_does_not_take_is_told_once(here: Path) -> None:
    words = ("--demo", "--model", "x", "--dataset", "y", "--split", "z", "--trials", "0")
    _, document = _look(here, *words)
    assert _told(document) == [
        "--demo and --model exclude each other.",
        "--dataset is not for the built-in job.",
        "--split is not for the built-in job.",
        "--trials must be at least 1, not 0.",
    ]
