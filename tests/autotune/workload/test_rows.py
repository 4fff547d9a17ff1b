"""Which samples are chosen: the order is Trainer's own, the longest are the longest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from autotune.errors import WorkloadError
from autotune.workload import data
from autotune.workload.loaded import LoadedWorkload
from autotune.workload.rows import longest_first
from autotune.workload.spec import WorkloadSpec
from tests.autotune.workload.conftest import Load, write_csv, write_jsonl
from tests.testing.tiny_models import WORDS

if TYPE_CHECKING:
    from transformers import Trainer


def numbered_rows(num: int) -> Iterator[tuple[str, int]]:
    """Texts that all differ, of 1 to 9 words."""
    for number in range(num):
        words = [WORDS[(number + i * (number // len(WORDS) + 1)) % len(WORDS)] for i in range(9)]
        yield " ".join(words[: number * 7 % 9 + 1]), number % 2


def recording_trainer(
    loaded: LoadedWorkload, output: Path, **options: object
) -> tuple[Trainer, list[dict[str, torch.Tensor]]]:
    """A Trainer that keeps every batch it trains on."""
    from transformers import Trainer, TrainingArguments

    batches: list[dict[str, torch.Tensor]] = []

    class Recorder(Trainer):  # type: ignore[misc]
        def training_step(self, model, inputs, *rest, **named):  # type: ignore[no-untyped-def]
            batches.append({name: value.clone() for name, value in inputs.items()})
            return super().training_step(model, inputs, *rest, **named)

    arguments = TrainingArguments(
        output_dir=str(output),
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        **{**loaded.arguments, **options},
    )
    trainer = Recorder(
        model=loaded.model,
        args=arguments,
        train_dataset=loaded.train_dataset,
        data_collator=loaded.data_collator,
        processing_class=loaded.processing_class,
    )
    return trainer, batches


@pytest.mark.parametrize("seed", [42, 7])
def test_typical_rows_are_the_batches_of_trainer(
    seed: int, bert: str, tmp_path: Path, load_here: Load
) -> None:
    path = write_csv(tmp_path / "d.csv", ("text", "label"), numbered_rows(20))
    spec = WorkloadSpec(task="sequence-classification", model_config=bert, dataset=path, seed=seed)
    loaded = load_here(spec)
    rows = loaded.typical_rows(45)
    trainer, batches = recording_trainer(
        loaded, tmp_path / "out", per_device_train_batch_size=4, num_train_epochs=3
    )
    trainer.train()
    assert len(batches) == 15
    for number in range(11):
        expected = loaded.data_collator(rows[number * 4 : number * 4 + 4])
        assert expected.keys() == batches[number].keys()
        for name, value in expected.items():
            assert torch.equal(value, batches[number][name]), (number, name)


def test_streams_are_trained_on_in_their_own_order(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    rows = [{"text": text, "label": label} for text, label in numbered_rows(20)]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    loaded = load_here(
        WorkloadSpec(
            task="sequence-classification", model_config=bert, dataset=path, streaming=True
        )
    )
    assert loaded.facts.num_rows is None
    with pytest.raises(TypeError):
        len(loaded.train_dataset)  # type: ignore[arg-type]
    trainer, batches = recording_trainer(
        loaded, tmp_path / "out", per_device_train_batch_size=8, max_steps=2
    )
    trainer.train()
    for number, rows_of_batch in enumerate((loaded.typical_rows(8), loaded.typical_rows(16)[8:])):
        expected = loaded.data_collator(rows_of_batch)
        assert torch.equal(expected["input_ids"], batches[number]["input_ids"])
    longest = loaded.longest_rows(25)
    lengths = [len(row["input_ids"]) for row in longest]  # type: ignore[arg-type]
    assert lengths[:20] == sorted(lengths[:20], reverse=True)
    assert lengths[0] == 11
    assert longest[20:] == longest[:5]


def test_a_long_stream_is_never_read_to_its_end(
    gpt2: str, tmp_path: Path, load_here: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "PEEK_ROWS", 10)
    texts = ["good film"] * 5000 + ["the plot was very bad and poor"]
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": text} for text in texts])
    loaded = load_here(
        WorkloadSpec(task="causal-lm", model_config=gpt2, dataset=path, streaming=True)
    )
    assert loaded.facts.tokens_max == 2
    assert any("first 10 rows" in note and "up to 32 tokens" in note for note in loaded.facts.notes)


def test_an_empty_stream_is_said_to_be_empty(gpt2: str, tmp_path: Path, load_here: Load) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": " "}] * 3)
    with pytest.raises(WorkloadError, match="no training sample"):
        load_here(WorkloadSpec(task="causal-lm", model_config=gpt2, dataset=path, streaming=True))


def test_the_longest_of_each_field_meet_in_the_first_batch() -> None:
    # The second row has the most tokens, but a batch with the others is wider in both fields.
    lengths = [(1, 1), (6, 6), (9, 1), (2, 8), (6, 5), (9, 1)]
    assert longest_first(lengths, 6) == [2, 3, 1, 4, 5, 0]
    assert longest_first(lengths, 2) == [2, 3]
    # There is room for one, which is as wide as itself.
    assert longest_first(lengths, 1) == [1]
    assert longest_first([(2,), (5,), (5,)], 3) == [1, 2, 0]
    assert longest_first([(3, 3), (4, 4), (1, 1)], 3) == [1, 0, 2]


def test_a_text_and_its_target_may_be_longest_in_two_rows(
    t5: str, tmp_path: Path, load_here: Load
) -> None:
    long, short, middle = (" ".join(["good"] * num) for num in (9, 1, 6))
    pairs = [{"source": middle, "target": middle}] * 80
    path = write_jsonl(
        tmp_path / "d.jsonl",
        [*pairs, {"source": long, "target": short}, {"source": short, "target": long}],
    )
    spec = WorkloadSpec(task="seq2seq-lm", model_config=t5, dataset=path)
    widths = set()
    for streaming in (False, True):
        loaded = load_here(replace(spec, streaming=streaming))
        batch = loaded.data_collator(loaded.longest_rows(2))
        widths.add((batch["input_ids"].shape[1], batch["labels"].shape[1]))
    (width,) = widths
    assert width[0] == width[1] >= 9


def test_longest_rows_come_longest_first_and_start_over(
    gpt2: str, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "d.txt").write_text("good film\nthe plot was bad\nvery poor film\nbad and poor\n")
    loaded = load_here(WorkloadSpec(task="causal-lm", model_config=gpt2, dataset="d.txt"))
    lengths = [len(row["input_ids"]) for row in loaded.longest_rows(6)]  # type: ignore[arg-type]
    assert lengths == [4, 3, 3, 2, 4, 3]
    # Among equals the earlier row comes first.
    assert loaded.longest_rows(3)[1] == loaded.train_dataset[2]
