"""What the benchmarks say of a figure; the figures themselves come from a quiet machine only."""

from __future__ import annotations

import importlib

import pytest

from autotune.goal import usable_bytes
from autotune.search.evidence.statistics import Ratio
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.averaging import judge_faster
from tests.benchmarks.grid import choose_limit
from tests.benchmarks.harness import (
    Context,
    Reading,
    Report,
    Result,
    Row,
    Verdict,
    judge_at_most,
    judge_promise,
    markdown,
)
from tests.benchmarks.plain_trainer import Attempt
from tests.benchmarks.rivals import s_per_sample


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.01, 0.99, 1.03, "passed"),
        (0.96, 0.94, 0.98, "passed"),
        (1.06, 1.04, 1.08, "failed"),
        (1.00, 0.96, 1.04, "unsettled"),
        (1.30, 1.20, 1.41, "unsettled"),
    ],
)
def test_a_promise_is_judged_only_by_a_narrow_interval(
    value: float, low: float, high: float, verdict: Verdict
) -> None:
    ratio = Ratio(value=value, low=low, high=high, num_pairs=6)
    assert judge_promise(ratio, within=0.05, settled_at=0.03) == verdict


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (2.0, 0.0, 4.0, "passed"),
        (-3.0, -10.0, 4.0, "passed"),
        (3.5, 2.5, 4.5, "failed"),
        (2.9, 0.5, 5.3, "unsettled"),
        (8.6, -0.3, 18.4, "unsettled"),
        (8.6, 3.1, 18.4, "failed"),
    ],
)
def test_a_regret_is_judged_by_value_and_upper_end(
    value: float, low: float, high: float, verdict: Verdict
) -> None:
    reading = Reading(value=value, low=low, high=high, num=8, unit="%", spread="95 %")
    assert judge_at_most(reading, value=3.0, high=5.0) == verdict


def test_a_limit_lies_in_the_widest_gap_near_the_wanted_place() -> None:
    needs = [100_000, 101_000, 102_000, 150_000, 151_000, 152_000]
    usable = usable_bytes(choose_limit(needs, 1 / 3), on_device=False)
    assert usable == pytest.approx(126_000, abs=2)
    assert sum(need > usable for need in needs) == 3


def test_the_time_of_a_sample_leaves_the_first_rows_out() -> None:
    attempt = Attempt(
        micro_batch_size=8, start_s=0.0, step_rows=[12, 12, 12, 6], step_times_s=[9.0, 9.0, 6.0, 3]
    )
    assert s_per_sample(attempt) == pytest.approx(0.6)


def test_the_table_has_a_line_for_every_row_and_says_what_was_not_measured() -> None:
    reading = Reading.of_samples([0.2, 0.4, 0.3], "s")
    rows = (
        Row(what="a trial", reading=reading, target="below 0.5 s", verdict="passed"),
        Row(what="a rival", note="it ran out of memory"),
    )
    result = Result(name="overhead", report=Report(rows=rows), wall_s=60.0, load_before=1.5)
    text = markdown([result], machine="a processor", quick=False)
    assert (
        "| overhead | a trial | 0.3 s | range 0.2 s to 0.4 s | 3 | below 0.5 s | passed |" in text
    )
    assert "| overhead | a rival | – | – | – | – | – |" in text
    assert "- overhead, a rival: it ran out of memory" in text
    assert "the machine was busy before it began, with 1.5 processes per core" in text


@pytest.mark.parametrize(
    ("value", "low", "high", "at_least", "verdict"),
    [
        (4.8, 4.5, 5.1, 4.0, "passed"),
        (4.1, 3.8, 4.4, 4.0, "unsettled"),
        (3.5, 3.2, 3.9, 4.0, "failed"),
        (1.4, 1.2, 1.6, None, "passed"),
        (0.99, 0.96, 1.02, None, "passed"),
        (0.996, 0.993, 0.999, None, "passed"),
        (0.9, 0.85, 0.95, None, "failed"),
    ],
)
def test_faster_and_not_slower_are_judged_by_the_interval(
    value: float, low: float, high: float, at_least: float | None, verdict: Verdict
) -> None:
    ratio = Ratio(value=value, low=low, high=high, num_pairs=12)
    assert judge_faster(ratio, at_least) == verdict


def test_every_named_benchmark_is_there() -> None:
    for name in (name for names in benchmarks.SETS.values() for name in names):
        module = importlib.import_module(f"tests.benchmarks.{name}")
        assert module.run.__annotations__ == {"context": Context.__name__, "return": "Report"}
