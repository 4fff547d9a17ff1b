"""Noise scales and exchanges with the figures that a test cares about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.cost.noise import NoiseScale
from autotune.outcome import Exchange, GradientNorms, GradientWindow


def noise(
    low: float, high: float | None, value: float | None = None, *, preconditioned: bool = True
) -> NoiseScale:
    """A noise scale; the value is the lower end where none is given."""
    return NoiseScale(
        value=low if value is None else value,
        interval=(low, high),
        num_windows=20,
        num_micro_batches=2,
        rows_per_micro_batch=8,
        is_preconditioned=preconditioned,
        note="by hand",
    )


UNKNOWN = NoiseScale(
    value=None,
    interval=(0.0, None),
    num_windows=20,
    num_micro_batches=2,
    rows_per_micro_batch=8,
    is_preconditioned=False,
    note="unknown",
)


def exchange(compute_s: float, averaging_s: float, ddp_step_s: float) -> Exchange:
    """What two ranks exchange, with these times."""
    return Exchange(
        compute_s=compute_s,
        ddp_step_s=ddp_step_s,
        exposed_s=ddp_step_s - compute_s,
        averaging_s=averaging_s,
        averaging_bytes=3_336_192,
        num_collectives_per_step=0,
    )


def gradients(
    phi: float,
    *,
    num_windows: int,
    num_micro_batches: int,
    rows: int,
    rng: np.random.Generator,
    num_dimensions: int = 60,
) -> GradientNorms:
    """Norms of normal micro-gradients around a mean of length 1, whose noise scale is `phi`."""
    mean = np.zeros(num_dimensions)
    mean[0] = 1.0
    # Noise that differs by direction, as that of networks does.
    shape = np.linspace(0.1, 1.9, num_dimensions)
    spread = np.sqrt(phi * shape / shape.sum() / rows)
    micro = mean + spread * rng.standard_normal((num_windows, num_micro_batches, num_dimensions))
    return from_gradients(micro, rows)


def from_gradients(
    micro: NDArray[np.float64], rows: int, steps: Sequence[int] | None = None
) -> GradientNorms:
    """The norms of gradients with the axes window, micro-batch, dimension."""
    squared = (micro**2).sum(axis=2)
    whole = (micro.mean(axis=1) ** 2).sum(axis=1)
    return GradientNorms(
        windows=tuple(
            GradientWindow(
                step=step,
                micro_squared_norms=tuple(norms.tolist()),
                mean_squared_norm=float(total),
            )
            for step, norms, total in zip(
                range(len(micro)) if steps is None else steps, squared, whole, strict=True
            )
        ),
        num_micro_batches=micro.shape[1],
        rows_per_micro_batch=rows,
    )
