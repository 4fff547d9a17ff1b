"""The report tells what was found, and keeps what was measured and predicted apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.configuration import Configuration
from autotune.events import Origin
from autotune.export.bundle import Bundle
from autotune.export.report import page
from autotune.export.running.ranks import RanksHere
from autotune.outcome import Failed
from tests.autotune.export.bundles import bundle
from tests.autotune.export.fakes import NEW

HERE = RanksHere(num_ranks=1, world_size=1)


def render(made: Bundle) -> str:
    """The report of scripts that are tried on one rank."""
    return page.render(made, NEW, HERE)


def section(text: str, title: str) -> str:
    """The text below a heading."""
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]


def test_the_answer_shows_both_configurations_and_their_readings() -> None:
    answer = section(render(bundle()), "Answer")
    assert "Train with **4×2**: +40 % speed against the baseline (95 %: +37 % to +43 %)." in answer
    table = {row[0]: row[1:] for row in rows(answer)}
    assert table["micro-batch size"] == ["4", "8"]
    assert table["accumulation steps"] == ["2", "1"]
    assert table["samples per second"] == ["140", "100"]
    assert table["95 % interval"] == ["137 to 143", "98.0 to 102"]
    assert table["peak memory"] == ["2.00 GiB", "3.00 GiB"]
    assert "The limit is 4.00 GiB" in answer


def test_every_trial_has_a_row_and_only_measured_ones_have_numbers() -> None:
    text = section(render(bundle()), "Trials")
    assert "but for the predicted peak" in text
    table = {row[0]: row[1:] for row in rows(text)}
    assert table["#"][5:8] == ["peak memory", "predicted peak", "note"]
    assert table["1"][:6] == ["search", "4×2", "measured", "139", "136 to 142", "2.00 GiB"]
    assert table["1"][6] == "3.00 GiB"
    assert table["2"][2:7] == ["out of memory", "–", "–", "–", "–"]
    assert table["2"][7] == "over the limit ¦ 4 GiB (at least 5.00 GiB)"


def test_without_predictions_every_number_was_measured() -> None:
    whole = bundle()
    alone = replace(whole, trials=tuple(replace(t, predicted=None) for t in whole.trials))
    text = section(render(alone), "Trials")
    assert "Every number in this table was measured." in text
    assert "predicted" not in text


def test_a_trial_of_another_engine_names_its_host() -> None:
    whole = bundle()
    origin = Origin(host="node2", run="other", run_id="r", number=0)
    first, *others = whole.trials
    shared = replace(whole, trials=(replace(first, origin=origin), *others))
    text = section(render(shared), "Trials")
    table = {row[0]: row[1:] for row in rows(text)}
    assert table[str(first.number)][0] == f"{first.purpose} on node2"
    assert table[str(others[0].number)][0] == others[0].purpose


def test_reasons_advice_and_limits_are_told() -> None:
    text = render(bundle())
    assert "- Fewer, larger micro-batches keep both cores busy." in section(text, "Why")
    assert "- bf16, if the" in section(text, "Also consider (not tested)")
    assert "longer than a few steps" in section(text, "Not covered by this evidence")
    assert "closest to the baseline" in section(text, "Alternatives")
    evidence = section(text, "Evidence")
    assert "22,713,986 parameters" in evidence
    assert "Test CPU" in evidence
    assert "live storage bytes, counted in every operation" in evidence
    assert "transformers 5.24.0" in evidence
    assert "New weights, drawn with the seed: classifier." in evidence


def test_the_commands_set_the_variables_of_the_trials() -> None:
    use = section(render(bundle()), "Use it")
    assert "OMP_NUM_THREADS=2 python trainer.py\n" in use
    assert (
        "OMP_NUM_THREADS=2 accelerate launch --config_file accelerate.yaml accelerator.py\n" in use
    )


def test_the_repair_is_explained_where_it_is_needed() -> None:
    assert "model_accepts_loss_kwargs" not in render(bundle())
    repaired = render(bundle(repair_loss=True))
    assert "`trainer.model_accepts_loss_kwargs = False`" in section(repaired, "Answer")


def test_an_alternative_says_that_it_is_one() -> None:
    made = bundle()
    text = render(replace(made, configuration=made.baseline))
    assert "These files hold the alternative **8×1**; recommended is 4×2." in text
    unknown = Configuration(micro_batch_size=1, accumulation_steps=8)
    with pytest.raises(ValueError, match="does not know"):
        render(replace(made, configuration=unknown))


def test_an_answer_that_changes_nothing_says_so() -> None:
    made = bundle()
    same: Any = copy.deepcopy(made.document)
    same["recommendation"]["configuration"] = made.baseline.to_json()
    text = render(replace(made, document=same, configuration=made.baseline))
    assert "Keep **8×1**, the baseline." in section(text, "Answer")
    assert "speed against the baseline" not in section(text, "Answer")


def test_a_gain_that_may_be_none_says_so() -> None:
    made = bundle()
    wide: Any = copy.deepcopy(made.document)
    wide["recommendation"]["speedup"]["ci95"] = [0.9, 2.2]
    assert (
        "+40 % speed against the baseline (95 %: −10 % to +120 %), not settled, perhaps no "
        "difference."
    ) in section(render(replace(made, document=wide)), "Answer")


def test_a_baseline_without_readings() -> None:
    made = bundle()
    odd: Any = copy.deepcopy(made.document)
    odd["recommendation"]["baseline"]["measured"] = {}
    odd["recommendation"]["speedup"] = None
    table = {row[0]: row[1:] for row in rows(render(replace(made, document=odd)))}
    assert table["samples per second"] == ["140", "–"]


def test_links_and_words_are_checked(tmp_path: Path) -> None:
    made = bundle()
    path = tmp_path / "report.md"
    path.write_text(render(made))
    with pytest.raises(ValueError, match=r"links to report\.svg"):
        page.verify(path, made)
    for name in ("report.svg", *(name for name, _ in page.FILES)):
        (tmp_path / name).write_text("")
    assert page.verify(path, made) == "every link followed, every reading looked up"
    path.write_text(path.read_text().replace("139", "239"))
    with pytest.raises(ValueError, match=r"does not hold the line .*139"):
        page.verify(path, made)


def test_commands_are_looked_up(tmp_path: Path) -> None:
    made = bundle(world_size=2)
    for name in ("report.svg", *(name for name, _ in page.FILES)):
        (tmp_path / name).write_text("")
    path = tmp_path / "report.md"
    path.write_text(render(made))
    page.verify(path, made)
    path.write_text(path.read_text().replace("--nproc-per-node 2 trainer", "-n 2 trainer"))
    with pytest.raises(ValueError, match=r"does not hold the command .*torchrun"):
        page.verify(path, made)


def test_words_of_a_trial_are_no_link(tmp_path: Path) -> None:
    made = bundle()
    failed = replace(made.trials[2], outcome=Failed(cause="call_module layers[0](x) is unknown"))
    made = replace(made, trials=(*made.trials[:2], failed))
    for name in ("report.svg", *(name for name, _ in page.FILES)):
        (tmp_path / name).write_text("")
    path = tmp_path / "report.md"
    path.write_text(render(made))
    assert page.verify(path, made) == "every link followed, every reading looked up"


def test_what_the_files_set_for_evaluation_stands_with_the_answer() -> None:
    made = bundle()
    assert "per_device_eval_batch_size" not in render(made)
    document = copy.deepcopy(made.document)
    answer: Any = document["recommendation"]
    answer["evaluation"] = {"per_device_eval_batch_size": 32}
    text = section(render(replace(made, document=document)), "Answer")
    assert "`per_device_eval_batch_size=32`, which touches evaluation only." in text


def test_rates_of_the_search_are_told_apart_from_confirmed_ones() -> None:
    made = bundle()
    document = copy.deepcopy(made.document)
    answer: Any = document["recommendation"]
    trials: Any = document["trials"]
    other = replace(made.configuration, micro_batch_size=2, accumulation_steps=4).to_json()
    answer["alternatives"].append({**answer["alternatives"][0], "configuration": other})
    made = replace(made, document=document)
    apart = "was measured once, in the search"
    assert apart not in render(made)
    assert "once |" not in render(made), "nothing was confirmed"
    for chosen in (answer["configuration"], answer["baseline"]["configuration"]):
        trials.append({**trials[0], "purpose": "confirm", "configuration": chosen})
    assert apart not in render(made)
    assert [row[2] for row in rows(section(render(made), "Alternatives"))][2:] == [
        "100",
        "100, once",
    ]
    taken = replace(made, configuration=Configuration.from_json(other))
    assert apart in section(render(taken), "Answer")
