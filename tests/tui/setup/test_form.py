"""What is filled in, the command line that says the same, and where an error belongs."""

from __future__ import annotations

import json

import pytest

from autotune.cli import options
from autotune.cli.declare import settings
from tui.setup.fields import BY_NAME, FIELDS, MORE, columns_of
from tui.setup.form import ON, Inherited, JobForm, with_switch

CLASSIFICATION = JobForm(
    values={
        "task": "sequence-classification",
        "model": "./mini lm",
        "dataset": "reviews.csv",
        "label_column": "label",
        "global_batch_size": "64",
    }
)


def test_every_field_is_an_option_of_tune() -> None:
    known = settings((options.Tune,))
    for field in FIELDS:
        assert field is MORE or field.flag.removeprefix("--") in known, field


def test_words_are_those_of_a_command_line() -> None:
    assert CLASSIFICATION.words() == [
        *("--task", "sequence-classification", "--model", "./mini lm", "--dataset", "reviews.csv"),
        *("--label-column", "label", "--global-batch-size", "64"),
    ]
    assert CLASSIFICATION.command() == (
        "autotune tune --task sequence-classification --model './mini lm' --dataset reviews.csv "
        "--label-column label --global-batch-size 64"
    )
    demo = CLASSIFICATION.with_value("demo", "on")
    assert demo.words() == ["--demo", "--global-batch-size", "64"], "the rest waits for later"
    other = CLASSIFICATION.with_value("task", "causal-lm")
    assert "--label-column" not in other.words(), "the task reads no label"


def test_further_options_are_words_too() -> None:
    form = CLASSIFICATION.with_value("more", "--lora-rank 8 --split 'train[:1000]'")
    assert form.words()[-4:] == ["--lora-rank", "8", "--split", "train[:1000]"]
    for text in ("--lora-rank '8", "--json", "--display=plain", "--model=m", "--label-column x"):
        wrong = CLASSIFICATION.with_value("more", text)
        with pytest.raises(ValueError, match=r"quotation|not for here|filled in above as well"):
            wrong.words()
        assert wrong.command().startswith("autotune tune … (")
    other = CLASSIFICATION.with_value("task", "causal-lm").with_value("more", "--label-column x")
    assert other.words()[-2:] == ["--label-column", "x"], "that field waits for another task"


def test_an_empty_field_gives_no_word_and_shows_what_holds() -> None:
    form = CLASSIFICATION.with_value("label_column", "  ")
    assert "--label-column" not in form.words()
    assert form.placeholder("global_batch_size") == "32"
    inherited = JobForm(inherited={"memory_limit": Inherited("6GiB", "autotune.toml")})
    assert inherited.placeholder("memory_limit") == "6GiB (autotune.toml)"
    assert inherited["memory_limit"] == "6GiB"
    assert inherited.words() == [], "the children read the file themselves"
    assert inherited.with_value("memory_limit", "2GiB")["memory_limit"] == "2GiB"


def test_the_command_line_hands_over_what_was_given() -> None:
    handed = {
        "given": {
            "model": "m",
            "demo": False,
            "trials": 9,
            "lora_rank": 8,
            "packing": True,
            "streaming": False,
            "more": "--split test",
        },
        "inherited": {"dataset": ["d.csv", "autotune.toml"], "seed": ["3", "AUTOTUNE_SEED"]},
    }
    form = JobForm.from_json(json.dumps(handed))
    assert form == JobForm(
        values={"model": "m", "trials": "9", "more": "--split test --lora-rank 8 --packing"},
        inherited={"dataset": Inherited("d.csv", "autotune.toml")},
    )
    assert form.missing() == (), "the data are named in the file"
    assert JobForm.from_json("{}") == JobForm()
    for text in ("[]", "{", '{"inherited": {"model": 1}}'):
        with pytest.raises((ValueError, TypeError)):
            JobForm.from_json(text)


def test_a_form_that_was_left_is_filled_in_again_by_a_command() -> None:
    assert CLASSIFICATION.again() == CLASSIFICATION.command("tui")
    (known, taken) = (settings((one,)) for one in (options.Tune, options.Tui))
    assert {field.flag.removeprefix("--") for field in FIELDS if field is not MORE} <= set(taken)
    assert {"lora-rank", "sampler", "seed"} <= set(known) & set(taken)
    half = JobForm(values={"model": "a b", "more": "--split 'train"})
    assert half.again() == "autotune tui --model 'a b' --split 'train"


