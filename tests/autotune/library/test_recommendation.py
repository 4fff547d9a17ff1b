"""What a recommendation offers, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, DistributedType
from pydantic import JsonValue

from autotune.errors import ExportError, JournalError, UsageError
from autotune.library.recommendation import Recommendation, load
from tests.testing import live, runs
from tests.testing.recommendations import configuration, document


@pytest.fixture
def recommendation() -> Recommendation:
    return Recommendation.of(document())


def test_it_tells_the_answer_in_a_line(recommendation: Recommendation) -> None:
    assert str(recommendation) == (
        "16×1: +50 % samples/s against 8×2 (95 %: +45 % to +55 %), peak 1.00 GiB of 4.00 GiB"
    )
    unchanged = Recommendation.of(document(chosen=configuration(8, 2)))
    assert "nothing but what you have was tried" in unchanged.summary
    assert not unchanged.is_change
    trials: list[JsonValue] = [
        {
            "number": 1,
            "purpose": "search",
            "configuration": configuration(16, 1).to_json(),  # type: ignore[dict-item]
            "outcome": "measured",
        }
    ]
    tried = Recommendation.of({**document(chosen=configuration(8, 2)), "trials": trials})
    assert "nothing proved better than what you have" in tried.summary


def test_an_alternative_is_the_same_evidence_with_another_configuration(
    recommendation: Recommendation,
) -> None:
    other = recommendation.alternative("least memory")
    assert other.configuration == configuration(4, 4)
    assert other.document is recommendation.document
    assert "120 samples/s" in other.summary
    with pytest.raises(UsageError, match="no alternative 'fastest'"):
        recommendation.alternative("fastest")


def test_a_saved_one_is_read_again(recommendation: Recommendation, tmp_path: Path) -> None:
    recommendation.save(tmp_path / "recommendation.json")
    assert load(tmp_path / "recommendation.json") == recommendation
    assert load(tmp_path) == recommendation, "the directory will do"


def test_the_run_is_found_beside_its_files(recommendation: Recommendation, tmp_path: Path) -> None:
    run = tmp_path / "sample"
    (run / "out").mkdir(parents=True)
    recommendation.save(run / "out" / "recommendation.json")
    assert load(run / "out").run is None
    (run / "request.json").write_text("{}")
    assert load(run / "out").run == run


def test_without_its_run_nothing_is_exported(
    recommendation: Recommendation, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="'sample' is not at hand") as caught:
        recommendation.export(tmp_path / "out")
    assert "autotune export sample" in (caught.value.remedy or "")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (None, UsageError, "cannot be read"),
        ("{", JournalError, "is not JSON"),
        ("[]", JournalError, "holds no recommendation"),
        ("{}", JournalError, "This is no recommendation"),
        (json.dumps({**document(), "schema": 2}), JournalError, "schema"),
    ],
)
def test_a_file_that_is_none_is_told_so(
    text: str | None, error: type[Exception], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "recommendation.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=says):
        load(path)


@pytest.fixture
def fresh_state() -> Iterator[None]:
    """Accelerate keeps one state a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_state")
def test_an_accelerator_has_accumulation_and_precision() -> None:
    found = Recommendation.of(document(chosen=configuration(4, 4), precision="bf16"))
    accelerator = found.accelerator(cpu=True)
    assert accelerator.gradient_accumulation_steps == 4
    assert accelerator.mixed_precision == "bf16"


@pytest.mark.usefixtures("fresh_state")
def test_local_sgd_of_one_rank_does_nothing(recommendation: Recommendation) -> None:
    accelerator = recommendation.accelerator(cpu=True)
    model = live.gpt2()
    before = model.lm_head.weight.clone()
    with recommendation.local_sgd(accelerator, model) as local_sgd:
        local_sgd.step()
    assert bool((model.lm_head.weight == before).all())


def test_arguments_alone_do_not_mend_a_loss_and_say_so(tmp_path: Path) -> None:
    told = document(chosen=configuration(1, 4), baseline=configuration(2, 2), loss_repair=True)
    found = Recommendation.of(told)
    with pytest.warns(UserWarning, match="multiplied by the accumulation steps"):
        found.training_arguments(live.arguments(tmp_path))
    trainer = live.trainer(tmp_path)
    found.apply(trainer)
    assert trainer.model_accepts_loss_kwargs is False


def test_another_job_is_not_given_another_global_batch(tmp_path: Path) -> None:
    found = Recommendation.of(document(configuration(8, 1), configuration(4, 2)))
    trainer = live.trainer(tmp_path)
    with pytest.raises(UsageError, match=r"trains on 4 samples .* was tuned on 8") as caught:
        found.apply(trainer)
    assert caught.value.remedy
    assert trainer.args.per_device_train_batch_size == 2


def test_places_that_are_none_are_told(recommendation: Recommendation, tmp_path: Path) -> None:
    for use in (recommendation.save, recommendation.export, load):
        with pytest.raises(UsageError, match="is a int"):
            use(3)  # type: ignore[arg-type]
    for place in (tmp_path, tmp_path / "nowhere" / "file"):
        with pytest.raises(UsageError, match="cannot be written"):
            recommendation.save(place)


def test_a_prompt_shows_the_answer_in_one_line(recommendation: Recommendation) -> None:
    assert repr(recommendation) == f"<Recommendation {recommendation.summary}>"


def test_a_notebook_shows_a_table_without_markup_of_others(
    recommendation: Recommendation,
) -> None:
    shown = recommendation._repr_html_()
    assert "<th>baseline</th>" in shown
    assert "<tr><th>micro-batch size</th><td>16</td><td>8</td></tr>" in shown
    assert "It fits &lt;easily&gt;." in shown
    assert "<script" not in shown
    assert "chosen alternative" in recommendation.alternative("least memory")._repr_html_()
    unchanged = Recommendation.of(document(chosen=configuration(8, 2)))
    assert "<th>baseline</th>" not in unchanged._repr_html_()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="ranks train on the devices here")
@pytest.mark.usefixtures("fresh_state")
def test_ranks_on_cpus_are_no_single_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    two, one = configuration(4, 1, world_size=2), configuration(8, 1)
    try:
        found = Recommendation.of(document(chosen=two, baseline=two))
        assert found.accelerator().distributed_type == DistributedType.MULTI_CPU
        assert found.training_arguments(output_dir=str(tmp_path)).use_cpu
    finally:
        torch.distributed.destroy_process_group()
    alone = Recommendation.of(document(chosen=one, baseline=one))
    assert not alone.training_arguments(output_dir=str(tmp_path)).use_cpu


def test_files_that_are_in_the_way_are_told_in_words_of_the_library(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path, "one", [])
    found = replace(Recommendation.of(document()), run=run.path)
    with pytest.raises(UsageError, match="has no recommendation yet") as caught:
        found.export(tmp_path / "out")
    assert "--resume" not in str(caught.value.remedy)


def test_a_table_says_which_rates_do_not_compare(recommendation: Recommendation) -> None:
    told = recommendation.document
    answer = recommendation.evidence.recommendation
    again: list[JsonValue] = [
        {
            "number": number,
            "purpose": "confirm",
            "configuration": configuration.to_json(),  # type: ignore[dict-item]
            "outcome": "measured",
        }
        for number, configuration in enumerate(
            (answer.configuration, answer.baseline.configuration)
        )
    ]
    found = Recommendation.of({**told, "trials": again})
    assert "do not compare" not in found._repr_html_()
    assert "do not compare" in found.alternative("least memory")._repr_html_()
