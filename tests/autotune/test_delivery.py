"""Where files may go, found out before anything is measured; what they are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from autotune.configuration import Configuration
from autotune.delivery import bundle_of, check_out
from autotune.errors import JournalError, UsageError
from autotune.events import Event, RecommendationMade, WorkloadLoaded
from autotune.journal import read
from autotune.planning import recorded_trial
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.workload.facts import WorkloadFacts
from tests.autotune.export.bundles import FACTS
from tests.testing import runs


def test_a_place_that_is_free_will_do(tmp_path: Path) -> None:
    check_out(tmp_path / "new" / "deeper", run=None, force=False)
    (tmp_path / "notes.txt").write_text("mine")
    check_out(tmp_path, run=None, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_files_that_somebody_else_wrote_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("mine")
    with pytest.raises(UsageError, match=r"that autotune did not write: trainer\.py"):
        check_out(tmp_path, run="job", force=False)
    check_out(tmp_path, run="job", force=True)


def test_only_a_runs_own_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "recommendation.json").write_text(json.dumps({"run": "other"}))
    with pytest.raises(UsageError, match="of run 'other'"):
        check_out(tmp_path, run="job", force=False)
    check_out(tmp_path, run="other", force=False)


def test_a_file_in_the_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is a file"):
            check_out(place, run=None, force=False)
    with pytest.raises(UsageError, match="cannot be made: File name too long"):
        check_out(tmp_path / ("x" * 300), run=None, force=False)


def finished(place: Path, request: Request) -> RunDirectory:
    """A run that recommends two ranks that average, and offers one process instead."""
    events: list[Event] = []
    for event in [*runs.searching("job", request), *runs.ending("job", place / "out")]:
        if isinstance(event, WorkloadLoaded):
            facts = TypeAdapter(WorkloadFacts).dump_python(FACTS, mode="json")
            event = replace(event, facts=facts, environment={"OMP_NUM_THREADS": "6"})
        elif isinstance(event, RecommendationMade):
            document: Any = runs.answer("job")
            answer = document["recommendation"]
            answer["configuration"] = RANKS.to_json()
            answer["alternatives"][0]["configuration"] = runs.BASELINE.to_json()
            event = RecommendationMade(document=document)
        events.append(event)
    return runs.write_run(place, "job", events, request)


RANKS = Configuration(micro_batch_size=8, accumulation_steps=1, world_size=4, local_sgd_steps=16)


def test_ranks_are_exported_with_their_threads_and_their_nodes(tmp_path: Path) -> None:
    request = replace(
        runs.demo_request(), processes=4, num_nodes=2, meeting="10.0.0.1:29400/agents"
    )
    run = finished(tmp_path, request)
    made = bundle_of(run)
    assert made.configuration == RANKS
    assert (made.num_nodes, made.ranks_per_node, made.address) == (2, 2, "10.0.0.1")
    assert made.environment == {"OMP_NUM_THREADS": "3"}, "two ranks share a machine's six threads"
    alone = bundle_of(run, "least memory")
    assert (alone.num_nodes, alone.address) == (1, None)
    assert alone.environment == {"OMP_NUM_THREADS": "6"}


def test_ranks_of_one_machine_share_its_threads(tmp_path: Path) -> None:
    made = bundle_of(finished(tmp_path, replace(runs.demo_request(), processes=4)))
    assert (made.num_nodes, made.ranks_per_node) == (1, 4)
    assert made.environment == {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda event: {"facts": {**event.facts, "num_rows": "many"}}, "num_rows: "),
        (lambda event: {"facts": {}}, "name: Field required"),
    ],
)
def test_a_journal_of_another_shape_is_told(
    change: Callable[[WorkloadLoaded], dict[str, Any]], says: str, tmp_path: Path
) -> None:
    run = finished(tmp_path, runs.demo_request())
    events = [record.event for record in read(run.journal)]
    run.journal.unlink()
    odd = [replace(e, **change(e)) if isinstance(e, WorkloadLoaded) else e for e in events]
    run = runs.write_run(tmp_path, "job", odd)
    with pytest.raises(JournalError, match=f"or of another version of autotune: {says}") as caught:
        bundle_of(run)
    assert "autotune show" in str(caught.value.remedy)


def test_a_journal_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    run = finished(tmp_path, runs.demo_request())
    text = run.journal.read_text()
    run.journal.write_text(text.replace('"micro_batch_size":16', '"micro_batch_size":0'))
    for ask in (bundle_of, partial(recorded_trial, number=0)):
        with pytest.raises(JournalError, match="makes no sense"):
            ask(run)
