"""Whatever is wrong with a model or its data is said with a cause and a remedy."""

from __future__ import annotations

import gc
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UsageError, WorkloadError
from autotune.workload.columns import choose
from autotune.workload.load import load
from autotune.workload.resolve import place_faults, resolve_spec
from autotune.workload.spec import Columns, Lora, Task, WorkloadSpec
from tests.autotune.workload.conftest import Load, rows_of, write_csv, write_jsonl
from tests.testing import tiny_models

REVIEWS = [("good film", 1), ("bad film", 0), ("fine", 1)]


@pytest.fixture
def classify(bert: str, tmp_path: Path) -> WorkloadSpec:
    """A job that loads, for tests that break one thing in it."""
    data = write_csv(tmp_path / "good.csv", ("text", "label"), REVIEWS)
    return WorkloadSpec(task="sequence-classification", model_config=bert, dataset=data)


def refused(load_here: Load, spec: WorkloadSpec, kind: type[UsageError] = WorkloadError) -> str:
    """What the error says, cause and remedy; both must be there."""
    with pytest.raises(kind) as caught:
        load_here(spec)
    assert caught.value.cause
    assert caught.value.remedy
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_job_that_is_broken_below_loads(classify: WorkloadSpec, load_here: Load) -> None:
    assert load_here(classify).facts.num_rows == 3


