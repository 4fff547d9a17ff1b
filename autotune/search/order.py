"""The default order in which candidates are tried: no sampler, no randomness.

The baseline comes first. From there a geometric ladder climbs up and down the micro-batch sizes
for as long as it helps, and the neighbours of the best are filled in. A baseline that checkpoints
is first held against training without. Other checkpointing forms are tried only where they can pay:
where memory closes larger micro-batches that, by what was measured, would gain more than the
recomputation costs. One of them is looked at in any case, so that its price is a reading and not an
assumption; and so is the largest size, far from where a noisy ladder may have ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autotune.configuration import NO_CHECKPOINTING, Configuration
from autotune.outcome import Failed, OutOfMemory, TimedOut
from autotune.search.evidence.history import History
from autotune.search.evidence.outlook import Outlook
from autotune.space import distance

GAIN_WORTH_A_TRIAL = 0.01
"""Predicted gain over the fastest below which a candidate is not worth a trial."""
LOSS_WORTH_A_LOOK = 0.03
"""A reading or an expectation this far below the fastest may still be noise: what lies next to it
is worth a trial."""
MIN_TRIALS = 6
CANDIDATES_PER_TRIAL = 4
"""At most one candidate in four is tried, but `MIN_TRIALS` at the least, and more while
`GAIN_WORTH_MORE_TRIALS` is expected of the next one."""
GAIN_WORTH_MORE_TRIALS = 0.1
LOSS_PAST_HOPE = 0.7
"""One process whose fastest reading is below this part of what several ranks do is given up."""
MAX_UNMEASURED = 2
"""After so many failures or time-outs without one measured trial, the job itself is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The candidate to try now."""

    configuration: Configuration
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """Nothing more is tried."""

    reason: str
    is_budget_spent: bool = False
    """Whether a larger budget would try more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing can be tried now, but what other engines of a shared study try may change that."""

    held: tuple[tuple[Configuration, str], ...] = ()
    """What they try, and the hosts on which they do; empty where it is over in a moment."""


def next_candidate(history: History) -> Next | Over:
    """The next candidate, or why there is none. A function of the history alone.

    Where one process alone is a candidate beside several ranks, it is searched after them.
    """
    over: Over | None = None
    for world_size in history.space.world_sizes:
        arm = history.arm(world_size)
        step = _hopeless(history, arm) or _next_in(arm)
        if isinstance(step, Next):
            if over is not None and not arm.trials:
                return replace(step, why="does one process alone do as well as all ranks?")
            return step
        over = over or step
    return over or Over(reason="there is no candidate")


def _hopeless(history: History, arm: History) -> Over | None:
    """Whether what was measured of an arm is so far behind that no size of it can catch up."""
    standing, leader = history.standing, history.standing.fastest()
    own = standing.fastest(
        t for t in history.measured if t.number in {a.number for a in arm.trials}
    )
    if leader is None or own is None or arm.space.baseline == history.space.baseline:
        return None
    if standing.ratio(own, leader).value >= LOSS_PAST_HOPE:
        return None
    ranks = own.configuration.world_size
    return Over(
        reason=f"{'one process' if ranks == 1 else f'{ranks} ranks'} at {own.configuration} is far "
        f"slower than {leader.configuration}"
    )


def _next_in(history: History) -> Next | Over:
    """The next candidate of one arm."""
    if not history.open_candidates:
        return Over(reason="every candidate was tried or ruled out")
    killed = (t.configuration for t in history.trials if t.is_killed)
    again = next((c for c in killed if history.is_open(c)), None)
    if again is not None:
        return Next(configuration=again, why="once more, since its process was killed from outside")
    if not history.measured:
        return _first_that_works(history)
    outlook = Outlook(history)
    proposal = (
        _without_checkpointing(outlook)
        or _extend(outlook)
        or _refine(outlook)
        or _other_form(outlook)
        or _look_at_checkpointing(outlook)
        or _look_at_the_largest(outlook)
    )
    if proposal is None:
        return Over(reason=_why_over(history))
    num_enough = max(MIN_TRIALS, len(history.space.candidates) // CANDIDATES_PER_TRIAL)
    is_enough = (
        history.num_search_trials >= num_enough and outlook.knows_speed_without_checkpointing
    )
    if is_enough and outlook.speed(proposal.configuration) < 1 + GAIN_WORTH_MORE_TRIALS:
        return Over(
            reason=f"{history.num_search_trials} trials are enough for "
            f"{len(history.space.candidates)} candidates, and no large gain is in sight"
        )
    return proposal


def _first_that_works(history: History) -> Next | Over:
    baseline = history.space.baseline
    if not history.trials:
        first = min(history.open_candidates, key=lambda c: distance(c, baseline))
        is_baseline = first == baseline
        why = "the present configuration" if is_baseline else "the closest to the baseline"
        return Next(configuration=first, why=why)
    causes = [t.outcome.cause for t in history.trials if isinstance(t.outcome, Failed | TimedOut)]
    if len(causes) >= MAX_UNMEASURED:
        return Over(reason=f"nothing could be measured: {causes[-1]}")
    tried = [t.configuration for t in history.trials]
    same_form = [c for c in history.open_candidates if c.checkpointing == tried[0].checkpointing]
    if causes and same_form:
        smallest = min(same_form, key=lambda c: c.micro_batch_size)
        return Next(configuration=smallest, why="does the smallest micro-batch work?")
    size = min(c.micro_batch_size for c in tried)
    below = [c for c in same_form if c.micro_batch_size < size]
    if below:
        # Each refusal doubles the stride: what fits is climbed up from again.
        return Next(
            configuration=_nearest(below, size / 2 ** len(tried)),
            why=f"smaller, since micro-batch size {size} was not measured",
        )
    frugal = max(
        history.open_candidates, key=lambda c: (history.form_index(c), -c.micro_batch_size)
    )
    return Next(configuration=frugal, why="what needs the least memory, since nothing fitted yet")


def _without_checkpointing(outlook: Outlook) -> Next | None:
    """Who checkpoints today may do without: the largest micro-batch that fits so is looked for."""
    if outlook.knows_speed_without_checkpointing:
        return None
    open_ = [c for c in outlook.open(NO_CHECKPOINTING) if outlook.may_fit(c)]
    tried = [
        t.configuration.micro_batch_size
        for t in outlook.history.trials
        if not t.configuration.checkpointing.is_on
    ]
    size = min(tried) / 2 if tried else outlook.leader.configuration.micro_batch_size
    if not open_:
        return None
    chosen = _nearest(open_, size)
    return Next(configuration=chosen, why="does it fit without checkpointing, and how fast is it?")


def _extend(outlook: Outlook) -> Next | None:
    """One step further out on the ladder of the fastest form, on the side with more room."""
    steps = [_step(outlook, is_up=True), _step(outlook, is_up=False)]
    room, step = max(steps, key=lambda pair: pair[0])
    return step if room > 0 else None


def _step(outlook: Outlook, *, is_up: bool) -> tuple[float, Next | None]:
    """The step on one side, and how many doublings are open there; none where it cannot help."""
    leader, form = outlook.leader, outlook.leader.configuration.checkpointing
    size = leader.configuration.micro_batch_size
    beyond = {s: t for s, t in outlook.column(form).items() if (s > size if is_up else s < size)}
    outermost = (max if is_up else min)([*beyond, size])
    reachable = [
        c
        for c in outlook.open(form)
        if (c.micro_batch_size > outermost if is_up else c.micro_batch_size < outermost)
        and outlook.may_fit(c)
    ]
    is_past_the_best = len(beyond) > 1 or any(
        outlook.standing.ratio(t, leader).value < 1 - LOSS_WORTH_A_LOOK for t in beyond.values()
    )
    if not reachable or is_past_the_best:
        return 0.0, None
    chosen = _nearest(reachable, outermost * 2 if is_up else outermost / 2)
    if outlook.speed(chosen) < 1 - LOSS_WORTH_A_LOOK:
        return 0.0, None
    room = max(abs(math.log2(c.micro_batch_size / outermost)) for c in reachable)
    word = "larger" if is_up else "smaller"
    why = f"{word} than the fastest so far, {leader.configuration}"
    return room, Next(configuration=chosen, why=why)


def _refine(outlook: Outlook) -> Next | None:
    """A size between the best and its measured neighbours, where it may be faster."""
    leader = outlook.leader.configuration
    sizes = outlook.column(leader.checkpointing)
    below = max((s for s in sizes if s < leader.micro_batch_size), default=0)
    above = min((s for s in sizes if s > leader.micro_batch_size), default=0)
    between = [
        c
        for c in outlook.open(leader.checkpointing)
        if below < c.micro_batch_size < leader.micro_batch_size
        or leader.micro_batch_size < c.micro_batch_size < above
    ]
    promising = max(between, key=outlook.speed, default=None)
    if promising is None or outlook.speed(promising) < 1 - LOSS_WORTH_A_LOOK:
        return None
    return Next(configuration=promising, why=f"next to the fastest so far, {leader}")


def _other_form(outlook: Outlook) -> Next | None:
    """A candidate of another checkpointing form that may gain more than it recomputes."""
    leader = outlook.leader.configuration
    others = [
        c
        for form in outlook.history.space.forms
        if form != leader.checkpointing
        for c in outlook.open(form)
        if outlook.may_fit(c)
    ]
    promising = [c for c in others if outlook.speed(c) > 1 + GAIN_WORTH_A_TRIAL]
    if not promising:
        return None
    certain = [c for c in promising if outlook.is_sure_to_fit(c)]
    if certain and not outlook.knows_memory:
        promising = certain
    # What is expected far beyond the measured sizes is not worth more than what is expected near.
    reach = 2 * max(t.configuration.micro_batch_size for t in outlook.history.measured)
    chosen = max(
        promising, key=lambda c: (outlook.speed(c, farthest_size=reach), -c.micro_batch_size)
    )
    is_larger = chosen.micro_batch_size > leader.micro_batch_size
    return Next(
        configuration=chosen,
        why="a larger micro-batch may gain more than the recomputation costs"
        if is_larger
        else "less recomputation may be faster, if it fits",
    )


def _look_at_checkpointing(outlook: Outlook) -> Next | None:
    """The cheapest form of checkpointing at the best size, if no other form was tried yet."""
    forms = outlook.history.space.forms
    tried = {t.configuration.checkpointing for t in outlook.history.trials}
    if len(tried) > 1:
        return None
    leader = outlook.leader.configuration
    at_best_size = [
        c
        for form in forms
        if form != leader.checkpointing
        for c in outlook.open(form)
        if c.micro_batch_size == leader.micro_batch_size
    ]
    if not at_best_size:
        return None
    return Next(
        configuration=max(at_best_size, key=outlook.speed),
        why=f"what another checkpointing form costs at {leader}",
    )


def _look_at_the_largest(outlook: Outlook) -> Next | None:
    """The largest size that fits, if nothing near it was tried.

    Readings that waver end a ladder early, and a step of a single micro-batch is no point on its
    curve: it adds no gradients up.
    """
    leader = outlook.leader.configuration
    fitting = [c for c in outlook.open(leader.checkpointing) if outlook.may_fit(c)]
    if not fitting:
        return None
    largest = max(fitting, key=lambda c: c.micro_batch_size)
    tried = max(outlook.column(leader.checkpointing))
    if largest.micro_batch_size < 2 * tried:
        return None
    return Next(configuration=largest, why="the largest that may fit, far from what was tried")


def _why_over(history: History) -> str:
    column = "smaller and larger micro-batches are slower or ruled out"
    if len(history.space.forms) == 1:
        return column
    is_bound = any(isinstance(t.outcome, OutOfMemory) for t in history.trials) or any(
        region.by_memory for region in history.regions
    )
    if is_bound:
        return f"{column}, and other checkpointing forms cost more than larger ones can gain"
    return f"{column}, and memory does not call for checkpointing"


def _nearest(candidates: Iterable[Configuration], size: float) -> Configuration:
    """The candidate whose micro-batch size is nearest by factor; of two, the larger."""
    return min(
        candidates,
        key=lambda c: (round(abs(math.log(c.micro_batch_size / size)), 6), -c.micro_batch_size),
    )
