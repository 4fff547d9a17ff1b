"""Small real jobs of every kind, and a way to run their scripts in this process."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from autotune.export.running import script_check
from autotune.export.running.observe import Observed, run_script, watching
from autotune.workload.load import load
from autotune.workload.loaded import Batch, LoadedWorkload
from autotune.workload.spec import Columns, Lora, WorkloadSpec
from tests.testing import tiny_models

SENTENCES = (
    *tiny_models.TEXTS,
    "all of this was not very good",
    "the actor was fine and the plot is poor",
    "that is a scene",
    "who wrote this film",
    "very very bad",
)
"""Ten texts of different lengths."""
CLASSES = ("yes", "no", "yes", "no", "no", "yes", "no", "no", "yes", "no")


@dataclass(frozen=True)
class Job:
    """A spec, the workload that the loader makes of it, and where it stands."""

    workload: LoadedWorkload
    directory: Path

    @property
    def spec(self) -> WorkloadSpec:
        """The spec with all choices made."""
        assert self.workload.facts.chosen is not None
        return self.workload.facts.chosen


def without_dropout(model: Path) -> Path:
    """Switches dropout off, so that two runs over the same rows have the same losses."""
    config = json.loads((model / "config.json").read_text())
    names = {
        "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        "t5": ("dropout_rate",),
    }[config["model_type"]]
    config.update(dict.fromkeys(names, 0.0))
    (model / "config.json").write_text(json.dumps(config))
    return model


def write_csv(path: Path, columns: Mapping[str, Sequence[str]]) -> str:
    """A CSV file with these columns."""
    lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def write_jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> str:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def classify(place: Path) -> WorkloadSpec:
    """Texts with two classes, two rows of them blank."""
    texts = (*SENTENCES, "  ", "good")
    data = write_csv(place / "rows.csv", {"text": texts, "label": (*CLASSES, "no", "")})
    model = without_dropout(tiny_models.bert(place / "bert"))
    return WorkloadSpec(task="sequence-classification", model_config=str(model), dataset=data)


def classify_pairs(place: Path) -> WorkloadSpec:
    """Pairs of texts with declared class names, saved by datasets."""
    import datasets

    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "other": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["yes", "no", "maybe"]),
        }
    )
    table = datasets.Dataset.from_dict(
        {
            "premise": list(SENTENCES),
            "other": list(reversed(SENTENCES)),
            "label": [i % 3 for i in range(len(SENTENCES))],
        },
        features=features,
    )
    datasets.DatasetDict({"train": table}).save_to_disk(place / "saved")
    model = without_dropout(tiny_models.bert(place / "bert"))
    return WorkloadSpec(
        task="sequence-classification",
        model_config=str(model),
        dataset=str(place / "saved"),
        columns=Columns(text_pair="other"),
    )


def classify_from_checkpoint(place: Path) -> WorkloadSpec:
    """A checkpoint in half precision, trained for another problem, whose head does not fit."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    spec = classify(place)
    config = AutoConfig.from_pretrained(
        spec.model_config, num_labels=5, problem_type="multi_label_classification"
    )
    model = AutoModelForSequenceClassification.from_config(config)
    model.to(torch.bfloat16).save_pretrained(place / "bert")
    return WorkloadSpec(
        task="sequence-classification", model=str(place / "bert"), dataset=spec.dataset
    )


def classify_with_lora(place: Path) -> WorkloadSpec:
    """The classifier with adapters."""
    spec = classify(place)
    lora = Lora(rank=2, alpha=4, target_modules=("query", "value"))
    return WorkloadSpec(
        task=spec.task, model_config=spec.model_config, dataset=spec.dataset, lora=lora
    )


def classify_with_gpt2(place: Path) -> WorkloadSpec:
    """A decoder that classifies, whose tokenizer has nothing to pad with."""
    spec = classify(place)
    model = without_dropout(tiny_models.gpt2(place / "gpt2"))
    return WorkloadSpec(
        task="sequence-classification",
        model_config=str(model),
        dataset=spec.dataset,
        pad_token="eos",
    )


def causal(place: Path) -> WorkloadSpec:
    """Texts for a decoder, one of them a single token."""
    data = write_jsonl(place / "rows.jsonl", [{"text": text} for text in SENTENCES])
    model = without_dropout(tiny_models.gpt2(place / "gpt2"))
    return WorkloadSpec(
        task="causal-lm", model_config=str(model), dataset=data, learning_rate=1e-3, seed=7
    )


def causal_packed(place: Path) -> WorkloadSpec:
    """The same texts, joined and cut into blocks."""
    spec = causal(place)
    return WorkloadSpec(
        task="causal-lm",
        model_config=spec.model_config,
        dataset=spec.dataset,
        packing=True,
        max_length=6,
        optim="sgd",
    )


