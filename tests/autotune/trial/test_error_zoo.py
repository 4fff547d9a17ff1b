"""Every error of the case of that name gets the verdict that the case states."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from autotune.outcome import Failed, OutOfMemory
from autotune.trial.failure import outcome_of, outcome_of_exit
from tests.testing.shared import case_folder

Entry = Mapping[str, Any]


def entries() -> list[Entry]:
    found: list[Entry] = json.loads((case_folder("02-oom-error-zoo") / "errors.json").read_text())
    return found


def error_of(entry: Entry) -> BaseException:
    name = entry["type"]
    place, short = (torch, name[6:]) if name.startswith("torch.") else (builtins, name)
    cls: type[BaseException] = getattr(place, short, RuntimeError)
    return cls(*(entry.get("args") or [entry["text"]]))


def raised(entry: Entry) -> BaseException:
    """The error as a caller catches it, with its cause."""
    with pytest.raises(BaseException) as caught:
        raise error_of(entry) from error_of(entry["cause"]) if "cause" in entry else None
    return caught.value


RAISED = [entry for entry in entries() if "exit_code" not in entry]
EXITED = [entry for entry in entries() if "exit_code" in entry]


def test_the_case_has_every_kind() -> None:
    assert len(RAISED) == 21
    assert [entry["id"] for entry in EXITED] == ["killed-137", "decoy-log-line"]


@pytest.mark.parametrize("entry", RAISED, ids=lambda entry: str(entry["id"]))
def test_raised_errors_get_the_true_verdict(entry: Entry) -> None:
    outcome = outcome_of(raised(entry), limit_bytes=77)
    if entry["is_memory"] is False:
        assert isinstance(outcome, Failed)
        assert entry["text"].splitlines()[0] in outcome.cause
        assert outcome.cause.startswith(entry["type"])
    else:
        assert isinstance(outcome, OutOfMemory)
        assert outcome.where == entry["where"]
        assert outcome.is_certain == (entry["is_memory"] is True)
        assert outcome.limit_bytes == 77
        said = entry.get("cause", entry)
        assert outcome.cause == (said.get("text") or said["args"][0]).splitlines()[0] + (
            " {'device': 0}" if "args" in said else ""
        )


@pytest.mark.parametrize("entry", EXITED, ids=lambda entry: str(entry["id"]))
def test_exits_get_the_true_verdict(entry: Entry) -> None:
    outcome = outcome_of_exit(entry["exit_code"], entry["stderr"])
    if entry["is_memory"] == "maybe":
        assert isinstance(outcome, OutOfMemory)
        assert (outcome.where, outcome.is_certain) == ("host", False)
    else:
        assert outcome == Failed(
            cause="The process ended with exit code 1 without an answer. It last said: "
            "ValueError: labels must lie in [0, 4)"
        )


def test_remedies_fit_the_kind() -> None:
    found = {e["id"]: outcome_of(raised(e)) for e in RAISED if e["is_memory"] is False}
    remedies = {k: o.remedy for k, o in found.items() if isinstance(o, Failed)}
    assert remedies == {
        "shm-bus-error": (
            "Use fewer data loader workers, or a larger /dev/shm; a smaller batch will not help."
        ),
        "disk-full": "Free some disk space, or choose another --run-dir.",
        "device-assert": None,
        "shape": None,
        "decoy-key": None,
    }
