"""`estimate`: on steps written by hand, and on two that are really traced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.cli.app import main
from autotune.cli.commands import estimate
from autotune.cost.memory.trace import TracedWorkload, Untraced
from autotune.tracing import client
from autotune.tracing.client import TracingFailedError
from autotune.tracing.request import TraceRequest
from autotune.workload.spec import WorkloadSpec
from probes.memory import read_memory
from tests.autotune.cost.memory.traces import EVERY_LAYER, MIB, step, traced
from tests.autotune.export.jobs import quiet
from tests.testing.shared import case_folder

GIB = 2**30
Captured = pytest.CaptureFixture[str]
Estimate = Callable[..., int]

GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 256,
    "vocab_size": 8192,
}


def config(directory: Path, **changes: object) -> str:
    path = directory / "gpt2.json"
    path.write_text(json.dumps(GPT2 | changes))
    return str(path)


@pytest.fixture
def asked() -> list[TraceRequest]:
    """The requests that reached the tracer."""
    return []


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[TraceRequest]) -> Estimate:
    """Runs `estimate` over steps that are written by hand."""

    def trace(request: TraceRequest, **_: object) -> TracedWorkload:
        asked.append(request)
        return traced(
            step(),
            step(EVERY_LAYER, activations_mib=1.0),
            untraced=(
                Untraced(
                    what="checkpointing every 2nd layer", checkpointing=EVERY_LAYER, reason="x"
                ),
            ),
        )

    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(client, "trace_workload", trace)
    monkeypatch.chdir(tmp_path)
    place = config(tmp_path)
    return lambda *words: main(["estimate", "--model-config", place, *words])


def test_the_answer_is_a_table_with_every_byte_accounted_for(
    by_hand: Estimate, capsys: Captured
) -> None:
    assert by_hand("--device", "rtx4090", "--max-length", "512") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "RTX 4090: 24.0 GiB (data sheet, 24 GB), 22.8 GiB to fill" in out
    assert any(line.startswith("1 ") and "✓" in line for line in lines)
    assert any(line.startswith("largest") for line in lines)
    assert "cuBLAS workspaces" in out
    assert "context" in out
    assert "traced" in out
    assert "assumed" in out
    assert "The peak stands in backward, layer." in out
    assert "Not covered" in out
    assert "no checkpointing at 2048" in out
    assert "Tracing a training step" in err
    assert "\x1b" not in out + err


def test_json_is_one_document_whose_sums_add_up(by_hand: Estimate, capsys: Captured) -> None:
    assert by_hand("--device", "A100 80GB", "--json", "--micro-batch-size", "24") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["error"] is None
    assert document["device"]["architecture"] == "sm_80"
    assert document["device"]["total_bytes"] == 81920 * MIB
    plain, every = document["forms"]
    assert plain["checkpointing"] == {"every_n_layers": None, "offload": False}
    assert every["largest_micro_batch_size"] > plain["largest_micro_batch_size"] > 1000
    for form in (plain, every):
        at = form["at"]
        assert at["total_bytes"] == sum(layer["bytes"] for layer in at["layers"])
        assert at["layers"][0]["bytes"] == sum(at["by_kind"].values())
        assert 24 in [entry["micro_batch_size"] for entry in form["entries"]]
        for entry in form["entries"]:
            assert entry["fits"] == (entry["total_bytes"] <= document["device"]["usable_bytes"])
            assert (entry["why"] is None) == entry["fits"]


def test_a_picture_holds_every_entry(by_hand: Estimate, tmp_path: Path, capsys: Captured) -> None:
    assert by_hand("--device", "H200", "--picture", "fit.svg", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    root = ElementTree.fromstring((tmp_path / "fit.svg").read_text())
    marks = {element.get("id") for element in root.iter()}
    for number, form in enumerate(document["forms"]):
        for entry in form["entries"]:
            assert f"form-{number}-{entry['micro_batch_size']}" in marks
        assert f"kind-activations-{number}" in marks


def test_a_name_with_dollar_signs_is_no_formula(by_hand: Estimate, capsys: Captured) -> None:
    from autotune.export import memory_picture

    assert by_hand("--device", "H200", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    document["workload"]["name"] = "a$\\b$"
    assert "a$\\b$ on H200" in memory_picture.draw(document)


def test_a_repeated_question_is_answered_without_tracing(
    by_hand: Estimate, asked: list[TraceRequest], capsys: Captured
) -> None:
    words = ("--device-memory", "16GiB", "--json")
    assert by_hand(*words) == 0
    first = capsys.readouterr().out
    assert by_hand(*words) == 0
    assert capsys.readouterr().out == first
    assert len(asked) == 1
    assert by_hand(*words, "--fresh") == 0
    assert len(asked) == 2
    assert by_hand("--device-memory", "24GiB", "--json") == 0
    assert len(asked) == 3


def test_what_is_asked_of_the_tracer(by_hand: Estimate, asked: list[TraceRequest]) -> None:
    words = ("--lora-rank", "16", "--precision", "bf16", "--optim", "adamw_torch_fused")
    assert by_hand("--device", "T4", "--max-length", "128", *words) == 0
    assert by_hand("--device-memory", "8GiB", "--packing") == 0
    first, second = asked
    assert (first.target.kind, first.target.capability) == ("cuda", (7, 5))
    assert first.is_padded is True
    assert second.target.capability is None
    assert second.is_padded is False
    spec = first.workload
    assert isinstance(spec, WorkloadSpec)
    assert spec.lora is not None
    assert (spec.lora.rank, spec.precision, spec.optim) == (16, "bf16", "adamw_torch_fused")
    assert spec.dtype == "auto"


def test_several_processes_and_the_allocator_of_the_job_count(
    by_hand: Estimate, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    words = ("--device", "RTX 4090", "--processes", "2", "--global-batch-size", "96", "--json")
    assert by_hand(*words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["allocator"]["expandable_segments"] is True
    (plain, _) = document["forms"]
    assert [e["micro_batch_size"] for e in plain["entries"]] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    assert [e["accumulation_steps"] for e in plain["entries"]][:2] == [48, 24]
    names = [layer["name"] for layer in plain["at"]["layers"]]
    assert {"gradient buckets", "communication buffers"} <= {*names}


def test_processes_on_a_cpu_share_its_memory(
    by_hand: Estimate, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    memory = replace(read_memory(), available_bytes=8 * GIB)
    monkeypatch.setattr(estimate, "read_memory", lambda: memory)
    totals = {}
    for processes in ("1", "4"):
        assert by_hand("--device", "cpu", "--processes", processes, "--json") == 0
        device = json.loads(capsys.readouterr().out)["device"]
        totals[processes] = (device["total_bytes"], device["total_from"])
    assert totals == {
        "1": (8 * GIB, "available here now"),
        "4": (2 * GIB, "a share of what is available here now"),
    }
    assert by_hand("--device", "cpu", "--processes", "4") == 0
    assert "4, on one machine" in capsys.readouterr().out


def test_options_of_other_jobs_are_refused_beside_the_demo(
    by_hand: Estimate, capsys: Captured
) -> None:
    words = ("--demo", "--device-memory", "8GiB", "--max-length", "32")
    assert main(["estimate", *words]) == 0
    assert main(["estimate", *words, "--optim", "sgd"]) == 2
    assert "--optim is not for the built-in job" in capsys.readouterr().err


def test_what_is_not_counted_is_told(by_hand: Estimate, capsys: Captured) -> None:
    assert by_hand("--device-memory", "8GiB") == 0
    out = capsys.readouterr().out
    assert "Evaluation and saving are not counted" in out
    assert "add nothing but their samples, 8.00 KiB each" in out
    assert ", made up samples" in out


def test_where_nothing_fits_the_document_is_whole_and_says_what_is_missing(
    by_hand: Estimate, capsys: Captured
) -> None:
    assert by_hand("--device", "RTX 4090", "--device-memory", "300MiB", "--json") == 4
    out, err = capsys.readouterr()
    document = json.loads(out)
    cause = document["error"]["cause"]
    assert cause.startswith("The weights alone take 100 MiB, and RTX 4090 has 44.0 MiB to fill: ")
    assert cause.endswith(" are missing.")
    assert "--lora-rank" in document["error"]["remedy"]
    assert [form["largest_micro_batch_size"] for form in document["forms"]] == [None, None]
    assert f"Error: {cause}" in err
    assert by_hand("--device", "RTX 4090", "--device-memory", "1100MiB") == 4
    out, err = capsys.readouterr()
    assert "Error: One sample with " in err
    assert "none" in out
    assert "✗" in out


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (("--device", "geforce 4091"), "--device: There is no device", "RTX 4090"),
        (("--dtype", "bf16", "--device-memory", "8GiB"), "--dtype cannot be 'bf16'", "bfloat16"),
        (("--device-memory", "8GiB", "--picture", "."), "draws SVG", ".svg"),
        (("--device", "RTX 4900"), "--device: There is no device 'RTX 4900'", "RTX 4090"),
        (("--device", "cuda:0"), "the name of a make, and cuda:0 is none", "Leave it out"),
        (("--device", "A100"), "may be several devices", "A100 40GB, A100 80GB"),
        (("--device-memory", "24G"), "has half a unit", "24GiB or 24GB"),
        (("--device-memory", "24 gigs"), "is not a size", "6GiB"),
        (("--device-memory", "0GiB"), "is no memory at all", "larger"),
        (("--device-memory", "5000TiB"), "no device has 5000 TiB", "24GiB"),
        (
            ("--device-memory", "8GiB", "--global-batch-size", "10000000000"),
            "more samples than an optimizer step can have",
            "not tokens",
        ),
        (("--device", "cpu", "--precision", "fp16"), "fp16 needs a device", "bf16 or fp32"),
        (
            ("--device-memory", "8GiB", "--global-batch-size", "9", "--processes", "2"),
            "cannot be split into 2 processes",
            "change one",
        ),
        (
            ("--device-memory", "8GiB", "--global-batch-size", "9", "--micro-batch-size", "2"),
            "cannot be split into micro-batches of 2",
            "change one",
        ),
        (("--device-memory", "8GiB", "--picture", "fit.png"), "draws SVG", ".svg"),
        (("--device-memory", "8GiB", "--picture", "no/fit.svg"), "does not exist", "Make it"),
        (("--device-memory", "8GiB", "--lora-alpha", "3"), "needs --lora-rank", "--lora-rank 8"),
    ],
)
def test_bad_input_is_told_with_the_remedy(
    by_hand: Estimate, capsys: Captured, words: tuple[str, ...], cause: str, remedy: str
) -> None:
    assert by_hand(*words) == 2
    err = capsys.readouterr().err
    assert cause in err
    assert remedy in err.split("Hint: ")[1]


def test_settings_that_torch_would_refuse_are_refused(
    by_hand: Estimate, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:5")
    assert by_hand("--device-memory", "8GiB") == 2
    assert "max_split_size_mb cannot be '5'" in capsys.readouterr().err


def test_a_config_that_says_no_task_is_asked_for_one(
    by_hand: Estimate, tmp_path: Path, capsys: Captured
) -> None:
    place = config(tmp_path, architectures=["GPT2Model"])
    assert main(["estimate", "--model-config", place, "--device-memory", "8GiB"]) == 2
    err = capsys.readouterr().err
    assert "What the model should learn is not clear" in err
    assert "--task" in err
    assert main(["estimate", "--device-memory", "8GiB"]) == 2
    assert "There is no model to train." in capsys.readouterr().err
    assert main(["estimate", "--model-config", "gone.json", "--device-memory", "8GiB"]) == 2
    assert "gone.json does not exist" in capsys.readouterr().err


def test_a_directory_without_a_config_is_told_before_the_task_is_asked_for(
    by_hand: Estimate, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["estimate", "--model", "empty", "--device-memory", "8GiB"]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_an_old_name_of_a_class_tells_the_task(
    by_hand: Estimate, tmp_path: Path, asked: list[TraceRequest]
) -> None:
    place = config(tmp_path, architectures=["T5WithLMHeadModel"], model_type="t5")
    assert main(["estimate", "--model-config", place, "--device-memory", "8GiB"]) == 0
    spec = asked[-1].workload
    assert isinstance(spec, WorkloadSpec)
    assert spec.task == "seq2seq-lm"


@pytest.mark.parametrize(
    ("text", "cause"),
    [('{"model_type": "gpt2", ', "is not valid JSON (line 1)"), ("[1, 2]", "holds no settings")],
)
def test_a_config_that_is_broken_is_told_before_anything_is_loaded(
    by_hand: Estimate, tmp_path: Path, capsys: Captured, text: str, cause: str
) -> None:
    place = tmp_path / "broken.json"
    place.write_text(text)
    for words in ((), ("--task", "causal-lm")):
        words = ("--model-config", str(place), "--device-memory", "8GiB", *words)
        assert main(["estimate", *words]) == 2
        err = capsys.readouterr().err
        assert cause in err
        assert "Tracing" not in err


def test_images_are_estimated_and_not_tuned(
    by_hand: Estimate, asked: list[TraceRequest], tmp_path: Path, capsys: Captured
) -> None:
    place = config(tmp_path, architectures=["ViTForImageClassification"], model_type="vit")
    assert main(["estimate", "--model-config", place, "--device-memory", "8GiB"]) == 0
    spec = asked[-1].workload
    assert isinstance(spec, WorkloadSpec)
    assert spec.task == "image-classification"
    for command in ("estimate", "tune"):
        assert main([command, "--model-config", place, "--dataset", "x.csv"]) == 2
        assert "reads no images" in capsys.readouterr().err


def test_a_trace_that_fails_is_told_and_nothing_is_kept(
    by_hand: Estimate, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fails(request: TraceRequest, **_: object) -> TracedWorkload:
        raise TracingFailedError("The process ended.", "Measure instead: autotune tune.")

    monkeypatch.setattr(client, "trace_workload", fails)
    for _ in range(2):
        assert by_hand("--device-memory", "8GiB", "--json") == 1
        out, err = capsys.readouterr()
        assert json.loads(out)["error"]["cause"] == "The process ended."
        assert "Hint: Measure instead: autotune tune." in err


def test_a_model_none_of_whose_forms_can_be_traced_is_told(
    by_hand: Estimate, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    lost = Untraced(what="no checkpointing", checkpointing=None, reason="it routes by its data")
    empty = TracedWorkload(facts=traced().facts, steps=(), untraced=(lost,))
    monkeypatch.setattr(client, "trace_workload", lambda *_, **__: empty)
    assert by_hand("--device-memory", "8GiB") == 1
    err = capsys.readouterr().err
    assert "it routes by its data" in err
    assert "autotune tune" in err


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE_DIR", str(directory))
        yield directory


def test_nearly_all_memory_may_be_logits(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A million weights and sixty thousand words: the law must see the vocabulary."""

    def trace_here(request: TraceRequest, *, scratch: Path, **_: object) -> TracedWorkload:
        from autotune.tracing.made_up import make_up
        from autotune.tracing.trace import fake_mode, trace

        assert isinstance(request.workload, WorkloadSpec)
        mode = fake_mode()
        with quiet():
            return trace(make_up(request.workload, scratch, mode), request, scratch, mode)

    monkeypatch.setattr(client, "trace_workload", trace_here)
    model = case_folder("16-vocab-logits-spike") / "model.json"
    limit_bytes = 450 * MIB + 400_000_000
    words = ("--task", "causal-lm", "--max-length", "96", "--global-batch-size", "8")
    device = ("--device", "cpu", "--device-memory", str(limit_bytes))
    assert main(["estimate", "--model-config", str(model), *words, *device, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plain = document["forms"][0]
    tensors = {e["micro_batch_size"]: e["tensor_bytes"] for e in plain["entries"]}
    slope = (tensors[8] - tensors[4]) / 4
    assert 65e6 < slope < 72e6
    # The fixed part is not small: a line through the origin and one sample would miss.
    assert tensors[8] < 8 * tensors[1]
    assert {form["largest_micro_batch_size"] for form in document["forms"]} == {4}
    assert plain["at"]["by_kind"]["logits"] > 0.6 * plain["at"]["layers"][0]["bytes"]
    assert any(
        note.startswith("Checkpointing makes no more fit: logits take ")
        for note in document["notes"]
    )


def test_a_config_alone_is_traced_and_asked_again_without_any_training_library(
    cache: Path, tmp_path: Path, capsys: Captured
) -> None:
    words = [
        *("estimate", "--model-config", config(tmp_path), "--precision", "bf16"),
        *("--max-length", "256", "--device", "RTX 4090", "--device-memory", "4GiB", "--json"),
    ]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    work = document["workload"]
    assert (work["model_class"], work["samples"]) == ("GPT2LMHeadModel", "made up")
    assert (work["sequence_length"], work["precision"]) == (256, "bf16")
    # 4 layers of 12 n² + 13 n, embeddings of 8192 + 256 rows, the last norm.
    assert work["num_parameters"] == 4 * (12 * 256**2 + 13 * 256) + 8448 * 256 + 512
    plain, *others = document["forms"]
    assert [form["checkpointing"]["every_n_layers"] for form in others] == [3, 2, 1]
    assert others[-1]["largest_micro_batch_size"] > plain["largest_micro_batch_size"] > 8
    assert plain["at"]["by_kind"]["weights"] >= 4 * work["num_parameters"]
    code = (
        "import json, sys\nfrom autotune.cli.app import main\n"
        f"code = main({words!r})\n"
        "heavy = ('torch', 'transformers', 'accelerate', 'datasets', 'numpy', 'matplotlib')\n"
        "print(json.dumps([code, [n for n in heavy if n in sys.modules]]), file=sys.stderr)"
    )
    again = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "AUTOTUNE_CACHE_DIR": str(cache)},
        check=True,
    )
    assert json.loads(again.stdout) == document
    assert json.loads(again.stderr.splitlines()[-1]) == [0, []]


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (("--max-length", "300"), "positions for 256 tokens", "--max-length 256 or less"),
        (("--task", "seq2seq-lm"), "cannot be trained", "another --task: causal-lm"),
        (("--optim", "adam_torch"), "There is no optimizer 'adam_torch'", "adamw_torch"),
    ],
)
def test_what_the_model_cannot_follow_is_told_as_everywhere(
    by_hand: Estimate,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    words: tuple[str, ...],
    cause: str,
    remedy: str,
) -> None:
    def load(request: TraceRequest, **_: object) -> TracedWorkload:
        from autotune.tracing.made_up import make_up
        from autotune.tracing.trace import fake_mode

        assert isinstance(request.workload, WorkloadSpec)
        make_up(request.workload, Path.cwd(), fake_mode())
        raise AssertionError("this could be loaded")

    monkeypatch.setattr(client, "trace_workload", load)
    assert by_hand("--device-memory", "8GiB", *words) == 2
    err = capsys.readouterr().err
    assert cause in err
    assert remedy in err.split("Hint: ")[1]