def causal_stream(place: Path) -> WorkloadSpec:
    """The same texts as a stream."""
    spec = causal(place)
    return WorkloadSpec(
        task="causal-lm", model_config=spec.model_config, dataset=spec.dataset, streaming=True
    )


def masked(place: Path) -> WorkloadSpec:
    """Texts of which a part is masked."""
    data = place / "rows.txt"
    data.write_text("\n".join(SENTENCES) + "\n")
    model = without_dropout(tiny_models.bert(place / "bert"))
    return WorkloadSpec(task="masked-lm", model_config=str(model), dataset=str(data))


def masked_packed(place: Path) -> WorkloadSpec:
    """The same in blocks, for a tokenizer that closes every text by itself."""
    spec = masked(place)
    return WorkloadSpec(
        task="masked-lm",
        model_config=spec.model_config,
        dataset=spec.dataset,
        packing=True,
        max_length=7,
    )


def tag(place: Path) -> WorkloadSpec:
    """Words with a tag each."""
    rows = [
        {"tokens": text.split(), "tags": ["NAME" if len(w) > 4 else "O" for w in text.split()]}
        for text in SENTENCES
    ]
    model = without_dropout(tiny_models.bert(place / "bert"))
    return WorkloadSpec(
        task="token-classification",
        model_config=str(model),
        dataset=write_jsonl(place / "rows.jsonl", rows),
    )


def answer(place: Path) -> WorkloadSpec:
    """Questions with an answer in their context, without one, and with one that is cut off."""
    context = "Ada lives in Paris and wrote a very good film"
    spans = [("Paris",), ("Ada",), (), ("a very good",), ("film",)] * 2
    rows = [
        {
            "question": "where is it" if i % 2 else "who wrote the film of Ada",
            "context": context,
            "answers": {"text": list(span), "answer_start": [context.index(s) for s in span]},
        }
        for i, span in enumerate(spans)
    ]
    model = without_dropout(tiny_models.bert(place / "bert"))
    return WorkloadSpec(
        task="question-answering",
        model_config=str(model),
        dataset=write_jsonl(place / "rows.jsonl", rows),
        max_length=17,
    )


def translate(place: Path) -> WorkloadSpec:
    """One text read, another one written."""
    columns = {"source": SENTENCES, "target": tuple(reversed(SENTENCES))}
    model = without_dropout(tiny_models.t5(place / "t5"))
    return WorkloadSpec(
        task="seq2seq-lm",
        model_config=str(model),
        dataset=write_csv(place / "rows.csv", columns),
        optim="adafactor",
    )


KINDS: tuple[Callable[[Path], WorkloadSpec], ...] = (
    classify,
    classify_pairs,
    classify_from_checkpoint,
    classify_with_lora,
    classify_with_gpt2,
    causal,
    causal_packed,
    causal_stream,
    masked,
    masked_packed,
    tag,
    answer,
    translate,
)


def make(kind: Callable[[Path], WorkloadSpec], directory: Path) -> Job:
    """Writes the files of a job and loads it."""
    with quiet():
        workload = load(kind(directory), directory / "scratch", directory)
    return Job(workload=workload, directory=directory)


@contextmanager
def quiet() -> Iterator[None]:
    """Lets libraries warn without ending the test, as they do in a script's own process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass
class Run:
    """What a script did."""

    batches: list[Batch]
    """Every micro-batch as the model got it."""
    weights: dict[str, torch.Tensor]
    """Before the first of them."""
    observed: Observed

    @property
    def losses(self) -> list[float]:
        """Loss of each optimizer step."""
        return [step.loss for step in self.observed.steps]


def run(script: Path, num_steps: int) -> Run:
    """Runs a script in this process."""
    batches: list[Batch] = []
    weights: dict[str, torch.Tensor] = {}
    output = script.parent / f"{script.stem}-output"
    is_trainer = script.stem.startswith("trainer")
    flags = script_check.trainer_flags if is_trainer else script_check.accelerator_flags

    def keep(inputs: Mapping[str, object]) -> None:
        if not weights:
            assert observed.model is not None
            weights.update({n: t.detach().clone() for n, t in observed.model.state_dict().items()})
        tensors = {n: v for n, v in inputs.items() if isinstance(v, torch.Tensor)}
        tensors.pop("num_items_in_batch", None)
        batches.append({name: tensor.clone() for name, tensor in tensors.items()})

    with quiet(), watching(recomputation=True, on_batch=keep) as observed:
        run_script(script, flags(num_steps, output))
    return Run(batches=batches, weights=weights, observed=observed)
