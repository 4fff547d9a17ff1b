"""What exchange costs a training step, and which number of local SGD steps makes the best of it.

Every rank computes for `t_c` a step. Under local SGD it averages its parameters with the others
for `t_s` after every H steps, so that a step takes

    t(H) = t_c + t_s / H.

Both times are measured. A step of plain data parallel training (DDP) hides a part of its exchange
behind the backward pass, which no formula here knows: `t_ddp` is measured, never predicted. With
`r = t_s / t_c`:

* local SGD is faster than DDP where `t_c + t_s / H < t_ddp`, that is `H > t_s / (t_ddp - t_c)`;
* a step is within a part delta of the ideal, `t_c / t(H) >= 1 - delta`, from
  `H = r (1 - delta) / delta` on: more local steps than that gain nothing worth having.

Up to there every power of two is predicted, each weighed with what its samples teach, and the best
one is taken; the optimum is so flat that nothing between them is worth a look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.cost.learning import NOT_NEEDED, LocalSGDModel, SampleEfficiency
from autotune.outcome import Exchange, Interval

DDP_STAYS = "DDP stays"
"""How the sentence of a choice against local SGD begins."""
HIDDEN_RATIO = 1.1
"""A DDP step up to this many times the bare computation hides its exchange: nothing to gain."""
WORTH_HAVING = 0.1
"""Part of the ideal speed below which a further gain is not worth further local steps."""
MUCH_MORE = 1.2
"""From this ratio on, several processes are told to be better than one without a but."""
PREDICTION_ERROR = 0.08
"""How far, as a ratio, a predicted step may be off: on shaped links the model met measured steps
within 2 to 8 %."""


def step_s(exchange: Exchange, local_sgd_steps: int) -> float:
    """Time of an optimizer step under local SGD, its share of the averaging included."""
    return exchange.compute_s + exchange.averaging_s / local_sgd_steps


def ratio(exchange: Exchange) -> float:
    """`r`: what one averaging takes, in steps of computation."""
    return exchange.averaging_s / exchange.compute_s


def hides_exchange(exchange: Exchange) -> bool:
    """Whether DDP already hides nearly all of its exchange behind the backward pass."""
    return exchange.ddp_step_s <= HIDDEN_RATIO * exchange.compute_s


def break_even_steps(exchange: Exchange) -> float | None:
    """Local SGD steps beyond which a step is faster than under DDP; None where none is."""
    if exchange.ddp_step_s <= exchange.compute_s:
        return None
    return exchange.averaging_s / (exchange.ddp_step_s - exchange.compute_s)


def most_useful_steps(ratio: float, worth_having: float = WORTH_HAVING) -> int:
    """The fewest local SGD steps that come within a part `worth_having` of the ideal speed."""
    # A whole number of steps that rounding has pushed up by nothing stays what it is.
    return max(1, math.ceil(ratio * (1 - worth_having) / worth_having - 1e-9))


def legal_step_counts(exchange: Exchange, total_steps: int | None = None) -> tuple[int, ...]:
    """The local SGD steps worth considering: powers of two from 2 to the first that is enough.

    Args:
        exchange: What was measured.
        total_steps: Optimizer steps of the whole training; more than these never average.
    """
    counts = [2]
    while counts[-1] < most_useful_steps(ratio(exchange)):
        counts.append(2 * counts[-1])
    return tuple(n for n in counts if total_steps is None or n <= total_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A number of samples per second and what each is worth, for one way of training."""

    samples_per_s: float
    samples_per_s_interval: Interval
    efficiency: SampleEfficiency

    @property
    def useful_samples_per_s(self) -> float:
        """Samples per second times sample efficiency: learning per second."""
        return self.samples_per_s * self.efficiency.value

    @property
    def useful_interval(self) -> Interval:
        """The same at both ends of what is known."""
        return (
            self.samples_per_s_interval[0] * self.efficiency.interval[0],
            self.samples_per_s_interval[1] * self.efficiency.interval[1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCountRow:
    """One number of local SGD steps; 1 is DDP."""

    local_sgd_steps: int
    step_s: float
    rate: Rate
    is_measured: bool
    """DDP is measured; every other row follows from computation and averaging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGDChoice:
    """The number of local SGD steps to try, and how it compares."""

    local_sgd_steps: int
    """1 where DDP stays."""
    rows: tuple[StepCountRow, ...]
    """DDP and every step count considered, ascending."""
    gain: float
    """Learning per second of the best local SGD over DDP's."""
    gain_interval: Interval
    sentence: str


def choose_local_sgd_steps(
    exchange: Exchange,
    model: LocalSGDModel,
    *,
    samples_per_step: int,
    step_counts: Sequence[int],
    one_process: Rate | None = None,
) -> LocalSGDChoice:
    """Predicts every step count and chooses the one that learns most per second.

    DDP stays where it hides its exchange already, and where the lower end of the best step count
    does not beat it.

    Args:
        exchange: What was measured on all ranks.
        model: How sample efficiency falls with the step count.
        samples_per_step: Samples per optimizer step, over all ranks.
        step_counts: Those considered; 1 is passed over, since DDP is a row of its own.
        one_process: One process alone, as it was measured, for the sentence.
    """
    ddp = _row(1, exchange.ddp_step_s, samples_per_step, NOT_NEEDED, 0.0)
    rows = [
        _row(
            steps,
            step_s(exchange, steps),
            samples_per_step,
            model.efficiency(steps),
            PREDICTION_ERROR,
        )
        for steps in sorted({*step_counts} - {1})
    ]
    best = max(rows, key=lambda row: row.rate.useful_samples_per_s, default=ddp)
    base = ddp.rate.samples_per_s
    low, high = (end / base for end in best.rate.useful_interval)
    gained = best.rate.useful_samples_per_s / base
    stays = best is ddp or hides_exchange(exchange) or low <= 1
    chosen = ddp if stays else best
    return LocalSGDChoice(
        local_sgd_steps=chosen.local_sgd_steps,
        rows=(ddp, *rows),
        gain=gained,
        gain_interval=(low, high),
        sentence=_sentence(exchange, chosen, best, gained, (low, high), one_process),
    )


def _row(
    steps: int, time_s: float, samples: int, efficiency: SampleEfficiency, error: float
) -> StepCountRow:
    rate = samples / time_s
    return StepCountRow(
        local_sgd_steps=steps,
        step_s=time_s,
        rate=Rate(
            samples_per_s=rate,
            samples_per_s_interval=(rate / (1 + error), rate * (1 + error)),
            efficiency=efficiency,
        ),
        is_measured=steps == 1,
    )


def times(factor: float) -> str:
    """A ratio for reading: `4.5`, `1.05`, `0.94`."""
    return f"{factor:.0f}" if factor >= 20 else f"{factor:.1f}" if factor >= 2 else f"{factor:.2f}"


def _sentence(
    exchange: Exchange,
    chosen: StepCountRow,
    best: StepCountRow,
    gained: float,
    interval: Interval,
    one_process: Rate | None,
) -> str:
    over_one = (
        None
        if one_process is None
        else chosen.rate.useful_samples_per_s / one_process.useful_samples_per_s
    )
    if chosen.local_sgd_steps > 1:
        found = (
            f"Speed times sample efficiency, local SGD every {chosen.local_sgd_steps} steps is "
            f"predicted to be {times(gained)} times DDP on this link"
        )
        if over_one is None:
            return f"{found}."
        joint = "and" if over_one >= MUCH_MORE else "but only" if over_one >= 1 else "but"
        return f"{found}, {joint} {times(over_one)} times one process."
    if hides_exchange(exchange):
        share = max(exchange.ddp_step_s / exchange.compute_s - 1, 0)
        why = f"its exchange adds {share:.0%} to a step, which leaves nothing to save"
    elif best.local_sgd_steps == 1:
        why = "no number of local SGD steps was considered"
    else:
        why = (
            f"local SGD every {best.local_sgd_steps} steps is expected to be {times(gained)} times "
            f"as good, but not surely better ({times(interval[0])} to {times(interval[1])})"
        )
    end = "" if over_one is None else f" It is {times(over_one)} times one process."
    return f"{DDP_STAYS}: {why}.{end}"
