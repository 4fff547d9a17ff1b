"""What is known of a job, in lines that are right, doubtful or wrong."""

from __future__ import annotations

from autotune.events import Document
from tests.testing import runs
from tui.setup.checks import Check, Look, of_fault, of_look, of_plan, predicted_bytes, steps
from tui.setup.form import Fault, JobForm

FORM = JobForm(values={"model": "m", "dataset": "d.csv", "task": "causal-lm"})
PLAN: Document = {
    "baseline": runs.BASELINE.to_json(),  # type: ignore[dict-item]
    "candidates": [
        {"configuration": c.to_json(), "predicted": None}  # type: ignore[dict-item]
        for c in (runs.BASELINE, runs.BEST, runs.TOO_LARGE)
    ],
    "ruled_out": [{"what": "local SGD", "reason": "one process", "num_removed": 0}],
    "memory_limit_bytes": 4 * runs.GIB,
    "usable_bytes": 4 * runs.GIB * 19 // 20,
    "limit_source": "the limit you set",
    "parity": "Loss parity holds: 8 rows train the same whole and in micro-batches of 2.",
    "workload": {
        "model_class": "GPT2LMHeadModel",
        "num_parameters": 1_200_000,
        "num_rows": 812,
        "tokens_max": 128,
        "notes": ["New weights, drawn with the seed: head."],
    },
    "warnings": [{"cause": "Other work keeps this machine busy.", "remedy": "Let it end."}],
    "machine": {},
}


def _told(checks: object) -> list[str]:
    assert isinstance(checks, list)
    return [f"{check.mark} {check.what}: {check.text}" for check in checks]


def test_what_files_tell() -> None:
    document: Document = {
        "columns": ["text", "label"],
        "architecture": "GPT2LMHeadModel",
        "task": "causal-lm",
        "chosen": {"text": "text"},
    }
    look = Look.read(document, FORM, None)
    assert (look.columns, look.chosen) == (("text", "label"), {"text_column": "text"})
    assert _told(list(of_look(look, FORM))) == [
        "ok model: GPT2LMHeadModel",
        "ok dataset: columns text, label",
        "ok task: causal-lm, text from 'text'",
    ]


def test_columns_are_known_though_something_is_wrong() -> None:
    error = ("The dataset has no column 'txt' (--text-column).", "Did you mean 'text'?")
    look = Look.read({"columns": ["text"]}, FORM, error)
    assert look.faults == (Fault(*error, "text_column"),)
    assert _told(list(of_look(look, FORM))) == [
        "ok dataset: columns text",
        "wrong text: The dataset has no column 'txt' (--text-column). Did you mean 'text'?",
    ]
    several: Document = {
        "error": {"cause": "The model m does not exist.", "remedy": None},
        "errors": [
            {"cause": "The model m does not exist.", "remedy": None},
            {"cause": "--trials must be at least 1, not 0.", "remedy": "Give a larger number."},
        ],
    }
    both = Look.read(several, FORM, ("The model m does not exist.", None))
    assert [fault.field for fault in both.faults] == ["model", "trials"]
    assert [check.what for check in of_look(both, FORM)] == ["model", "trials"]
    unread = Look.read({}, FORM, ("The command ended with code 1.", None))
    assert [check.mark for check in of_look(unread, FORM)] == ["wrong"]


def test_what_a_plan_tells() -> None:
    assert _told(list(of_plan(PLAN))) == [
        "ok workload: GPT2LMHeadModel, 1.20M parameters, 812 rows, longest 128 tokens",
        "note workload: New weights, drawn with the seed: head.",
        "ok space: 3 configurations to choose from; micro-batch 8, 16, 64; "
        "2 forms of checkpointing",
        "ok memory: limit 4.00 GiB (the limit you set), 3.80 GiB usable",
        "open fit: unknown before a trial",
        "ok same loss: Loss parity holds: 8 rows train the same whole and in micro-batches of 2.",
        "note machine: Other work keeps this machine busy. Let it end.",
        "none left out: local SGD: one process",
    ]
    split: Document = {**PLAN, "parity": "Split into 4 micro-batches, the rows give 4.00 times …"}
    assert next(c for c in of_plan(split) if c.what == "same loss").mark == "note"
    assert [check.what for check in of_plan({})] == ["space", "memory", "fit"], "nothing breaks"


def test_predictions_are_told_as_predictions() -> None:
    needs = (1 * runs.GIB, 2 * runs.GIB, 9 * runs.GIB)
    candidates = PLAN["candidates"]
    assert isinstance(candidates, list)
    plan: Document = {
        **PLAN,
        "candidates": [
            {**candidate, "predicted": {"memory": {"total_bytes": need}}}  # type: ignore[dict-item]
            for candidate, need in zip(candidates, needs, strict=True)
        ],
    }
    told = next(c for c in of_plan(plan) if c.what == "fit")
    assert told == Check(mark="ok", what="fit", text="2 of 3 are predicted to fit (not measured)")
    assert predicted_bytes({"total_bytes": 5}) == 5
    assert predicted_bytes({"step_s": 1.0}) is None
    assert predicted_bytes(None) is None


def test_what_will_happen() -> None:
    told = dict(steps(PLAN, FORM.with_value("trials", "9")))
    assert list(told) == ["probe", "check", "baseline", "search", "confirm", "export"]
    assert told["baseline"] == "8×8, what you have now"
    assert told["search"] == "at most 9 trials of 3 configurations within 10m"
    assert dict(steps(None, FORM))["search"] == "at most 40 trials within 10m"


def test_a_fault_stands_at_its_field() -> None:
    check = of_fault(Fault("The model is gone.", "Look for it.", "model"))
    assert (check.mark, check.what, check.field) == ("wrong", "model", "model")
    assert check.text == "The model is gone. Look for it."
    assert of_fault(Fault("It broke.")).what == "job"
