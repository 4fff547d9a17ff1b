"""What an answer says of several processes and of local SGD, from trials of known figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.advice.ranks import rank_reasons
from autotune.configuration import Configuration
from autotune.events import LocalSGDPredicted, MachineProbed, NoiseScaleMeasured
from autotune.outcome import Distances, Exchange, Measured, Purpose
from autotune.search.averaging import efficiencies, local_sgd_model
from autotune.search.evidence.closing import with_trials
from autotune.search.evidence.finished import FinishedTrial
from autotune.search.evidence.history import History
from autotune.space import plan
from autotune.view import RunView, TrialView
from autotune.workload.facts import Hyperparameters
from probes.link import Exchange as Exchanged
from probes.link import Interface, Link, link_adapter
from probes.reading import Finding, Reading
from tests.autotune.export.bundles import FACTS
from tests.testing import landscapes

DDP = Configuration(micro_batch_size=8, accumulation_steps=1, world_size=2)
LOCAL = replace(DDP, local_sgd_steps=16)
ALONE = Configuration(micro_batch_size=16, accumulation_steps=1)
CLIPPING = replace(FACTS, hyperparameters=Hyperparameters(max_grad_norm=1.0))
SLOW = Exchange(
    compute_s=0.06,
    ddp_step_s=0.38,
    exposed_s=0.32,
    averaging_s=0.3,
    averaging_bytes=3 * 2**20,
    num_collectives_per_step=0.0,
)


def measured(samples_per_s: float, **readings: object) -> Measured:
    """Steps of 16 samples at a rate."""
    found = landscapes.measured([16 / samples_per_s] * 4, 16, 500 * landscapes.MIB)
    return replace(found, **readings)  # type: ignore[arg-type]


def told(
    answer: Configuration,
    search: dict[Configuration, Measured],
    confirmed: dict[Configuration, Measured],
    **more: object,
) -> list[str]:
    """The sentences for an answer, after these trials of the search and of confirmation."""
    space = plan(baseline=DDP, num_rows=None, with_one_process=True, local_sgd="auto")
    listed: list[tuple[Purpose, Configuration, Measured]] = [
        *(("search", *item) for item in search.items()),
        *(("confirm", *item) for item in confirmed.items()),
    ]
    trials = [
        TrialView(
            number=number,
            purpose=purpose,
            configuration=configuration,
            why="",
            started_s=0.0,
            outcome=outcome,
        )
        for number, (purpose, configuration, outcome) in enumerate(listed)
    ]
    history = with_trials(
        History(
            space=space,
            efficiencies=efficiencies(space.local_sgd_steps, local_sgd_model(CLIPPING)),
        ),
        (_finished(trial) for trial in trials),
    )
    view = RunView(trials=tuple(trials), **more)  # type: ignore[arg-type]
    return list(rank_reasons(view, history, answer, CLIPPING))


def _finished(trial: TrialView) -> FinishedTrial:
    assert trial.outcome is not None
    return FinishedTrial(
        number=trial.number,
        purpose=trial.purpose,
        configuration=trial.configuration,
        outcome=trial.outcome,
    )


def test_speed_efficiency_and_product_of_local_sgd_are_told_apart() -> None:
    apart = Distances(apart_squared=(0.04,), moved_squared=(1.04,))
    reasons = told(
        LOCAL,
        {
            DDP: measured(42.0, exchange=SLOW),
            LOCAL: measured(200.0, distances=apart),
            ALONE: measured(130.0),
        },
        {LOCAL: measured(210.0), DDP: measured(41.0)},
    )
    # 0.9 / (1 + 0.004 · 15), as it is assumed of Adam.
    assert reasons[0].startswith(
        "8×1×2 ranks, local SGD 16: 210 samples/s × sample efficiency 0.85 (0.70 to 0.96, assumed) "
        "= 178 useful samples/s ("
    )
    assert reasons[1] == "2 processes come to 1.37 times one alone (16×1)."
    assert reasons[2].startswith(
        "In trial 0 (8×1×2 ranks), exchanging gradients comes to 0.32 s a step on top of 60 ms of "
        "computation (533% more); one averaging of 3.00 MiB takes 0.30 s, "
    )
    assert reasons[2].endswith("which makes up for itself from 2 local SGD steps on.")
    assert reasons[3].startswith("After 16 local steps the 2 ranks were 0.2 from their mean, 20% ")
    assert "by how much depends on a noise scale that is not known" in reasons[4]


def test_a_noise_scale_tells_what_clipping_comes_to() -> None:
    noise = NoiseScaleMeasured(
        value=40.0,
        interval=(30.0, 60.0),
        num_windows=20,
        num_micro_batches=2,
        rows_per_micro_batch=8,
        is_preconditioned=True,
        note="made up",
        plain_interval=(31.0, None),
    )
    reasons = told(LOCAL, {LOCAL: measured(200.0)}, {}, noise_scale=noise)
    # That of the plain gradient, over 8 rows a rank.
    assert reasons[-1].startswith("Each of 2 ranks clips its own gradient, which is expected to be")
    assert "1.29 times max_grad_norm (1 → 1.288)" in reasons[-1]


def test_a_tie_that_went_to_one_process_says_what_it_passed_over() -> None:
    reasons = told(
        ALONE,
        {LOCAL: measured(161.0), ALONE: measured(130.0)},
        {LOCAL: measured(161.0), ALONE: measured(130.0)},
    )
    assert reasons[0] == "16×1: 130 samples/s × sample efficiency 1 = 130 useful samples/s."
    assert reasons[1].startswith("8×1×2 ranks, local SGD 16 comes to 1.05 times as much, which is ")
    assert reasons[1].endswith("the tie goes to one process, which needs no averaging.")
    assert reasons[2].startswith("2 processes come to no more than 1.05 times one alone")


def test_what_was_shown_to_be_slower_is_no_rival() -> None:
    reasons = told(ALONE, {DDP: measured(40.0), ALONE: measured(130.0)}, {ALONE: measured(130.0)})
    assert reasons == [
        "16×1: 130 samples/s × sample efficiency 1 = 130 useful samples/s.",
        "One process alone is better than all 2 of them on this link: 3.2 times as good as "
        "8×1×2 ranks.",
    ]


@pytest.mark.parametrize(
    ("ddp_step_s", "words"),
    [
        (0.1, "from 8 local SGD steps on"),
        (0.064, "on top of 60 ms of computation (7% more)"),
        (0.064, "which is too little to gain by averaging more seldom"),
        (0.06, "no number of local SGD steps makes up for"),
    ],
)
def test_from_when_on_averaging_pays(ddp_step_s: float, words: str) -> None:
    link = replace(SLOW, ddp_step_s=ddp_step_s, exposed_s=ddp_step_s - 0.06)
    reasons = told(DDP, {DDP: measured(100.0, exchange=link)}, {})
    assert words in reasons[1]


def test_the_link_is_told_with_what_is_wrong_with_it() -> None:
    times = [(1024, 0.0002), (2**20, 0.0894), (4 * 2**20, 0.3573)]
    link = Link(
        backend="gloo",
        num_ranks=2,
        exchanges=tuple(
            Exchanged(
                collective="all-reduce",
                num_bytes=num_bytes,
                time=Reading(name="all-reduce", unit="s", value=seconds),
            )
            for num_bytes, seconds in times
        ),
        interface=Interface(name="eth0", address="10.0.0.1", bits_per_s=1e8),
        findings=(
            Finding(
                cause="The traffic goes through eth0 at 100 Mbit/s.", remedy="Set another one."
            ),
            Finding(cause="There was no time for all-gather of 4 MiB.", is_problem=False),
        ),
    )
    probed = MachineProbed(
        machine={"links": [link_adapter().dump_python(link, mode="json")]},
        from_store=False,
        memory_limit_bytes=1,
        usable_bytes=1,
        limit_source="made up",
    )
    reasons = told(DDP, {DDP: measured(40.0)}, {}, machine=probed)
    assert reasons[1:] == [
        "Between the ranks, the smallest all-reduce takes 200 µs and large ones move 93.9 Mbit/s "
        "through eth0 (gloo).",
        "The traffic goes through eth0 at 100 Mbit/s. Set another one.",
    ]


def test_the_exchange_is_told_of_the_trial_that_local_sgd_was_reckoned_from() -> None:
    other = replace(DDP, micro_batch_size=4, accumulation_steps=2)
    hidden = replace(SLOW, ddp_step_s=0.0624, exposed_s=0.0024)
    predicted = LocalSGDPredicted(
        trial=1,
        local_sgd_steps=1,
        rows=(),
        sentence="DDP stays: its exchange adds 4% to a step, which leaves nothing to save.",
    )
    search = {
        DDP: measured(250.0, exchange=replace(SLOW, ddp_step_s=0.0636, exposed_s=0.0036)),
        other: measured(200.0, exchange=hidden),
    }
    reasons = told(DDP, search, {}, local_sgd=predicted)
    assert any(r.startswith(f"In trial 1 ({other}), ") and "(4% more)" in r for r in reasons)
    assert predicted.sentence in reasons
    (reason,) = [r for r in told(DDP, search, {}) if "exchanging gradients" in r]
    assert reason.startswith(f"In trial 0 ({DDP}), ")
