from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import typer

from autotune.cli import options, workload_options
from autotune.cli.app import main
from autotune.cli.commands import tune
from autotune.cli.job import build_request
from autotune.goal import Budget, Goal
from autotune.request import Driver, Request, SamplerName
from autotune.workload.spec import (
    DTYPES,
    ESTIMATED_TASKS,
    PRECISIONS,
    TASKS,
    Columns,
    Lora,
    WorkloadSpec,
)
from tests.testing import runs

Build = Callable[..., Request]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Build:
    """The request that the arguments of `tune` lead to, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    built: list[Request] = []

    def run(context: typer.Context, chosen: options.Tune) -> int:
        built.append(build_request(context, chosen))
        return 0

    monkeypatch.setattr(tune, "run", run)

    def from_arguments(*arguments: str) -> Request:
        assert main(["tune", *arguments]) == 0
        return built.pop()

    return from_arguments


def test_words_on_the_command_line_are_those_of_the_request() -> None:
    assert workload_options.TASKS == TASKS
    assert workload_options.ESTIMATED_TASKS == ESTIMATED_TASKS
    assert workload_options.DTYPES == DTYPES
    assert workload_options.PRECISIONS == PRECISIONS
    assert get_args(SamplerName) == options.SAMPLERS
    assert get_args(Driver) == options.DRIVERS


def test_the_demo_needs_nothing_else(build: Build) -> None:
    request = build("--demo")
    assert request.workload == WorkloadSpec(task="causal-lm", demo=True)
    assert request.goal == Goal()
    assert request.budget == Budget(trials=40, seconds=600)
    assert (request.sampler, request.driver, request.local_sgd) == ("auto", "trainer", "auto")


def test_every_option_reaches_the_request(build: Build, tmp_path: Path) -> None:
    words = """--model m --tokenizer t --dataset d --dataset-config c --split s --streaming
        --task seq2seq-lm --source-column a --target-column b --max-length 128 --packing
        --pad-token eos --precision bf16 --optim adafactor --learning-rate 1e-4 --lora-rank 8
        --lora-alpha 16 --lora-dropout 0.1 --lora-target-modules q,v --micro-batch-size 4
        --training-seed 7 --trust-remote-code --global-batch-size 64 --memory-limit 6GiB
        --total-steps 1000 --budget 1m30s --trials 9 --processes 1 --local-sgd 8
        --driver accelerate --sampler tpe --seed 3 --storage sqlite:///x.db --out o --force"""
    request = build(*words.split())
    assert request == Request(
        workload=WorkloadSpec(
            task="seq2seq-lm",
            model="m",
            tokenizer="t",
            dataset="d",
            dataset_config="c",
            split="s",
            streaming=True,
            columns=Columns(source="a", target="b"),
            max_length=128,
            packing=True,
            pad_token="eos",
            precision="bf16",
            optim="adafactor",
            learning_rate=1e-4,
            lora=Lora(rank=8, alpha=16, dropout=0.1, target_modules=("q", "v")),
            seed=7,
            trust_remote_code=True,
        ),
        goal=Goal(global_batch_size=64, memory_limit_bytes=6 * 1024**3),
        budget=Budget(trials=9, seconds=90.0),
        baseline_micro_batch_size=4,
        sampler="tpe",
        driver="accelerate",
        local_sgd="8",
        total_steps=1000,
        seed=3,
        storage="sqlite:///x.db",
        out=str(tmp_path / "o"),
        force=True,
    )


