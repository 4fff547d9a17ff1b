"""Landscapes that were measured on a real machine, and how a choice stands in them."""

from __future__ import annotations

from pathlib import Path

from autotune.outcome import Measured
from autotune.search.evidence.finished import MeasuredTrial
from autotune.search.evidence.ranking import Standing
from tests.testing.landscapes import Landscape

RECORDED = Path(__file__).parent / "recorded"


def path_of(name: str) -> Path:
    """Where the landscape of a job is stored."""
    return RECORDED / f"landscape-{name}.json"


def recorded() -> list[Path]:
    """All stored landscapes; `python -m tests.benchmarks regret --record` makes them."""
    return sorted(RECORDED.glob("landscape-*.json"))


def standing_of(landscape: Landscape) -> Standing:
    """Every measured configuration, compared over the batches that all of them share."""
    return Standing(
        MeasuredTrial(
            number=number,
            purpose="search",
            configuration=entry.configuration,
            measured=entry.outcome,
        )
        for number, entry in enumerate(landscape.entries)
        if isinstance(entry.outcome, Measured)
    )


def fastest(landscape: Landscape, num: int) -> tuple[MeasuredTrial, ...]:
    """The `num` fastest configurations of a grid, the fastest first; ties are not considered."""
    standing = standing_of(landscape)
    left = list(standing.trials)
    found: list[MeasuredTrial] = []
    while left and len(found) < num:
        leader = standing.fastest(left)
        assert leader is not None
        found.append(leader)
        left.remove(leader)
    return tuple(found)


def slowdown(landscape: Landscape, chosen: MeasuredTrial) -> float:
    """How much more time a choice takes than the fastest of the grid: 0.03 is three per cent."""
    standing = standing_of(landscape)
    leader = standing.fastest()
    own = next(t for t in standing.trials if t.configuration == chosen.configuration)
    assert leader is not None
    return standing.ratio(leader, own).value - 1
