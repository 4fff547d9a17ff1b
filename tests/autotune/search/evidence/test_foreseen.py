"""What predictions rule out, and what trials make of that."""

from __future__ import annotations

from autotune.configuration import Configuration
from autotune.cost.memory.foresight import Foresight, Reckoner
from autotune.cost.memory.outside import Target
from autotune.outcome import Measured, Outcome, OutOfMemory
from autotune.search.evidence.closing import with_trial, with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.foreseen import with_foresight
from autotune.search.evidence.history import History
from autotune.search.evidence.outlook import Outlook
from autotune.search.order import Next, Over, next_candidate
from tests.autotune.cost.memory.traces import MIB, step, traced
from tests.testing.landscapes import make_space, measured

PROCESS = 450 * MIB
SPACE = make_space(24)
"""All of 1, 2, 3, 4, 6, 8, 12, 24 by no checkpointing and every 3rd, 2nd and single layer; the
steps below know no and every layer."""


def foresight() -> Foresight:
    target = Target(name="CPU", kind="cpu", total_bytes=10**12, total_from="by hand")
    return Foresight(reckoner=Reckoner(traced(), target, process_bytes=PROCESS))


def history(usable_mib: int, known: Foresight | None = None) -> History:
    return with_foresight(History(space=SPACE, usable_bytes=usable_mib * MIB), known or foresight())


def at(size: int, every_n_layers: int | None = None) -> Configuration:
    return next(
        c
        for c in SPACE.candidates
        if c.micro_batch_size == size and c.checkpointing.every_n_layers == every_n_layers
    )


def ended(number: int, configuration: Configuration, outcome: Outcome) -> FinishedTrial:
    return FinishedTrial(
        number=number, purpose="search", configuration=configuration, outcome=outcome
    )


def fits(total_mib: float, outside_mib: int = 450) -> Measured:
    found = measured([1.0] * 4, 24, round(total_mib * MIB))
    inside = round((total_mib - outside_mib) * MIB)
    memory = type(found.memory)(
        allocated_bytes=inside,
        reserved_bytes=inside,
        outside_bytes=outside_mib * MIB,
        total_bytes=inside + outside_mib * MIB,
        method="by hand",
    )
    return Measured(
        speed=found.speed,
        memory=memory,
        samples_per_s=found.samples_per_s,
        samples_per_s_ci95=found.samples_per_s_ci95,
    )


def ruled_out(known: History) -> list[Configuration]:
    return [c for region in known.regions for c in region.configurations]


def test_what_is_predicted_not_to_fit_is_closed_before_any_trial() -> None:
    # 450 + 410 + 12 b: 8 needs 956 MiB, 12 needs 1004; 24 at once needs 450 + 400 + 288 = 1138.
    known = history(1000)
    assert ruled_out(known) == [at(12), at(24)]
    (region,) = known.regions
    assert region.is_foreseen
    assert region.by_memory
    assert region.trial is None
    assert region.what == "micro-batch sizes 12, 24 with no checkpointing"
    assert region.reason == (
        "predicted to need at least 1004 MiB, 4.00 MiB more than the 1000 MiB that may be filled"
    )
    assert not known.is_open(at(12))
    assert known.is_open(at(24, 2)), "nobody knows"


def test_a_trial_that_needed_more_closes_more() -> None:
    known = history(1000)
    known = with_trial(known, ended(0, at(4), fits(450 + 1.1 * 458)))
    # 8: 450 + 1.1 * 506 = 1006.6 MiB.
    assert [c for c in ruled_out(known) if c not in (at(12), at(24))] == [at(8)]
    assert known.regions[-1].trial == 0
    assert known.regions[-1].what == "micro-batch size 8 with no checkpointing"
    assert known.regions[-1].reason.startswith("predicted to need 1007 MiB")


def test_no_line_is_drawn_through_trials_where_the_law_stands() -> None:
    known = with_trials(history(10_000), (ended(0, at(2), fits(884)), ended(1, at(4), fits(908))))
    assert known.regions == ()
    alone = with_trials(
        History(space=SPACE, usable_bytes=1000 * MIB),
        (ended(0, at(2), fits(884)), ended(1, at(4), fits(908))),
    )
    assert [r.is_foreseen for r in alone.regions] == [False], "without it, trials do as before"


def test_where_nothing_fits_the_least_is_left_to_prove_it() -> None:
    # Every layer checkpointed: 450 + 410 + 3 = 863 MiB.
    known = history(800, Foresight(reckoner=_only_known_forms()))
    (least,) = known.open_candidates
    assert least == _least(known)
    assert next_candidate(known) == Next(configuration=least, why="the closest to the baseline")
    refused = OutOfMemory(
        where="host", cause="the limit", needed_at_least_bytes=810 * MIB, limit_bytes=800 * MIB
    )
    over = with_trial(known, ended(0, least, refused))
    assert over.open_candidates == ()
    assert next_candidate(over) == Over(reason="every candidate was tried or ruled out")
    assert len(ruled_out(over)) == len(SPACE.candidates) - 1


def test_a_proof_that_fails_opens_everything_again() -> None:
    known = history(800, Foresight(reckoner=_only_known_forms()))
    (least,) = known.open_candidates
    again = with_trial(known, ended(0, least, fits(790)))
    assert again.foresight is None
    assert again.regions == ()
    assert len(again.open_candidates) == len(SPACE.candidates) - 1
    resumed = with_foresight(
        with_trials(History(space=SPACE, usable_bytes=800 * MIB), again.trials),
        Foresight(reckoner=_only_known_forms()),
    )
    assert resumed.foresight is None
    assert resumed.open_candidates == again.open_candidates


def test_a_run_that_goes_on_knows_the_same() -> None:
    trials = (
        ended(0, at(4), fits(450 + 1.1 * 458)),
        ended(1, at(6, 1), OutOfMemory(where="host", cause="?", needed_at_least_bytes=999 * MIB)),
    )
    live = with_trials(history(1000), trials)
    resumed = with_foresight(
        with_trials(History(space=SPACE, usable_bytes=1000 * MIB), trials), foresight()
    )
    assert resumed.foresight is not None
    assert live.foresight is not None
    assert resumed.foresight.raised_by == live.foresight.raised_by > 1.1
    assert set(resumed.open_candidates) == set(live.open_candidates)


def test_expectations_are_predictions_where_there_are_any() -> None:
    known = with_trial(history(1000), ended(0, at(4), fits(908)))
    outlook = Outlook(known)
    assert outlook.knows_memory
    assert outlook.may_fit(at(8))
    assert not outlook.may_fit(at(12))
    assert outlook.is_sure_to_fit(at(8))


def _only_known_forms() -> Reckoner:
    """Every form of the space traced."""
    target = Target(name="CPU", kind="cpu", total_bytes=10**12, total_from="by hand")
    found = traced(
        *(
            step(form, activations_mib=10 * kept)
            for form, kept in zip(SPACE.forms, (1.0, 0.7, 0.5, 0.1), strict=True)
        )
    )
    return Reckoner(found, target, process_bytes=PROCESS)


def _least(known: History) -> Configuration:
    def need(candidate: Configuration) -> int:
        found = known.need(candidate)
        assert found is not None
        return found.total_bytes

    return min(SPACE.candidates, key=need)