@pytest.mark.parametrize(
    ("column", "task"),
    [
        ("--label-column", "sequence-classification"),
        ("--tokens-column", "token-classification"),
        ("--context-column", "question-answering"),
        ("--source-column", "seq2seq-lm"),
    ],
)
def test_a_column_tells_the_task(
    build: Build, capsys: pytest.CaptureFixture[str], column: str, task: str
) -> None:
    assert build("--model", "m", "--dataset", "d", column, "x").spec.task == task
    assert capsys.readouterr().err == f"Task {task}, because of {column}.\n"


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("GPT2LMHeadModel", "causal-lm"),
        ("LlamaForCausalLM", "causal-lm"),
        ("BertForMaskedLM", "masked-lm"),
        ("T5ForConditionalGeneration", "seq2seq-lm"),
    ],
)
def test_a_local_config_tells_the_task(
    build: Build, tmp_path: Path, architecture: str, task: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert build("--model", str(tmp_path), "--dataset", "d").spec.task == task
    config = str(tmp_path / "config.json")
    assert build("--model-config", config, "--dataset", "d").spec.task == task


def test_flags_win_over_variables_and_variables_over_files(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "autotune.toml").write_text("demo = true\ntrials = 1\nseed = 1\nbudget = 60\n")
    monkeypatch.setenv("AUTOTUNE_TRIALS", "2")
    monkeypatch.setenv("AUTOTUNE_SEED", "2")
    request = build("--trials", "3")
    assert request.spec.demo
    assert (request.budget.trials, request.seed, request.budget.seconds) == (3, 2, 60.0)


M = ("--model", "m", "--dataset", "d", "--task", "causal-lm")


@pytest.mark.parametrize(
    ("text", "size", "sizes"),
    [
        ("64", 64, None),
        ("8..64", None, (8, 64)),
        ("7..9", None, (8, 8)),
        ("auto", None, (2, 2**20)),
    ],
)
def test_a_global_batch_size_is_kept_or_chosen(
    build: Build, text: str, size: int | None, sizes: tuple[int, int] | None
) -> None:
    request = build(*M, "--task", "causal-lm", "--global-batch-size", text, "--processes", "2")
    assert (request.goal.global_batch_size, request.goal.global_batch_size_range) == (size, sizes)
    assert request.processes == 2


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        ((), "no model to train", "--demo"),
        (("--model", "m"), "no data to train on", "--dataset"),
        (("--model", "m", "--dataset", "d"), "The model m is not here", "a local copy"),
        (("--model", "m", "--model-config", "c"), "exclude each other", "Leave one"),
        (("--demo", "--model-config", "c"), "exclude each other", "Leave one"),
        (("--demo", "--precision", "bf16"), "--precision is not for the built-in job", "--model"),
        (("--demo", "--dataset", "d"), "--dataset is not for the built-in job", "--dataset"),
        (("--demo", "--resume", "--fresh"), "--resume and --fresh exclude", "Leave one"),
        ((*M, "--task", "causal-ml"), "--task cannot be 'causal-ml'", "'causal-lm'"),
        ((*M, "--precision", "int8"), "--precision cannot be 'int8'", "fp32, bf16, fp16"),
        ((*M, "--sampler", "tpee"), "--sampler cannot be", "Did you mean 'tpe'?"),
        ((*M, "--global-batch-size", "most"), "a range or auto, not 'most'", "for example 64"),
        ((*M, "--global-batch-size", "64..8"), "a range or auto, not '64..8'", "32..256"),
        ((*M, "--global-batch-size", "0"), "takes a number", "for example 64"),
        (
            (*M, "--global-batch-size", "64", "--micro-batch-size", "48"),
            "64 is not a multiple of --micro-batch-size 48",
            "change one",
        ),
        ((*M, "--memory-limit", "5KiB"), "5KiB is less than any training process", "6GiB"),
        ((*M, "--memory-limit", "6G"), "half a unit", "Write 6GiB or 6GB"),
        ((*M, "--memory-limit", "lots"), "'lots' is not a size", "6GiB"),
        ((*M, "--budget", "soon"), "'soon' is not a time", "10m"),
        ((*M, "--trials", "0"), "--trials must be at least 1", "larger"),
        ((*M, "--processes", "0"), "--processes must be at least 1", "larger"),
        ((*M, "--local-sgd", "often"), "takes auto, off or a number", "auto"),
        ((*M, "--local-sgd", "100000000"), "--local-sgd 100000000 is more steps than 65536", "16"),
        (
            (*M, "--local-sgd", "64", "--total-steps", "50"),
            "--local-sgd 64 is more steps than the 50 of --total-steps",
            "or auto",
        ),
        (
            (*M, "--global-batch-size", "9", "--processes", "2"),
            "The global batch size 9 cannot be shared by 2 ranks.",
            "--global-batch-size 10",
        ),
        (
            (*M, "--global-batch-size", "9..9", "--processes", "2"),
            "No global batch size from 9 to 9 can be shared by 2 ranks.",
            "a multiple of 2, such as 10",
        ),
        (
            (*M, "--micro-batch-size", "8", "--processes", "2"),
            "The global batch size 8 is not a multiple of the micro-batch size 8 on 2 ranks.",
            "--micro-batch-size 4, or --global-batch-size 16",
        ),
        ((*M, "--lora-alpha", "4"), "--lora-alpha needs --lora-rank", "--lora-rank 8"),
        ((*M, "--lora-rank", "4", "--lora-dropout", "1"), "from 0 up to 1", "0.05"),
        ((*M, "--learning-rate", "-1"), "positive number", "5e-5"),
        ((*M, "--learning-rate", "nan"), "positive number", "5e-5"),
        ((*M, "--max-length", "1"), "at least 2", "larger"),
        ((*M, "--trials", "2x"), "--trials takes a whole number, not '2x'.", "such as 8"),
        ((*M, "--task", "images"), "--task cannot be 'images'", "seq2seq-lm."),
        (("--resume",), "There is no run 'last'", "autotune runs"),
    ],
)
def test_what_cannot_work_is_a_usage_error_with_a_remedy(
    build: Build,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    cause: str,
    remedy: str,
) -> None:
    assert main(["tune", *arguments]) == 2
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first.startswith("Error: ")
    assert cause in first
    assert second.startswith("Hint: ")
    assert remedy in second


