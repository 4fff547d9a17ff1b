"""Every kind of dataset yields the same rows, and nothing is written beside it."""

from __future__ import annotations

import gc
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

from autotune.workload.load import load
from autotune.workload.spec import WorkloadSpec
from tests.autotune.workload.conftest import Load, config_of, rows_of, write_csv, write_jsonl
from tests.testing.tiny_models import LABELS, TEXTS

ROWS = list(zip(TEXTS, LABELS, strict=True))
OBJECTS = [{"text": text, "label": label} for text, label in ROWS]
LINES = "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *ROWS])


def _table() -> datasets.Dataset:
    return datasets.Dataset.from_list(OBJECTS)


def _folder(path: Path) -> None:
    path.mkdir()
    write_csv(path / "train.csv", ("text", "label"), ROWS)
    write_csv(path / "test.csv", ("text", "label"), ROWS[:1])


WRITERS: dict[str, Callable[[Path], object]] = {
    "d.csv": lambda path: write_csv(path, ("text", "label"), ROWS),
    "d.tsv": lambda path: path.write_text(LINES),
    "d.jsonl": lambda path: write_jsonl(path, OBJECTS),
    "d.json": lambda path: path.write_text(json.dumps(OBJECTS)),
    "d.parquet": lambda path: _table().to_parquet(path),
    "d.jsonl.gz": lambda path: path.write_bytes(
        gzip.compress("\n".join(json.dumps(row) for row in OBJECTS).encode())
    ),
    "a [b] *.csv": lambda path: write_csv(path, ("text", "label"), ROWS),
    "saved": lambda path: _table().save_to_disk(path),
    "saved_splits": lambda path: datasets.DatasetDict(
        {"train": _table(), "test": _table().select([0])}
    ).save_to_disk(path),
    "folder": _folder,
}


def _tree(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
    }


# `datasets` leaves a file open when its stream is not read to the end.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", WRITERS)
def test_the_kind_of_the_dataset_makes_no_difference(
    name: str, streaming: bool, bert: str, tmp_path: Path
) -> None:
    user, scratch = tmp_path / "user", tmp_path / "scratch"
    user.mkdir()
    WRITERS[name](user / name)
    before = (_tree(user), _tree(Path(os.environ["HF_HOME"])))
    spec = WorkloadSpec(
        task="sequence-classification", model_config=bert, dataset=name, streaming=streaming
    )
    loaded = load(spec, scratch, user)
    rows = rows_of(loaded)
    assert [len(row["input_ids"]) for row in rows] == [4, 6, 3, 11, 4]
    assert [row["labels"] for row in rows] == list(LABELS)
    assert set(rows[0]) == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    assert (_tree(user), _tree(Path(os.environ["HF_HOME"]))) == before
    del loaded
    # So that the warning comes here, where it is expected.
    gc.collect()


def test_a_directory_of_documents_is_read_line_by_line(
    gpt2: str, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "docs" / "more").mkdir(parents=True)
    (tmp_path / "docs" / "b.md").write_text("good film\n\nthe plot was bad\n")
    (tmp_path / "docs" / "more" / "a.md").write_text("very poor film\n")
    (tmp_path / "docs" / "picture.png").write_bytes(b"\x89PNG")
    loaded = load_here(WorkloadSpec(task="causal-lm", model_config=gpt2, dataset="docs"))
    assert sorted(len(row["input_ids"]) for row in rows_of(loaded)) == [2, 3, 4]


def test_declared_class_names_keep_their_order(bert: str, tmp_path: Path, load_here: Load) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["z", "a", "m"])}
    )
    datasets.Dataset.from_list(OBJECTS, features=features).save_to_disk(tmp_path / "named")
    loaded = load_here(
        WorkloadSpec(task="sequence-classification", model_config=bert, dataset="named")
    )
    assert config_of(loaded).id2label == {0: "z", 1: "a", 2: "m"}
    assert [row["labels"] for row in rows_of(loaded)] == list(LABELS)


def test_a_slice_of_a_split(bert: str, tmp_path: Path, load_here: Load) -> None:
    write_csv(tmp_path / "d.csv", ("text", "label"), ROWS)
    spec = WorkloadSpec(
        task="sequence-classification", model_config=bert, dataset="d.csv", split="train[1:4]"
    )
    assert [row["labels"] for row in rows_of(load_here(spec))] == [0, 1, 0]


def test_loading_again_uses_what_was_prepared(bert: str, tmp_path: Path, load_here: Load) -> None:
    path = write_csv(tmp_path / "d.csv", ("text", "label"), ROWS)
    spec = WorkloadSpec(task="sequence-classification", model_config=bert, dataset=path)
    first = load_here(spec)
    (prepared,) = (tmp_path / "scratch").glob("rows-*.arrow")
    written = prepared.stat().st_mtime_ns
    second = load_here(spec)
    assert prepared.stat().st_mtime_ns == written
    assert rows_of(first) == rows_of(second)
    assert first.facts == second.facts
    # Other data is other prepared data, though the path is the same.
    write_csv(Path(path), ("text", "label"), ROWS[:4])
    assert load_here(spec).facts.num_rows == 4
    assert load_here(spec).facts.digest != first.facts.digest


def test_the_digest_knows_content_and_choices_but_not_places(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        write_csv(tmp_path / folder / "d.csv", ("text", "label"), ROWS)
    spec = WorkloadSpec(task="sequence-classification", model_config=bert, dataset="here/d.csv")
    digest = load_here(spec).facts.digest
    assert load_here(replace(spec, dataset="there/d.csv")).facts.digest == digest
    assert load_here(replace(spec, seed=1)).facts.digest != digest
    assert load_here(replace(spec, max_length=8)).facts.digest != digest
