"""The search on grids that were measured whole on a real machine: few trials, a good choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.search.order import next_candidate
from tests.testing.landscapes import load, replay
from tests.testing.recordings import recorded, slowdown

if not recorded():
    pytest.skip("no landscape was recorded yet", allow_module_level=True)


@pytest.mark.parametrize("path", recorded(), ids=lambda path: path.stem)
def test_a_quarter_of_the_grid_finds_a_configuration_near_the_best(path: Path) -> None:
    landscape = load(path)
    found = replay(landscape, next_candidate)
    assert found.history.num_search_trials <= len(landscape.entries) / 4, landscape.origin
    assert slowdown(landscape, found.chosen) <= 0.03, landscape.origin
    assert found.chosen.total_bytes <= (landscape.usable_bytes or found.chosen.total_bytes)


@pytest.mark.parametrize("path", recorded(), ids=lambda path: path.stem)
def test_a_recorded_grid_holds_every_candidate_once(path: Path) -> None:
    landscape = load(path)
    configurations = [entry.configuration for entry in landscape.entries]
    assert sorted(configurations, key=str) == sorted(landscape.space.candidates, key=str)
