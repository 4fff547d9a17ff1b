"""Quantiles of Student's t, for intervals from few values."""

from __future__ import annotations

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def t975(degrees_of_freedom: int) -> float:
    """The 97.5 % quantile of Student's t.

    Beyond ten degrees of freedom by the expansion of Abramowitz and Stegun 26.7.5, whose error is
    then below 1e-4.

    Raises:
        ValueError: There is no degree of freedom.
    """
    if degrees_of_freedom < 1:
        raise ValueError("One value has no spread.")
    if degrees_of_freedom <= len(_T975):
        return _T975[degrees_of_freedom - 1]
    z, n = 1.959964, degrees_of_freedom
    return float(
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