def test_an_error_says_where_the_value_came_from(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AUTOTUNE_MEMORY_LIMIT", "lots")
    assert main(["tune", *M]) == 2
    assert "--memory-limit (from AUTOTUNE_MEMORY_LIMIT)" in capsys.readouterr().err
    monkeypatch.delenv("AUTOTUNE_MEMORY_LIMIT")
    (tmp_path / "autotune.toml").write_text("budget = 'soon'")
    assert main(["tune", *M]) == 2
    assert f"--budget (from {tmp_path / 'autotune.toml'})" in capsys.readouterr().err


def test_resume_takes_the_stored_job_and_what_was_given_anew(build: Build, tmp_path: Path) -> None:
    stored = replace(runs.demo_request(), out="/somewhere", seed=5)
    runs.write_run(tmp_path / "autotune-runs", "one", [], stored)
    assert build("--resume", "--name", "one") == stored
    assert build("--resume") == stored
    changed = build("--resume", "--trials", "30", "--budget", "2m", "--out", "here")
    assert changed == replace(
        stored, budget=Budget(trials=30, seconds=120.0), out=str(tmp_path / "here")
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--memory-limit", "8GiB"),
        ("--global-batch-size", "128"),
        ("--sampler", "tpe"),
        ("--processes", "2"),
        ("--dataset", "other.csv"),
        ("--model", "other"),
        ("--model-config", "other"),
        ("--task", "masked-lm"),
    ],
)
def test_what_a_resumed_run_cannot_change_is_refused(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    runs.write_run(tmp_path / "autotune-runs", "one", [])
    assert main(["tune", "--resume", option, value]) == 2
    assert f"{option} cannot change what a run was started with" in capsys.readouterr().err


def test_a_resumed_run_may_be_told_what_it_is(build: Build, tmp_path: Path) -> None:
    workload = WorkloadSpec(task="masked-lm", model="./tiny", dataset="some.csv")
    stored = replace(runs.demo_request(), workload=workload)
    runs.write_run(tmp_path / "autotune-runs", "one", [], stored)
    assert build("--resume", "--model", "./tiny") == stored
    assert build("--resume", "--dataset", "some.csv", "--task", "masked-lm") == stored


def test_what_a_file_says_is_for_new_runs(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.write_run(tmp_path / "autotune-runs", "one", [])
    (tmp_path / "autotune.toml").write_text("sampler = 'tpe'")
    monkeypatch.setenv("AUTOTUNE_MEMORY_LIMIT", "8GiB")
    # What was typed and is the same changes nothing.
    assert build("--resume", "--processes", "1") == runs.demo_request()


def test_a_run_is_resumed_from_home(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    runs.write_run(tmp_path / "kept", "one", [])
    assert build("--resume", "--run-dir=~/kept") == runs.demo_request()


@pytest.mark.parametrize("option", ["--seed", "--training-seed"])
@pytest.mark.parametrize("value", ["-1", str(2**32)])
def test_a_seed_is_one_that_every_generator_takes(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--demo", option, value]) == 2
    assert f"{option} must be from 0 to 4294967295" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "dataset", "says"),
    [
        ("./missing", "data.csv", "The model ./missing does not exist"),
        (".", "missing.csv", "The dataset missing.csv does not exist"),
        ("./missing", "missing.csv", "The model ./missing does not exist. The dataset missing.csv"),
        ("nobody/model", "missing.csv", "The model nobody/model is not here"),
        ("nobody/model", "missing.csv", "The dataset missing.csv does not exist"),
        (".", "data.csv", "has no config.json"),
        ("headless", "data.csv", "What the model should learn is not clear: neither its config"),
    ],
)
def test_a_wrong_path_is_told_before_the_task_is_missed(
    model: str,
    dataset: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("text,label\n")
    (tmp_path / "headless").mkdir()
    (tmp_path / "headless" / "config.json").write_text("{}")
    (tmp_path / "headless" / "model.safetensors").touch()
    assert main(["tune", "--model", model, "--dataset", dataset]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert ("not clear" in err) is ("not clear" in says)
