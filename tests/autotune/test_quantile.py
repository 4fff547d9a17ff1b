"""Student's t against a printed table."""

from __future__ import annotations

import pytest

from autotune.quantile import t975


@pytest.mark.parametrize(
    ("degrees_of_freedom", "expected"),
    # From the table of Student's t in Abramowitz and Stegun, 26.10.
    [(1, 12.706), (4, 2.776), (10, 2.228), (11, 2.201), (20, 2.086), (60, 2.000), (10**6, 1.960)],
)
def test_quantiles_of_students_t(degrees_of_freedom: int, expected: float) -> None:
    assert t975(degrees_of_freedom) == pytest.approx(expected, abs=6e-4)


def test_one_value_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="no spread"):
        t975(0)
