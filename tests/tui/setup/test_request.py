"""The form of an earlier run asks for the same again."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from autotune.cli import options
from autotune.cli.app import main
from autotune.cli.commands import tune
from autotune.cli.job import build_request
from autotune.events import Document
from autotune.request import Request, request_adapter
from tests.testing import runs
from tui.setup.form import JobForm
from tui.setup.request import form_of_request


@pytest.mark.parametrize(
    "words",
    [
        "--demo --max-length 64 --trials 7 --budget 90s",
        "--model m --dataset d.csv --task causal-lm --memory-limit 1536MiB --packing",
        "--model-config c.json --dataset d --task masked-lm --global-batch-size 8..64 --seed 3",
        "--model m --dataset d --label-column l --task sequence-classification --processes 2 "
        "--local-sgd 16 --driver accelerate --micro-batch-size 4 --global-batch-size 64",
        "--model m --tokenizer t --dataset d --split s --streaming --source-column a "
        "--target-column b --task seq2seq-lm --precision bf16 --optim adafactor "
        "--learning-rate 1e-4 --lora-rank 8 --lora-alpha 16 --lora-dropout 0.1 "
        "--lora-target-modules q,v --training-seed 7 --sampler tpe --total-steps 1000 "
        "--memory-limit 123456789 --storage sqlite:///x.db --pad-token eos --trust-remote-code",
    ],
)
def test_a_request_comes_back_as_it_was(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    built: list[Request] = []

    def run(context: typer.Context, chosen: options.Tune) -> int:
        built.append(build_request(context, chosen))
        return 0

    monkeypatch.setattr(tune, "run", run)
    assert main(["tune", *words.split()]) == 0
    document: Document = request_adapter().dump_python(built[0], mode="json")
    form = form_of_request(document)
    assert main(["tune", *form.words()]) == 0
    assert built[0] == built[1]


def test_live_objects_have_no_form() -> None:
    assert form_of_request({"workload": {"file": "job.bin", "digest": "d"}}) == JobForm()
    assert form_of_request({}) == JobForm()
    demo = form_of_request(request_adapter().dump_python(runs.demo_request(), mode="json"))
    assert demo.command() == (
        "autotune tune --demo --global-batch-size 64 --memory-limit 4GiB --trials 12 --budget 60s"
    )
