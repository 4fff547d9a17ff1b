"""Every task makes exactly the samples, labels and batches that its description says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autotune.errors import WorkloadError
from autotune.workload.spec import Columns, WorkloadSpec
from tests.autotune.workload.conftest import Load, config_of, rows_of, write_csv, write_jsonl
from tests.testing.tiny_models import LABELS, TEXTS, WORDS

BERT = {
    word: number
    for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
}
GPT2 = {word: number for number, word in enumerate(["<eos>", "<unk>", "<pad>", *WORDS])}
T5 = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}


def bert_ids(text: str) -> list[int]:
    return [BERT[word] for word in f"[CLS] {text} [SEP]".split()]


def test_sequence_classification_numbers_sorted_classes(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    rows = zip(TEXTS, ("pos", "neg", "pos", "neg", "neg"), strict=True)
    data = write_csv(tmp_path / "d.csv", ("text", "label"), rows)
    loaded = load_here(
        WorkloadSpec(task="sequence-classification", model_config=bert, dataset=data)
    )
    first = dict(loaded.train_dataset[0])
    assert first == {
        "input_ids": bert_ids("good film"),
        "token_type_ids": [0] * 4,
        "attention_mask": [1] * 4,
        "labels": 1,
    }
    assert config_of(loaded).label2id == {"neg": 0, "pos": 1}
    assert config_of(loaded).problem_type == "single_label_classification"
    batch = loaded.data_collator(loaded.longest_rows(2))
    assert batch["input_ids"].shape == (2, 11)
    assert batch["input_ids"][0].tolist() == bert_ids(TEXTS[3])
    assert batch["input_ids"][1].tolist() == bert_ids(TEXTS[1]) + [BERT["[PAD]"]] * 5
    assert batch["labels"].tolist() == [0, 0]
    assert loaded.count_tokens(batch) == 11 + 6
    assert loaded.loss_items == "rows"
    assert (loaded.facts.num_rows, loaded.facts.tokens_max, loaded.facts.tokens_median) == (
        5,
        11,
        4,
    )


def test_text_pairs_have_two_segments(bert: str, tmp_path: Path, load_here: Load) -> None:
    data = write_csv(
        tmp_path / "d.csv", ("a", "b", "same"), [("good", "fine film", 1), ("bad", "poor", 0)]
    )
    loaded = load_here(
        WorkloadSpec(
            task="sequence-classification",
            model_config=bert,
            dataset=data,
            columns=Columns(text="a", text_pair="b", label="same"),
        )
    )
    row = loaded.train_dataset[0]
    assert row["input_ids"] == bert_ids("good [SEP] fine film")
    assert row["token_type_ids"] == [0, 0, 0, 1, 1, 1]


def test_causal_lm_pads_with_the_end_token_and_masks_it(
    gpt2: str, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "d.txt").write_text("\n".join(TEXTS))
    loaded = load_here(
        WorkloadSpec(task="causal-lm", model_config=gpt2, dataset="d.txt", max_length=6)
    )
    # "fine" is a single token, which predicts nothing.
    assert loaded.facts.num_rows == 4
    assert any("1 of 5 rows are left out" in note for note in loaded.facts.notes)
    assert any("no padding token; '<eos>' is used" in note for note in loaded.facts.notes)
    assert any("1 of 5 rows reach the maximum length of 6 tokens" in n for n in loaded.facts.notes)
    batch = loaded.data_collator([loaded.train_dataset[0], loaded.train_dataset[1]])
    assert batch["input_ids"].tolist() == [
        [GPT2["good"], GPT2["film"], GPT2["<eos>"], GPT2["<eos>"]],
        [GPT2[word] for word in TEXTS[1].split()],
    ]
    assert batch["labels"][0].tolist() == [GPT2["good"], GPT2["film"], -100, -100]
    assert loaded.count_tokens(batch) == 6
    assert loaded.loss_items == "shifted_tokens"
    assert len(loaded.longest_rows(1)[0]["input_ids"]) == 6  # type: ignore[arg-type]


def test_packing_cuts_joined_texts_into_equal_blocks(
    gpt2: str, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "d.txt").write_text("\n".join(TEXTS))
    loaded = load_here(
        WorkloadSpec(
            task="causal-lm", model_config=gpt2, dataset="d.txt", max_length=8, packing=True
        )
    )
    joined = [GPT2[word] for text in TEXTS for word in [*text.split(), "<eos>"]]
    assert len(joined) == 23
    assert [row["input_ids"] for row in rows_of(loaded)] == [joined[:8], joined[8:16]]
    batch = loaded.data_collator(loaded.longest_rows(3))
    assert batch["labels"].tolist() == [joined[:8], joined[8:16], joined[:8]]
    assert loaded.count_tokens(batch) == 24


def test_masked_lm_keeps_special_tokens_unmasked(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "d.txt").write_text("\n".join(TEXTS * 20))
    loaded = load_here(WorkloadSpec(task="masked-lm", model_config=bert, dataset="d.txt"))
    assert loaded.train_dataset[1]["input_ids"] == bert_ids(TEXTS[1])
    torch.manual_seed(0)
    batch = loaded.data_collator(loaded.typical_rows(100))
    masked = batch["labels"] != -100
    assert 0.08 < masked.sum() / (100 * 3.8) < 0.25
    for special in ("[CLS]", "[SEP]", "[PAD]"):
        assert BERT[special] not in batch["labels"][masked].tolist()
    assert loaded.loss_items == "tokens"


def test_masked_lm_packs_without_adding_a_second_end(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "d.txt").write_text("\n".join(TEXTS))
    loaded = load_here(
        WorkloadSpec(
            task="masked-lm", model_config=bert, dataset="d.txt", max_length=10, packing=True
        )
    )
    joined = [token for text in TEXTS for token in bert_ids(text)]
    assert [row["input_ids"] for row in rows_of(loaded)] == [joined[:10], joined[10:20]]
    assert "labels" not in loaded.train_dataset[0]


def test_token_classification_labels_the_first_token_of_a_word(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    rows = [
        {"tokens": ["Ada", "lives", "in", "Paris"], "ner_tags": ["NAME", "O", "O", "PLACE"]},
        {"tokens": ["good-film"], "ner_tags": ["O"]},
    ]
    data = write_jsonl(tmp_path / "d.jsonl", rows)
    loaded = load_here(WorkloadSpec(task="token-classification", model_config=bert, dataset=data))
    assert config_of(loaded).id2label == {0: "NAME", 1: "O", 2: "PLACE"}
    assert loaded.train_dataset[0]["labels"] == [-100, 0, 1, 1, 2, -100]
    # The hyphen makes three tokens of one word.
    assert loaded.train_dataset[1]["labels"] == [-100, 1, -100, -100, -100]
    batch = loaded.data_collator([loaded.train_dataset[0], loaded.train_dataset[1]])
    assert batch["labels"][1].tolist() == [-100, 1, -100, -100, -100, -100]


def test_token_classification_wants_a_tag_for_every_word(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    rows = [{"tokens": ["Ada", "wrote"], "tags": ["NAME"]}, {"tokens": ["it"], "tags": ["O"]}]
    data = write_jsonl(tmp_path / "d.jsonl", rows)
    with pytest.raises(WorkloadError, match="2 words and 1 tags: Ada wrote"):
        load_here(WorkloadSpec(task="token-classification", model_config=bert, dataset=data))


def test_question_answering_finds_the_tokens_of_the_answer(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    context = "Ada lives in Paris and London"
    rows = [
        {"question": "who", "context": context, "answers": {"text": ["Ada"], "answer_start": [0]}},
        {
            "question": "where",
            "context": context,
            "answers": {"text": ["Paris and London"], "answer_start": [13]},
        },
        {"question": "where", "context": context, "answers": {"text": [], "answer_start": []}},
    ]
    data = write_jsonl(tmp_path / "d.jsonl", rows)
    spec = WorkloadSpec(task="question-answering", model_config=bert, dataset=data)
    loaded = load_here(spec)
    spans = [(r["start_positions"], r["end_positions"]) for r in rows_of(loaded)]
    assert spans == [(3, 3), (6, 8), (0, 0)]
    assert loaded.train_dataset[0]["input_ids"] == bert_ids(f"who [SEP] {context}")
    batch = loaded.data_collator(loaded.typical_rows(3))
    assert batch["start_positions"].shape == (3,)
    cut = load_here(replace(spec, max_length=9))
    assert [r["start_positions"] for r in rows_of(cut)] == [3, 0, 0]


def test_seq2seq_reads_one_text_and_writes_another(
    t5: str, tmp_path: Path, load_here: Load
) -> None:
    rows = [("good film", "fine"), ("the plot was bad", "it was poor")]
    data = write_csv(tmp_path / "d.csv", ("document", "summary"), rows)
    spec = WorkloadSpec(task="seq2seq-lm", model_config=t5, dataset=data, max_length=8)
    loaded = load_here(spec)
    assert loaded.train_dataset[0] == {
        "input_ids": [T5["good"], T5["film"], T5["</s>"]],
        "attention_mask": [1, 1, 1],
        "labels": [T5["fine"], T5["</s>"]],
    }
    batch = loaded.data_collator([loaded.train_dataset[0], loaded.train_dataset[1]])
    assert batch["labels"][0].tolist() == [T5["fine"], T5["</s>"], -100, -100]
    assert batch["decoder_input_ids"][0].tolist() == [0, T5["fine"], T5["</s>"], 0]
    assert loaded.count_tokens(batch) == (3 + 5) + (2 + 4)
    assert loaded.facts.tokens_max == 9
    assert not any("maximum length" in note for note in loaded.facts.notes)
    cut = load_here(replace(spec, max_length=4)).facts
    assert cut.tokens_max == 8
    assert "1 of 2 rows reach the maximum length of 4 tokens" in cut.notes[0]


@pytest.mark.parametrize("task", ["causal-lm", "seq2seq-lm", "token-classification"])
def test_the_loss_of_a_batch_is_finite(
    task: str, bert: str, gpt2: str, t5: str, tmp_path: Path, load_here: Load
) -> None:
    config = {"causal-lm": gpt2, "seq2seq-lm": t5, "token-classification": bert}[task]
    row = {"text": "good film", "target": "bad", "tokens": ["good", "bad"], "tags": ["A", "B"]}
    data = write_jsonl(tmp_path / "d.jsonl", [row] * 4)
    loaded = load_here(WorkloadSpec(task=task, model_config=config, dataset=data))  # type: ignore[arg-type]
    with torch.no_grad():
        loss = loaded.model(**loaded.data_collator(loaded.typical_rows(2))).loss
    assert torch.isfinite(loss)


def test_without_a_padding_token_a_batch_of_one_is_the_largest(
    gpt2: str, tmp_path: Path, load_here: Load
) -> None:
    data = write_csv(tmp_path / "d.csv", ("text", "label"), zip(TEXTS, LABELS, strict=True))
    spec = WorkloadSpec(task="sequence-classification", model_config=gpt2, dataset=data)
    loaded = load_here(spec)
    assert config_of(loaded).pad_token_id is None
    assert any("only micro-batches of one sample" in note for note in loaded.facts.notes)
    assert loaded.data_collator(loaded.typical_rows(1))["input_ids"].shape[0] == 1
    with pytest.raises(ValueError, match=r"if no padding token is defined.*--pad-token"):
        loaded.data_collator(loaded.typical_rows(2))
    padded = load_here(replace(spec, pad_token="eos"))
    assert config_of(padded).pad_token_id == GPT2["<eos>"]
    batch = padded.data_collator([padded.train_dataset[0], padded.train_dataset[1]])
    assert batch["input_ids"][0].tolist() == [GPT2["good"], GPT2["film"], 0, 0]
    with torch.no_grad():
        assert torch.isfinite(padded.model(**batch).loss)