@pytest.mark.parametrize(
    ("name", "content", "cause", "remedy"),
    [
        ("empty.csv", b"", "empty.csv is empty", "training samples"),
        ("header.csv", b"text,label\n", "no rows", "training samples"),
        (
            "latin.csv",
            "text,label\ngood,1\nsch\u00f6n,0\n".encode("latin-1"),
            "Line 3 of .*latin.csv is not UTF-8 text .byte 0xf6",
            "UTF-8",
        ),
        (
            "broken.jsonl",
            b'{"text": "good", "label": 1}\n{"text": "bad", "label":\n',
            "Line 2 of .*broken.jsonl is not valid JSON",
            "Mend",
        ),
        ("ragged.csv", b"text,label\ngood,1\nbad,0,7\n", "Expected 2 fields in line 3", "complete"),
        ("rows.xlsx", b"PK", "unknown kind .\\.xlsx", "CSV, TSV, JSON"),
        ("noending", b"x", "unknown kind .no file ending", "CSV"),
        ("cut.parquet", b"PAR1", "cut.parquet cannot be read", "complete"),
        ("floats.csv", b"text,label\ngood,0.5\nbad,1.5\n", "decimal numbers such as 0.5", "regres"),
        ("one.csv", b"text,label\ngood,1\nbad,1\n", "one class only", "two classes"),
        ("null.csv", b"text,label\ngood,\nbad,\n", "Every row .* null or blank", "filled"),
        ("blank.csv", b"text,label\n,1\n ,0\n", "Every row .*2 in 'text'", "filled"),
        ("numbers.csv", b"text,label\n1,1\n2,0\n", "holds int values", "--text-column"),
    ],
)
def test_a_dataset_that_cannot_be_used(
    name: str,
    content: bytes,
    cause: str,
    remedy: str,
    classify: WorkloadSpec,
    tmp_path: Path,
    load_here: Load,
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WorkloadError, match=cause) as caught:
        load_here(replace(classify, dataset=name))
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"text,label\nsch\xf6n,0\n", "Line 2 of .*other.csv is not UTF-8 text"),
        (b"", "The dataset .*other.csv is empty"),
    ],
)
def test_a_directory_names_the_file_that_cannot_be_read(
    content: bytes, cause: str, classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    directory = tmp_path / "parts"
    directory.mkdir()
    write_csv(directory / "one.csv", ("text", "label"), REVIEWS)
    (directory / "other.csv").write_bytes(content)
    with pytest.raises(WorkloadError, match=cause):
        load_here(replace(classify, dataset="parts"))


def test_an_empty_file_is_refused_before_anything_is_loaded(
    classify: WorkloadSpec, tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").touch()
    with pytest.raises(WorkloadError, match=r"empty\.csv is empty"):
        resolve_spec(replace(classify, dataset="empty.csv"), tmp_path, tmp_path)


def test_a_missing_dataset_names_the_near_file(classify: WorkloadSpec, load_here: Load) -> None:
    message = refused(load_here, replace(classify, dataset="god.csv"))
    assert "god.csv does not exist" in message
    assert "good.csv?" in message


def test_all_that_is_missing_is_found_however_long_its_name(tmp_path: Path) -> None:
    spec = WorkloadSpec(task="causal-lm", model="x" * 300, dataset=f"./{'y' * 300}.csv")
    found = place_faults(spec, tmp_path)
    assert {*found} == {"model", "dataset"}
    assert "does not exist" in found["dataset"].cause


def test_a_missing_model_names_the_near_directory(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "minilm").mkdir()
    message = refused(load_here, replace(classify, model_config=None, model="./minlm"))
    assert "./minlm does not exist" in message
    assert "minilm?" in message


def test_a_hub_name_without_the_hub(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    message = refused(load_here, replace(classify, model_config=None, model="someone/some-model"))
    assert "The model someone/some-model is not here" in message
    assert "HF_HUB_OFFLINE" in message
    (tmp_path / "imdb").mkdir()
    message = refused(load_here, replace(classify, dataset="imbd"))
    assert "The dataset imbd is not here" in message
    assert "Did you mean" in message


def test_a_directory_without_data(classify: WorkloadSpec, tmp_path: Path, load_here: Load) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("x = 1")
    message = refused(load_here, replace(classify, dataset="code"))
    assert "holds no file of a known kind" in message


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_streams_that_cannot_be_read(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "header.csv").write_text("text,label\n")
    (tmp_path / "latin.csv").write_bytes("text,label\nsch\u00f6n,1\n".encode("latin-1"))
    (tmp_path / "cut.jsonl").write_text('{"text": "good", "label": 1}\n{"text": "bad"')
    spec = replace(classify, streaming=True)
    assert "no rows" in refused(load_here, replace(spec, dataset="header.csv"))
    assert "Line 2" in refused(load_here, replace(spec, dataset="latin.csv"))
    assert "Line 2" in refused(load_here, replace(spec, dataset="cut.jsonl"))
    assert "no split" in refused(load_here, replace(spec, split="train[:1]"))
    gc.collect()


def test_a_directory_without_a_config(
    classify: WorkloadSpec, bert: str, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "empty").mkdir()
    spec = replace(classify, model_config=None, model="empty")
    assert "has no config.json" in refused(load_here, spec)
    tiny_models.bert(tmp_path / "training" / "checkpoint-10")
    message = refused(load_here, replace(spec, model="training"))
    assert "checkpoint-10?" in message


def test_a_model_without_weights(classify: WorkloadSpec, bert: str, load_here: Load) -> None:
    message = refused(load_here, replace(classify, model_config=None, model=bert))
    assert "no weights" in message
    config = str(Path(bert) / "config.json")
    assert "is a file" in refused(load_here, replace(classify, model_config=None, model=config))
    assert "--model-config" in message


def test_a_config_of_no_known_architecture(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    tiny_models.bert(tmp_path / "odd")
    (tmp_path / "odd" / "config.json").write_text(json.dumps({"hidden_size": 16}))
    message = refused(load_here, replace(classify, model_config="odd"))
    assert "model_type" in message
    (tmp_path / "odd" / "config.json").write_text("{")
    assert "not valid JSON" in refused(load_here, replace(classify, model_config="odd"))


def test_a_model_that_brings_its_own_code(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    tiny_models.bert(tmp_path / "own")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    message = refused(load_here, replace(classify, model_config="own"))
    assert "code of its own" in message
    assert "--trust-remote-code" in message


def test_no_tokenizer(classify: WorkloadSpec, bert: str, tmp_path: Path, load_here: Load) -> None:
    config = tmp_path / "bare" / "config.json"
    config.parent.mkdir()
    config.write_bytes((Path(bert) / "config.json").read_bytes())
    spec = replace(classify, model_config=str(config))
    message = refused(load_here, spec)
    assert "no tokenizer in" in message
    assert "--tokenizer" in message
    assert load_here(replace(spec, tokenizer=bert)).facts.num_rows == 3


def test_a_vocabulary_beyond_the_embeddings(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    small = tiny_models.bert(tmp_path / "small", vocabulary=10)
    message = refused(load_here, replace(classify, model_config=str(small)))
    assert "has 33 tokens" in message
    assert "embeddings for 10 only" in message


def test_samples_longer_than_the_positions(classify: WorkloadSpec, load_here: Load) -> None:
    message = refused(load_here, replace(classify, max_length=33))
    assert "positions for 32 tokens" in message
    assert "--max-length 32 or less" in message
    assert load_here(replace(classify, max_length=32)).facts.num_rows == 3


def test_columns_that_are_not_there(classify: WorkloadSpec, load_here: Load) -> None:
    message = refused(load_here, replace(classify, columns=Columns(text="txt")))
    assert "no column 'txt' (--text-column)" in message
    assert "Did you mean 'text'? The dataset has: text, label." in message


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ("sequence-classification", Columns(text="a", label="a")),
        ("sequence-classification", Columns(text="a", text_pair="a", label="b")),
        ("token-classification", Columns(tokens="a", label="a")),
        ("question-answering", Columns(question="a", context="a", answers="b")),
        # The rest has a usual name.
        ("sequence-classification", Columns(label="text")),
        ("seq2seq-lm", Columns(target="text")),
    ],
)
def test_one_column_is_not_read_as_two_things(task: Task, named: Columns) -> None:
    with pytest.raises(WorkloadError, match=r"The column '\w+' cannot be both .* \(--.*") as caught:
        choose(named, task, ("a", "b", "text"))
    assert caught.value.remedy == "Name two different columns. The dataset has: a, b, text."


def test_a_usual_name_is_left_to_what_it_was_named_for() -> None:
    chosen = choose(Columns(label="text"), "sequence-classification", ("text", "sentence"))
    assert (chosen.text, chosen.label) == ("sentence", "text")


def test_a_text_may_be_learnt_from_itself() -> None:
    chosen = choose(Columns(source="a", target="a"), "seq2seq-lm", ("a", "b"))
    assert (chosen.source, chosen.target) == ("a", "a")


def test_no_column_for_the_label(classify: WorkloadSpec, tmp_path: Path, load_here: Load) -> None:
    data = write_csv(tmp_path / "d.csv", ("text", "stars"), REVIEWS)
    message = refused(load_here, replace(classify, dataset=data))
    assert "needs the class of a sample" in message
    assert "--label-column. The dataset has: text, stars." in message


def test_columns_of_a_json_file_are_found_out_while_loading(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps([{"txt": "good", "label": 1}, {"txt": "bad", "label": 0}]))
    message = refused(load_here, replace(classify, dataset=str(path)))
    assert "needs the text of a sample" in message
    assert load_here(replace(classify, dataset=str(path), columns=Columns(text="txt")))


def test_a_label_that_is_a_list(classify: WorkloadSpec, tmp_path: Path, load_here: Load) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", [{"text": "good", "label": [1, 2]}] * 2)
    assert "holds list values" in refused(load_here, replace(classify, dataset=data))


def test_rows_without_text_or_label_are_left_out_and_counted(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    rows = [*REVIEWS, ("", 1), ("  ", 0), ("poor", ""), ("very bad", 0)]
    data = write_csv(tmp_path / "d.csv", ("text", "label"), rows)
    loaded = load_here(replace(classify, dataset=data))
    assert loaded.facts.num_rows == 4
    assert loaded.facts.notes[0] == (
        "3 of 7 rows are left out, since a column that is read is null or blank there "
        "(2 in 'text', 1 in 'label')."
    )
    assert [row["labels"] for row in rows_of(loaded)] == [1, 0, 1, 0]


def test_a_split_that_is_not_there(classify: WorkloadSpec, tmp_path: Path, load_here: Load) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["good", "bad"], "label": [1, 0]})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "saved")
    message = refused(load_here, replace(classify, dataset="saved", split="valid"))
    assert "no split 'valid'" in message
    assert "train, test" in message
    folder = tmp_path / "folder"
    folder.mkdir()
    write_csv(folder / "train.csv", ("text", "label"), REVIEWS)
    message = refused(load_here, replace(classify, dataset="folder", split="valid"))
    assert "no split 'valid'" in message


def test_choices_that_cannot_be_followed(classify: WorkloadSpec, load_here: Load) -> None:
    for change, cause in (
        ({"precision": "fp16"}, "fp16 needs a device"),
        ({"optim": "adam"}, "no optimizer 'adam'"),
        ({"packing": True}, "Packing joins texts"),
        ({"max_length": 1}, "maximum length of 1"),
        ({"learning_rate": -1.0}, "learning rate -1.0"),
        ({"lora": Lora(rank=0)}, "LoRA rank"),
        ({"pad_token": "<nothing>"}, "padding token '<nothing>'"),
        ({"model": "x"}, "either --model or --model-config"),
        ({"model_config": None}, "No model was given"),
        ({"dataset": None}, "No dataset was given"),
    ):
        assert cause in refused(load_here, replace(classify, **change), UsageError)


def test_an_unknown_optimizer_is_answered_with_near_ones(
    classify: WorkloadSpec, load_here: Load
) -> None:
    message = refused(load_here, replace(classify, optim="adamw_torchfused"), UsageError)
    assert "adamw_torch_fused" in message


@pytest.mark.parametrize(
    ("optim", "package"),
    [
        ("galore_adamw", "galore_torch"),
        ("lion_32bit", "bitsandbytes"),
        ("adamw_torch_xla", "torch_xla"),
        ("adamw_torch_npu_fused", "torch_npu"),
    ],
)
def test_an_optimizer_of_a_package_that_is_missing(
    classify: WorkloadSpec, load_here: Load, optim: str, package: str
) -> None:
    message = refused(load_here, replace(classify, optim=optim), UsageError)
    assert f"needs the package {package}," in message


def test_an_attention_whose_package_is_missing(
    classify: WorkloadSpec, bert: str, tmp_path: Path, load_here: Load
) -> None:
    place = tmp_path / "flash"
    shutil.copytree(bert, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(
        json.dumps(config | {"attn_implementation": "flash_attention_2"})
    )
    spec = replace(classify, model_config=str(place))
    message = refused(load_here, spec)
    assert message.endswith(
        "Install what the attention flash_attention_2 of its config needs, or write sdpa there."
    )
    # A device that is elsewhere may have it.
    found = load(spec, tmp_path / "scratch", tmp_path, trains_here=False)
    assert any("asks for the attention flash_attention_2" in note for note in found.facts.notes)


def test_fp16_is_loaded_for_a_device_that_is_elsewhere(
    classify: WorkloadSpec, tmp_path: Path
) -> None:
    spec = replace(classify, precision="fp16")
    found = load(spec, tmp_path / "scratch", tmp_path, trains_here=False)
    assert found.arguments["fp16"] is True
    assert found.facts.precision == "fp16"


def test_bf16_is_possible_on_a_cpu(classify: WorkloadSpec, load_here: Load) -> None:
    loaded = load_here(replace(classify, precision="bf16", learning_rate=1e-4))
    assert loaded.arguments == {"seed": 42, "bf16": True, "learning_rate": 1e-4}
    assert str(loaded.model.dtype) == "torch.float32"


def test_a_task_that_the_model_has_no_head_for(t5: str, tmp_path: Path, load_here: Load) -> None:
    (tmp_path / "d.txt").write_text("good film\nbad film\n")
    spec = WorkloadSpec(task="masked-lm", model_config=t5, dataset="d.txt")
    message = refused(load_here, spec)
    assert "another --task" in message


def test_a_length_that_leaves_no_room_for_the_context(
    bert: str, tmp_path: Path, load_here: Load
) -> None:
    answers = {"text": ["Paris"], "answer_start": [0]}
    row = {"question": "where was it and who lives in it", "context": "Paris", "answers": answers}
    data = write_jsonl(tmp_path / "d.jsonl", [row] * 2)
    spec = WorkloadSpec(task="question-answering", model_config=bert, dataset=data, max_length=6)
    message = refused(load_here, spec)
    assert "cannot be turned into tokens" in message
    assert "--max-length" in message


def test_an_encoder_cannot_write(bert: str, tmp_path: Path, load_here: Load) -> None:
    data = write_csv(tmp_path / "d.csv", ("source", "target"), [("good", "bad"), ("bad", "good")])
    message = refused(load_here, WorkloadSpec(task="seq2seq-lm", model_config=bert, dataset=data))
    assert "decoder" in message


def test_too_little_text_for_one_block(gpt2: str, tmp_path: Path, load_here: Load) -> None:
    (tmp_path / "d.txt").write_text("good film\n")
    spec = WorkloadSpec(task="causal-lm", model_config=gpt2, dataset="d.txt", packing=True)
    message = refused(load_here, spec)
    assert "too short for a single block of 32 tokens" in message


def test_a_model_for_images_is_offered_no_task_that_needs_images(
    classify: WorkloadSpec, tmp_path: Path, load_here: Load
) -> None:
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "config.json").write_text(
        json.dumps({"model_type": "vit", "architectures": ["ViTForImageClassification"]})
    )
    tokenizer = classify.tokenizer or classify.model_config or classify.model
    spec = replace(classify, model=None, model_config=str(tmp_path / "vit"), tokenizer=tokenizer)
    message = refused(load_here, spec)
    assert "cannot be trained for sequence-classification" in message
    assert "image-classification" not in message
    assert "Choose a model that AutoModelForSequenceClassification supports." in message
