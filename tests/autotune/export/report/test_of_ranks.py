"""Of several ranks the report tells speed and learning apart, the exchange, and what is set why."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from autotune.configuration import Configuration
from autotune.export.bundle import Bundle
from autotune.export.report import page
from autotune.export.running.ranks import RanksHere
from autotune.outcome import Exchange
from tests.autotune.export.bundles import GIB, SPEC, bundle, measured, trial
from tests.autotune.export.fakes import NEW
from tests.autotune.export.report.test_page import rows, section

EXCHANGE = Exchange(
    compute_s=0.059,
    ddp_step_s=0.377,
    exposed_s=0.318,
    averaging_s=0.298,
    averaging_bytes=3 * 1024**2,
    num_collectives_per_step=1.0,
    collectives=("all_gather",),
)


def averaging(**changes: object) -> Bundle:
    """Local SGD is recommended; one process and the exchange of gradients were measured too."""
    made = bundle(world_size=2, local_sgd_steps=16)
    document: Any = copy.deepcopy(made.document)
    document["recommendation"]["sample_efficiency"] = {
        "value": 0.84,
        "interval": [0.78, 0.9],
        "basis": "assumed",
    }
    exchanging = replace(made.configuration, local_sgd_steps=1)
    alone = Configuration(micro_batch_size=16, accumulation_steps=1)
    with_exchange = replace(measured(61.0, GIB), exchange=EXCHANGE)
    trials = (
        *made.trials,
        trial(3, alone, measured(118.0, GIB)),
        trial(4, replace(alone, micro_batch_size=8, accumulation_steps=2), measured(115.0, GIB)),
        trial(5, exchanging, with_exchange),
    )
    return replace(made, document=document, trials=trials, **changes)  # type: ignore[arg-type]


def render(made: Bundle) -> str:
    world_size = made.configuration.world_size
    return page.render(made, NEW, RanksHere(num_ranks=world_size, world_size=world_size))


def test_speed_and_learning_and_their_product_stand_apart() -> None:
    text = section(render(averaging()), "Speed and learning")
    table = {row[0]: row[1:] for row in rows(text)}
    assert table["chosen"] == [
        "4×2×2 ranks, local SGD 16",
        "140",
        "0.84 (0.78 to 0.90), assumed",
        "118 (109 to 126)",
    ]
    assert table["baseline"] == ["8×1×2 ranks", "100", "1", "100"]
    assert table["best of one process"] == ["16×1", "118", "1", "118"]
    assert "best of exchanging gradients" not in table, "the baseline is one"
    assert (
        "It passes 1.40 times as many samples in a second as the baseline, each teaches 0.84 of "
        "what it teaches there (assumed), and so it learns 1.18 times as fast."
    ) in text


def test_ranks_that_exchange_gradients_teach_as_much() -> None:
    text = section(render(bundle(world_size=2)), "Speed and learning")
    assert "as many samples in a second as the baseline, and each teaches as much." in text
    assert next(row for row in rows(text) if row[0] == "chosen")[3:] == ["1", "140"]


def test_local_sgd_that_was_not_chosen_is_told_with_what_it_costs() -> None:
    made = bundle(world_size=2)
    local = replace(made.configuration, local_sgd_steps=8)
    document: Any = copy.deepcopy(made.document)
    efficiency = {"value": 0.88, "interval": [0.8, 0.95], "basis": "assumed"}
    document["trials"].append(
        {
            "number": 3,
            "purpose": "search",
            "configuration": local.to_json(),
            "outcome": "measured",
            "sample_efficiency": efficiency,
        }
    )
    trials = (*made.trials, trial(3, local, measured(150.0, GIB)))
    for told, cells in (
        (document, ["150", "0.88 (0.80 to 0.95), assumed", "132 (120 to 142)"]),
        (made.document, ["150", "–", "–"]),
    ):
        text = section(render(replace(made, document=told, trials=trials)), "Speed and learning")
        assert next(row for row in rows(text) if row[0] == "best of local SGD")[2:] == cells


def test_an_alternative_whose_learning_nobody_told_claims_nothing() -> None:
    made = bundle(world_size=2)
    other = replace(made.configuration, local_sgd_steps=4)
    document: Any = copy.deepcopy(made.document)
    document["recommendation"]["alternatives"][0]["configuration"] = other.to_json()
    text = section(
        render(replace(made, document=document, configuration=other)), "Speed and learning"
    )
    assert next(row for row in rows(text) if row[0] == "chosen")[3:] == ["–", "–"]
    assert "It passes" not in text


def test_the_exchange_is_told_where_it_was_measured() -> None:
    table = {
        row[0]: row[1] for row in rows(section(render(averaging()), "Exchange between the ranks"))
    }
    assert table["a step without any exchange"] == "59 ms"
    assert table["a step that exchanges gradients"] == "377 ms"
    assert table["of which the exchange adds"] == "318 ms"
    assert table["one averaging of the parameters"] == "298 ms"
    assert table["bytes of one averaging"] == "3.00 MiB"
    assert table["further collectives in a step"] == "1 (all_gather)"
    assert "Exchange between" not in render(bundle(world_size=2))


def test_what_is_set_has_its_reason() -> None:
    text = section(render(averaging(has_unused_parameters=True)), "Settings for several ranks")
    assert "- `average_tokens_across_devices=False`: counting the tokens" in text
    assert "- `ddp_find_unused_parameters=True`: some parameter gets no gradient" in text
    assert "LocalSGDCallback(local_sgd_steps=16).attach(trainer)\n" in text
    assert "after every 16 *optimizer* steps" in text
    assert "no field for that" in text
    assert "autotune.FusedLocalSGD" in text
    assert "Settings for several ranks" not in render(bundle(world_size=2))


def test_one_process_tells_nothing_of_ranks() -> None:
    text = render(bundle())
    for word in ("rank", "torchrun", "LocalSGD", "Speed and learning", "Exchange"):
        assert word not in text


def test_one_process_that_beats_several_is_compared_with_them() -> None:
    made = bundle(micro_batch_size=16, accumulation_steps=1)
    several = bundle(world_size=2).baseline
    document: Any = copy.deepcopy(made.document)
    document["recommendation"]["baseline"]["configuration"] = several.to_json()
    text = section(render(replace(made, document=document, baseline=several)), "Speed and learning")
    assert [row[0] for row in rows(text)][2:] == ["chosen", "baseline"]


def test_nodes_are_started_line_by_line() -> None:
    made = bundle(world_size=4, num_nodes=2, address="10.0.0.1")
    use = section(render(made), "Use it")
    assert "One line on each node, the first one on that with rank 0:\n" in use
    assert use.count("--node-rank 0 ") == use.count("--node-rank 1 ") == 2
    assert "\nsrun --nodes 2 --ntasks-per-node 1 bash -c " in use


def test_cpus_are_told_what_does_not_start_ranks() -> None:
    assert "`accelerate launch` starts a single process on CPUs" in render(bundle(world_size=2))
    assert "single process" not in render(bundle(world_size=2, device_type="cuda"))


def test_a_check_on_fewer_ranks_says_so() -> None:
    made = bundle(world_size=4, device_type="cuda")
    lack = RanksHere(num_ranks=1, world_size=4, lack="this machine has 1 cuda device")
    use = section(page.render(made, NEW, lack), "Use it")
    assert "1 optimizer step on 1 of 4 ranks, since this machine has 1 cuda device." in use
    assert "ran for 1 optimizer step on 4 ranks." in section(render(made), "Use it")


def test_live_objects_are_started_by_the_users_own_script() -> None:
    use = section(render(bundle(world_size=2, workload=None)), "Use it")
    assert "\nOMP_NUM_THREADS=2 torchrun --nproc-per-node 2 train.py\n" in use
    assert "trainer.py" not in use
    assert "recommendation.apply(trainer)" in use


def test_the_repair_also_mends_what_ranks_multiply() -> None:
    text = render(bundle(world_size=2, repair_loss=True))
    assert "by the accumulation steps, and by the number of ranks. The trials set" in text
    assert "number of ranks" not in render(bundle(SPEC, repair_loss=True))