def test_a_column_that_is_named_has_its_field_before_the_task_is_known() -> None:
    named = JobForm(values={"text_column": "txt"})
    assert "text_column" in named.shown()
    assert "label_column" not in named.shown()
    assert "text_column" not in named.shown("question-answering")
    assert "text_column" not in named.with_value("demo", "on").shown()


def test_what_must_be_filled_in_first() -> None:
    empty = JobForm()
    assert [(fault.field, fault.cause) for fault in empty.missing()] == [
        ("model", "There is no model to train."),
        ("dataset", "There is no data to train on."),
    ]
    (data,) = empty.with_value("model", "m").missing()
    assert data.field == "dataset"
    (fresh,) = empty.with_value("more", "--model-config gpt2.json").missing()
    assert fresh.field == "dataset"
    assert empty.with_value("demo", "on").missing() == ()


def test_fields_that_matter() -> None:
    shown = JobForm().shown()
    assert not {"text_column", "local_sgd"} & set(shown)
    assert set(columns_of("question-answering")) <= set(JobForm().shown("question-answering"))
    assert {"text_column", "text_pair_column", "label_column"} <= set(CLASSIFICATION.shown())
    assert "local_sgd" in CLASSIFICATION.with_value("processes", "2").shown()
    demo = CLASSIFICATION.with_value("demo", "on").shown()
    assert not {"model", "dataset", "task", "precision", "label_column"} & set(demo)
    assert columns_of("no task") == ()


@pytest.mark.parametrize(
    ("cause", "remedy", "field"),
    [
        ("--memory-limit: '2G' has half a unit.", "Write 2GiB or 2GB.", "memory_limit"),
        ("The dataset has no column 'lable' (--label-column).", "Did you mean …?", "label_column"),
        ("The model ./mini lm does not exist.", None, "model"),
        ("The model and the reviews.csvs of it are none.", None, "model"),
        ("The directory ./mini lm has no config.json.", "Give …", "model"),
        ("The dataset reviews.csv does not exist.", "Check the path.", "dataset"),
        ("Line 3 of reviews.csv is not UTF-8 text (byte 0xff).", "Save it …", "dataset"),
        ("What the model should learn is not clear.", "Add --task, one of …", "task"),
        ("The task needs the class of a sample.", "Name it with --label-column.", "label_column"),
        (
            "The global batch size 30 cannot be shared.",
            "Use --global-batch-size 32.",
            "global_batch_size",
        ),
        ("There is a run 'one' already.", "Go on by --resume, or another --name.", "name"),
        ("--tokenizer t is none.", None, "model"),
        ("The dataset comes in several configurations.", "Choose --dataset-config.", "dataset"),
        ("Something went wrong inside autotune.", "Please report it.", None),
    ],
)
def test_an_error_is_shown_at_its_field(cause: str, remedy: str | None, field: str | None) -> None:
    fault = CLASSIFICATION.fault(cause, remedy)
    assert fault.field == field
    assert field is None or field in BY_NAME


def test_a_remedy_offers_switches() -> None:
    fault = CLASSIFICATION.fault(
        "There is a run 'one' already.",
        "Go on with it by --resume, replace it by --fresh, or choose another --name.",
    )
    assert fault.switches() == ("--resume", "--fresh")
    assert fault.switches(["--demo", "--resume"]) == ("--fresh",)
    assert CLASSIFICATION.fault("It is wrong.", None).switches() == ()
    words = ["--name", "one", "--resume", "--force"]
    assert with_switch(words, "--fresh") == ["--name", "one", "--force", "--fresh"]
    assert with_switch(["--fresh"], "--force") == ["--fresh", "--force"]


def test_what_stands_in_more_is_marked_there() -> None:
    cause = "--demo and --model exclude each other."
    demo = JobForm(values={"demo": ON})
    assert demo.fault(cause, None).field == "demo"
    assert demo.with_value("more", "--model x").fault(cause, None).field == "more"
    both = "--model and --model-config exclude each other."
    config = CLASSIFICATION.with_value("more", "--model-config c.json")
    assert config.fault(both, None).field == "model", "where it may be emptied"
