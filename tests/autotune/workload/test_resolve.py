"""A spec becomes absolute, is checked without torch, and resolving it again changes nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from autotune.errors import WorkloadError
from autotune.workload import hub
from autotune.workload.header import header_of
from autotune.workload.resolve import resolve_spec
from autotune.workload.spec import Columns, WorkloadSpec
from tests.autotune.workload.conftest import write_csv, write_jsonl
from tests.testing import tiny_models


def test_relative_paths_become_absolute(tmp_path: Path) -> None:
    tiny_models.gpt2(tmp_path / "models" / "tiny")
    (tmp_path / "d.txt").write_text("good film\n")
    spec = WorkloadSpec(
        task="causal-lm", model_config="models/tiny", tokenizer="./models/tiny", dataset="d.txt"
    )
    resolved = resolve_spec(spec, tmp_path / "scratch", tmp_path)
    assert resolved.model_config == resolved.tokenizer == str(tmp_path / "models" / "tiny")
    assert resolved.dataset == str(tmp_path / "d.txt")
    assert resolve_spec(resolved, tmp_path / "scratch", Path("/")) == resolved
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "saved"])
def test_a_wrong_column_is_found_before_anything_is_loaded(kind: str, tmp_path: Path) -> None:
    tiny_models.gpt2(tmp_path / "tiny")
    path = tmp_path / f"d.{kind}"
    table = datasets.Dataset.from_dict({"body": ["good film"], "stars": [1]})
    if kind == "csv":
        write_csv(path, ("body", "stars"), [("good film", 1)])
    elif kind == "jsonl":
        write_jsonl(path, [{"body": "good film", "stars": 1}])
    elif kind == "parquet":
        table.to_parquet(path)
    else:
        table.save_to_disk(path)
    spec = WorkloadSpec(
        task="causal-lm",
        model_config="tiny",
        dataset=path.name,
        columns=Columns(text="bdy"),
    )
    with pytest.raises(WorkloadError) as caught:
        resolve_spec(spec, tmp_path / "scratch", tmp_path)
    assert caught.value.cause == "The dataset has no column 'bdy' (--text-column)."
    assert caught.value.remedy == "Did you mean 'body'? The dataset has: body, stars."


def test_resolving_loads_neither_torch_nor_transformers(tmp_path: Path) -> None:
    tiny_models.gpt2(tmp_path / "tiny")
    (tmp_path / "d.csv").write_text("text\ngood film\n")
    program = f"""
import sys
from pathlib import Path
from autotune.workload.resolve import resolve_spec
from autotune.workload.spec import WorkloadSpec
here = Path({str(tmp_path)!r})
resolve_spec(WorkloadSpec(task="causal-lm", model_config="tiny", dataset="d.csv"), here / "s", here)
resolve_spec(WorkloadSpec(task="causal-lm", demo=True), here / "s", here)
print([name for name in ("torch", "transformers", "datasets", "accelerate") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_hub_that_is_out_of_reach_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    def unknown_host(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(WorkloadError, match="The model org/name is not here, and the hub cannot"):
        hub.require("org/name", "model", "model", None)
    # What is in the cache needs no hub, and a proxy may know hosts that we do not.
    (tmp_path / "models--org--name").mkdir()
    hub.require("org/name", "model", "model", None)
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    hub.require("org/other", "model", "model", None)


def test_names_of_the_hub_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for folder in ("models--org--model", "datasets--imdb"):
        (tmp_path / "cache" / folder).mkdir(parents=True)
    spec = WorkloadSpec(task="causal-lm", model="org/model", dataset="imdb")
    resolved = resolve_spec(spec, tmp_path / "scratch", tmp_path)
    assert (resolved.model, resolved.dataset) == ("org/model", "imdb")


def test_a_path_that_is_no_hub_name_is_a_missing_file(tmp_path: Path) -> None:
    for dataset in ("a/b/c", "rows.csv", "~/rows", "odd name"):
        spec = WorkloadSpec(task="causal-lm", demo=False, model_config=".", dataset=dataset)
        with pytest.raises(WorkloadError, match="does not exist"):
            resolve_spec(spec, tmp_path / "scratch", tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"features": null}', "[]", "no JSON"])
def test_a_directory_that_does_not_tell_its_columns_is_left_to_the_loader(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "dataset_info.json").write_text(text)
    assert header_of(WorkloadSpec(task="causal-lm", dataset=str(tmp_path))) is None
