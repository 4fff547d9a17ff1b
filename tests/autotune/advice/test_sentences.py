"""The sentences of an answer, held against the trials that they speak of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.advice.document import _alternatives, trials_json
from autotune.advice.limits import not_covered
from autotune.advice.nothing import none_is_predicted_to_fit, nothing_fits
from autotune.advice.reasons import reasons, shared_reasons
from autotune.cost.memory.foresight import Foresight, Reckoner
from autotune.cost.memory.outside import Target
from autotune.events import (
    Confirmed,
    Document,
    Event,
    Origin,
    SearchEnded,
    TrialFinished,
    TrialReceived,
)
from autotune.folding import fold
from autotune.outcome import PROCESS_ALONE, Failed, Interlude, Measured, OutOfMemory
from autotune.search.evidence.closing import with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.foreseen import with_foresight
from autotune.search.evidence.history import History, finished_trials
from autotune.view import RunView
from tests.autotune.cost.memory.traces import step, traced
from tests.autotune.export import bundles
from tests.testing import runs
from tests.testing.landscapes import make_space

MIB = 2**20
GIB = 2**30
SPACE = make_space(24)


def told(*outcomes: OutOfMemory | Failed, limit_mib: int = 300) -> tuple[str, str]:
    history = with_trials(
        History(space=SPACE, usable_bytes=limit_mib * MIB),
        (
            FinishedTrial(
                number=number,
                purpose="search",
                configuration=SPACE.candidates[number],
                outcome=outcome,
            )
            for number, outcome in enumerate(outcomes)
        ),
    )
    return nothing_fits(history, limit_mib * MIB)


def test_a_limit_below_the_bare_process_is_told_as_such() -> None:
    cause, remedy = told(
        OutOfMemory(
            where="host",
            cause=f"{PROCESS_ALONE} 476 MiB after its imports.",
            needed_at_least_bytes=476 * MIB,
        )
    )
    assert "1 ran out of memory" in cause
    assert remedy == (
        "No model is small enough: libraries alone take 476 MiB here. Raise --memory-limit."
    )


def test_the_nearest_miss_is_told() -> None:
    _, remedy = told(
        OutOfMemory(where="host", cause="the limit", needed_at_least_bytes=700 * MIB),
        OutOfMemory(where="host", cause="the limit", needed_at_least_bytes=500 * MIB),
    )
    assert "needs more than 500 MiB where 300 MiB are allowed" in remedy
    assert str(SPACE.candidates[1]) in remedy


def test_failures_are_told_with_their_causes() -> None:
    cause, remedy = told(Failed(cause="The loss is a dict."))
    assert "one failed: The loss is a dict." in cause
    assert "Mend what the trials report" in remedy


def test_failures_alike_are_told_once() -> None:
    cause, _ = told(Failed(cause="No row 17."), Failed(cause="No row 17."), Failed(cause="Other."))
    assert "works: 2 failed: No row 17; one failed: Other." in cause


def test_trials_of_other_engines_are_told_with_their_host() -> None:
    received = TrialReceived(
        number=7,
        purpose="search",
        configuration=runs.BEST.to_json(),  # type: ignore[arg-type]
        outcome=runs.measured(41.0),
        origin=Origin(host="node2", run="one", run_id="r", number=3),
    )
    alone = fold(runs.records(runs.searching("one")))
    shared = fold(runs.records([received]), alone)
    assert [t.get("host") for t in trials_json(shared) if isinstance(t, dict)] == [
        None,
        None,
        None,
        "node2",
    ]
    assert list(shared_reasons(alone)) == []
    (reason,) = shared_reasons(shared)
    assert reason.startswith("1 trial was run on node2, ")


def confirmed_view(chosen: Measured, *more: Event) -> RunView:
    """A run whose trial 7 repeats the best one and was confirmed."""
    confirmed = next(e for e in runs.ending("one", Path("out")) if isinstance(e, Confirmed))
    started, finished = runs.trial(7, runs.BEST, chosen, "confirm")
    assert isinstance(finished, TrialFinished)
    told = [
        *runs.searching("one"),
        *more,
        started,
        replace(finished, predicted={"total_bytes": round(1.02 * GIB)}),
        replace(confirmed, number=7),
    ]
    return fold(runs.records(told))


FACTS = replace(bundles.FACTS, num_rows=640)


def left_out(view: RunView) -> list[str]:
    history = History(space=SPACE)
    return list(not_covered(view, history, FACTS, runs.BEST, alone=False))


def test_what_was_not_run_beside_training_is_told() -> None:
    plain = runs.measured(40.0)
    assert left_out(confirmed_view(plain))[0] == (
        "Evaluation, prediction and saving were not run; they have memory peaks of their own."
    )
    tried = Interlude(evaluation_batch_size=16, evaluation_bytes=GIB, is_saved=True)
    assert left_out(confirmed_view(replace(plain, interlude=tried)))[0] == (
        "Of evaluation one step of 16 rows was run: metrics, and outputs that are kept over more "
        "than one step, were not."
    )
    broken = replace(tried, evaluation_bytes=None, faults=("it did not run: ValueError.",))
    assert left_out(confirmed_view(replace(plain, interlude=broken)))[0] == (
        "It did not run: ValueError."
    )


def test_what_could_not_be_traced_is_told() -> None:
    untraced: Document = {"what": "a training step", "reason": "it depends on values."}
    (sentence,) = [
        s
        for s in left_out(confirmed_view(runs.measured(40.0), runs.foreseen(untraced)))
        if "traced" in s
    ]
    assert sentence == (
        "A training step could not be traced (it depends on values): of its memory nothing was "
        "predicted, and trials alone tell what fits."
    )


def test_how_far_predictions_were_off_is_told_beside_what_they_ruled_out() -> None:
    view = confirmed_view(runs.measured(40.0))
    chosen = view.trial(7)
    assert chosen is not None
    assert view.confirmed is not None
    target = Target(name="CPU", kind="cpu", total_bytes=10**12, total_from="by hand")
    law = Foresight(reckoner=Reckoner(traced(), target, process_bytes=450 * MIB))
    history = with_foresight(History(space=SPACE, usable_bytes=1000 * MIB), law)
    told = list(reasons(view, history, chosen, view.confirmed, FACTS))
    assert (
        "2 candidates were never run: a step traced on tensors without data predicts a need of "
        "more than may be filled."
    ) in told
    assert (
        "The peak memory of 1 repeat was predicted before; what was measured differs by 2.0 % at "
        "most."
    ) in told


def test_candidates_that_were_never_run_are_counted_apart() -> None:
    target = Target(name="CPU", kind="cpu", total_bytes=10**12, total_from="by hand")
    law = Foresight(
        reckoner=Reckoner(
            traced(*(step(form) for form in SPACE.forms)), target, process_bytes=450 * MIB
        )
    )
    history = with_foresight(History(space=SPACE, usable_bytes=700 * MIB), law)
    (least,) = history.open_candidates
    refused = OutOfMemory(where="host", cause="the limit", needed_at_least_bytes=705 * MIB)
    history = with_trials(
        history, [FinishedTrial(number=0, purpose="search", configuration=least, outcome=refused)]
    )
    cause, remedy = nothing_fits(history, 700 * MIB)
    assert none_is_predicted_to_fit(history, 700 * MIB) == (
        f"None of {len(SPACE.candidates)} configurations is predicted to fit: {least} needs least, "
        "872 MiB where 700 MiB are allowed. The budget ended before a trial could prove it.",
        "Raise --memory-limit, shorten samples with --max-length, or use a smaller model or LoRA.",
    )
    some = with_foresight(History(space=SPACE, usable_bytes=880 * MIB), law)
    assert none_is_predicted_to_fit(some, 880 * MIB) is None
    assert none_is_predicted_to_fit(History(space=SPACE), 700 * MIB) is None
    others = len(SPACE.candidates) - 1
    assert cause == (
        f"None of {others + 1} configurations works: 1 ran out of memory; {others} are predicted "
        "not to fit and were not run."
    )
    # The whole batch at once: 450 + 400 + 12 * 24 is more than 450 + 410 + 12.
    assert f"The nearest was {least}, which is predicted to need 872 MiB where 700 MiB" in remedy


LOCAL = replace(runs.BEST, world_size=2, local_sgd_steps=4)
DDP = replace(LOCAL, local_sgd_steps=1)


def first_reason(confirmed: Confirmed, required: int | None, usable_bytes: int | None) -> str:
    view = confirmed_view(runs.measured(40.0))
    chosen = view.trial(7)
    assert chosen is not None
    chosen = replace(chosen, configuration=LOCAL if required else runs.BEST)
    space = replace(SPACE, baseline=DDP) if required else SPACE
    history = History(space=space, usable_bytes=usable_bytes, required_local_sgd_steps=required)
    return next(iter(reasons(view, history, chosen, confirmed, FACTS)))


def tie() -> Confirmed:
    confirmed = next(e for e in runs.ending("one", Path("out")) if isinstance(e, Confirmed))
    return replace(confirmed, speedup=1.069, speedup_ci95=(0.53, 2.14), num_pairs=1, is_tie=True)


def test_rates_that_do_not_give_the_ratio_are_explained() -> None:
    confirmed = replace(
        tie(), speedup=1.035, samples_per_s=87.6, baseline_samples_per_s=90.5, settled=True
    )

    def told(confirmed: Confirmed) -> str:
        view = confirmed_view(runs.measured(40.0))
        chosen = view.trial(7)
        assert chosen is not None
        return "\n".join(reasons(view, History(space=SPACE), chosen, confirmed, FACTS))

    assert "over all rounds together it is 87.6 against 90.5 samples/s (−3.2 %)." in told(confirmed)
    alike = replace(confirmed, samples_per_s=93.0)
    assert "all rounds together" not in told(alike)
    alone = replace(confirmed, speedup=1.0, speedup_ci95=(1.0, 1.0))
    assert "all rounds together" not in told(alone)


def test_what_was_asked_for_is_told_as_that_with_what_it_is_worth() -> None:
    worse = replace(tie(), useful_speedup=0.95, useful_speedup_ci95=(0.45, 1.9))
    assert first_reason(worse, 4, None) == (
        f"Local SGD every 4 steps is taken because it was asked for. {LOCAL}: +6.9 % (95 %: −47 % "
        f"to +114 %) samples per second against {DDP}, in 1 interleaved round, in fresh "
        "processes; −5.0 % (95 %: −55 % to +90 %) useful samples per second, weighed with what "
        "a sample teaches. That is not shown to be better than the baseline, and expected to be "
        "worse: --local-sgd auto leaves the choice to what is measured."
    )
    better = replace(
        worse, is_tie=False, useful_speedup=1.5, useful_speedup_ci95=(1.2, 1.8), num_pairs=4
    )
    assert first_reason(better, 4, None).endswith("weighed with what a sample teaches.")


def test_memory_decides_a_tie_only_where_it_matters() -> None:
    less = replace(tie(), memory=runs.measured(40.0, 510 * MIB).memory)
    little = replace(less, baseline_memory=runs.measured(40.0, 514 * MIB).memory)
    much = replace(less, baseline_memory=runs.measured(40.0, 900 * MIB).memory)
    assert first_reason(little, None, 11 * GIB).endswith("fresh processes).")
    assert first_reason(much, None, 11 * GIB).endswith("and leaves more memory free.")
    # 90 MiB are next to nothing of 11 GiB, and a lot of 1 GiB.
    some = replace(less, baseline_memory=runs.measured(40.0, 600 * MIB).memory)
    assert first_reason(some, None, 11 * GIB).endswith("fresh processes).")
    assert first_reason(some, None, GIB).endswith("and leaves more memory free.")


def test_a_tie_that_takes_more_memory_is_not_said_to_leave_more_free() -> None:
    more = replace(tie(), memory=runs.measured(40.0, 900 * MIB).memory)
    more = replace(more, baseline_memory=runs.measured(40.0, 510 * MIB).memory)
    assert first_reason(more, None, GIB).endswith("fresh processes).")


def test_trials_that_ran_out_of_memory_and_those_that_were_killed_are_counted_apart() -> None:
    view = confirmed_view(runs.measured(40.0))
    chosen = view.trial(7)
    assert chosen is not None
    assert view.confirmed is not None
    largest, *_ = sorted(SPACE.candidates, key=lambda c: -c.micro_batch_size)
    for is_certain, what in (
        (True, "ran out of memory"),
        (False, "ended by a kill that was probably for want of memory"),
    ):
        lone = FinishedTrial(
            number=0,
            purpose="search",
            configuration=largest,
            outcome=OutOfMemory(where="host", cause="the limit", is_certain=is_certain),
        )
        # Nothing larger is left to be ruled out, and nothing is said of it.
        history = replace(History(space=SPACE), trials=(lone,))
        told = list(reasons(view, history, chosen, view.confirmed, FACTS))
        assert f"1 trial {what} at {largest}." in told


BASE = runs.measured(25.0)


def baseline_alone(ended: SearchEnded) -> str:
    view = fold(runs.records([*runs.opening("one"), *runs.trial(0, runs.BASELINE, BASE), ended]))
    confirmed = replace(tie(), number=0, baseline_number=0)
    history = History(space=replace(SPACE, baseline=runs.BASELINE))
    chosen = view.trial(0)
    assert chosen is not None
    return next(iter(reasons(view, history, chosen, confirmed, FACTS)))


def test_a_budget_that_left_room_for_the_baseline_alone_says_that_a_larger_one_tries_more() -> None:
    spent = SearchEnded(reason="the time is spent", num_untried=31, is_budget_spent=True)
    assert baseline_alone(spent) == (
        "Nothing but what you have was tried: the time is spent. A larger budget tries more: "
        "31 candidates were left untried, and the first trial took 1.50 s."
    )
    over = SearchEnded(reason="every candidate was tried or ruled out", num_untried=0)
    assert baseline_alone(over) == (
        "Nothing but what you have was tried: every candidate was tried or ruled out."
    )


def test_what_you_have_is_held_against_the_next_best_round_by_round() -> None:
    measured = runs.measured(25.0)

    def timed(*step_times_s: float) -> Measured:
        size = len(step_times_s)
        speed = replace(
            measured.speed,
            step_times_s=step_times_s,
            step_samples=(32,) * size,
            step_tokens=(0,) * size,
            losses=(),
        )
        return replace(measured, speed=speed)

    # Two steps a round: 3 s against 2, 6 against 4, 12 against 8.
    own, other = timed(1.0, 1.0, 2.0, 2.0, 4.0, 4.0), timed(1.0, 2.0, 3.0, 3.0, 5.0, 7.0)
    told = [
        *runs.opening("one"),
        *runs.trial(0, runs.BASELINE, measured, "baseline"),
        *runs.trial(1, runs.BEST, measured),
        *runs.trial(2, runs.BASELINE, own, "confirm"),
        *runs.trial(3, runs.BEST, other, "confirm"),
    ]
    confirmed = replace(
        tie(), number=2, baseline_number=2, speedup=1.0, speedup_ci95=(1.0, 1.0), num_pairs=3
    )
    view = fold(runs.records([*told, confirmed]))
    space = replace(SPACE, baseline=runs.BASELINE)
    history = with_trials(History(space=space), finished_trials(view))
    chosen = view.trial(2)
    assert chosen is not None
    assert next(iter(reasons(view, history, chosen, confirmed, FACTS))) == (
        "Nothing proved faster than what you have: 1 other configuration was tried, and the best "
        f"of them, {runs.BEST}, made −33 % (95 %: −33 % to −33 %) samples per second against it, "
        "in 3 interleaved rounds, in fresh processes."
    )


def test_an_alternative_that_was_measured_again_is_told_by_those_rounds() -> None:
    """The search read both alike; side by side the one with less memory is slower."""

    def offered(rate_again: float) -> list[Document]:
        told = [
            *runs.opening("one"),
            *runs.trial(0, runs.BASELINE, runs.measured(40.0, GIB), "baseline"),
            *runs.trial(1, runs.BEST, runs.measured(41.0, 2 * GIB)),
            *runs.trial(2, runs.BASELINE, runs.measured(rate_again, GIB), "confirm"),
            *runs.trial(3, runs.BEST, runs.measured(20.0, 2 * GIB), "confirm"),
        ]
        view = fold(runs.records(told))
        history = with_trials(
            History(space=replace(SPACE, baseline=runs.BASELINE)), finished_trials(view)
        )
        found = _alternatives(view, history, runs.BEST, lambda configuration: 1.0)
        return [other for other in found if isinstance(other, dict)]

    assert offered(12.0) == []
    kept = {str(one["kind"]): one for one in offered(19.8)}
    least = kept["least memory"]
    assert least["configuration"] == runs.BASELINE.to_json()
    assert isinstance(least["measured"], dict)
    assert least["measured"]["samples_per_s"] == 19.8
    assert "−1.0 % samples per second against the recommendation" in str(least["reason"])
