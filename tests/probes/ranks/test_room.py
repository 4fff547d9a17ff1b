from __future__ import annotations

import pytest

from probes.errors import ProbeError
from probes.ranks.room import check_room


@pytest.mark.parametrize(("num_local", "num_cores"), [(4, 0.5), (4, 1), (8, 2), (512, 128)])
def test_a_few_ranks_a_core_are_allowed(num_local: int, num_cores: float) -> None:
    check_room(num_local, num_cores)


@pytest.mark.parametrize(
    ("num_local", "num_cores", "num_nodes", "place", "cause", "remedy"),
    [
        (9, 2, 1, "here", "9 processes are far more than the 2 cores here.", "at most 8 processes"),
        (5, 1, 1, "here", "5 processes are far more than the 1 core here.", "at most 4 processes"),
        (
            *(200, 2.5, 2, "of node 1 (b)"),
            "200 processes on each node are far more than the 2.5 cores of node 1 (b).",
            "at most 20 processes",
        ),
    ],
)
def test_far_too_many_are_refused(
    num_local: int, num_cores: float, num_nodes: int, place: str, cause: str, remedy: str
) -> None:
    with pytest.raises(ProbeError) as caught:
        check_room(num_local, num_cores, num_nodes=num_nodes, place=place)
    assert caught.value.cause == cause
    assert remedy in caught.value.remedy
    assert caught.value.is_usage
