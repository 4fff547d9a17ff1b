"""Fields of TrainingArguments: which are written, under which names, and how they are read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pydantic import JsonValue

from autotune.configuration import Checkpointing
from autotune.errors import ExportError
from autotune.export import settings
from autotune.export.bundle import Bundle
from autotune.export.installed import look
from tests.autotune.export.bundles import FACTS, SPEC, bundle
from tests.autotune.export.fakes import NEW, OLD

EVERY_LAYER = Checkpointing(every_n_layers=1)
EVERY_SECOND = Checkpointing(every_n_layers=2, offload=True)


def test_only_the_knobs_are_written_for_a_plain_job() -> None:
    assert settings.all_fields(bundle(), NEW) == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
    }


def test_the_evaluation_batch_size_is_written_where_it_is_known() -> None:
    whole = bundle()
    answer = whole.document["recommendation"]
    assert isinstance(answer, dict)
    evaluation: JsonValue = {"per_device_eval_batch_size": 16, "predicted": {}, "measured": {}}
    known = replace(
        whole, document={**whole.document, "recommendation": {**answer, "evaluation": evaluation}}
    )
    assert settings.all_fields(known, NEW)["per_device_eval_batch_size"] == 16
    unknown = replace(
        whole, document={**whole.document, "recommendation": {**answer, "evaluation": None}}
    )
    assert "per_device_eval_batch_size" not in settings.all_fields(unknown, NEW)


def test_what_the_job_changes_is_written_too() -> None:
    spec = replace(SPEC, precision="bf16", optim="adafactor", learning_rate=3e-05, seed=7)
    fields = settings.all_fields(bundle(spec, total_steps=900), NEW)
    assert fields == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "bf16": True,
        "use_cpu": True,
        "optim": "adafactor",
        "learning_rate": 3e-05,
        "seed": 7,
        "max_steps": 900,
    }


def test_the_default_optimizer_of_the_installed_version_is_not_written() -> None:
    named = bundle(replace(SPEC, optim="adamw_torch"))
    assert settings.job_fields(named, OLD) == {}
    assert settings.job_fields(named, NEW) == {"optim": "adamw_torch"}


def test_checkpointing_goes_by_its_new_name_where_there_is_one() -> None:
    fields = settings.knob_fields(bundle(checkpointing=EVERY_SECOND), NEW)
    assert fields["activation_checkpointing"] is True
    assert fields["activation_checkpointing_kwargs"] == {
        "use_reentrant": False,
        "every_n_layers": 2,
        "offload": True,
    }
    assert not any(name.startswith("gradient_checkpointing") for name in fields)


def test_checkpointing_goes_by_its_old_name_elsewhere() -> None:
    fields = settings.knob_fields(bundle(checkpointing=EVERY_LAYER), OLD)
    assert fields["gradient_checkpointing"] is True
    assert fields["gradient_checkpointing_kwargs"] == {"use_reentrant": False}


def test_a_form_that_the_old_version_lacks_is_refused_in_words() -> None:
    with pytest.raises(ExportError, match=r"transformers 4\.50\.0 has no every_n_layers"):
        settings.knob_fields(bundle(checkpointing=EVERY_SECOND), OLD)


def test_checkpointing_is_switched_off_where_the_baseline_has_it_on() -> None:
    made = bundle()
    before = replace(made.baseline, checkpointing=EVERY_LAYER)
    assert settings.knob_fields(replace(made, baseline=before), NEW)[
        "activation_checkpointing"
    ] is (False)


def test_json_holds_the_fields_and_nothing_else() -> None:
    fields = settings.all_fields(bundle(replace(SPEC, learning_rate=2e-5)), NEW)
    assert json.loads(settings.as_json(fields)) == fields


def test_yaml_keeps_small_numbers_as_numbers_and_comments_apart() -> None:
    fields = settings.all_fields(bundle(replace(SPEC, learning_rate=5e-5)), NEW)
    text = settings.as_yaml(fields, ("where from",))
    assert text.startswith("# where from\nper_device_train_batch_size: 4\n")
    assert "learning_rate: 5.0e-05\n" in text
    assert yaml.safe_load(text) == fields


def test_flags_are_one_line_without_spaces_inside() -> None:
    fields = settings.all_fields(
        bundle(replace(SPEC, precision="bf16"), checkpointing=EVERY_SECOND), NEW
    )
    assert settings.as_args(fields) == (
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
        "--activation_checkpointing --activation_checkpointing_kwargs "
        '{"use_reentrant":false,"every_n_layers":2,"offload":true} --bf16 --use_cpu\n'
    )


Verify = Callable[[Path, settings.Fields], str]
KINDS: dict[str, tuple[Callable[[settings.Fields], str], Verify]] = {
    "training_arguments.json": (settings.as_json, settings.verify_json),
    "training_arguments.yaml": (
        lambda fields: settings.as_yaml(fields, ("a comment",)),
        settings.verify_yaml,
    ),
    "train.args": (settings.as_args, settings.verify_args),
}


@pytest.fixture
def rich() -> Bundle:
    spec = replace(SPEC, learning_rate=5e-5, optim="adafactor", seed=3)
    return bundle(spec, checkpointing=Checkpointing(every_n_layers=2), total_steps=20)


@pytest.mark.parametrize("name", KINDS)
def test_the_parser_reads_what_was_meant(name: str, rich: Bundle, tmp_path: Path) -> None:
    render, verify = KINDS[name]
    fields = settings.all_fields(rich, look())
    path = tmp_path / name
    path.write_text(render(fields))
    assert verify(path, fields).startswith("HfArgumentParser.parse")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("training_arguments.json", '"seed": 3', '"seed": 4', "seed is read as 4 and not as 3"),
        ("training_arguments.json", '"seed": 3', '"sed": 3', "sed"),
        ("training_arguments.json", '"seed": 3,\n', "", "does not hold the fields.*seed"),
        ("training_arguments.json", "5e-05", '"5e-05"', "learning_rate is read as '5e-05'"),
        ("training_arguments.json", "}", "", "Expecting"),
        ("training_arguments.yaml", "5.0e-05", "5e-05", "learning_rate is read as '5e-05'"),
        ("training_arguments.yaml", "every_n_layers: 2", "every_n_layers: 3", "kwargs is read as"),
        ("training_arguments.yaml", "seed: 3", "seed: [3", "flow sequence"),
        ("train.args", "--seed 3", "--seed 5", "seed is read as 5 and not as 3"),
        ("train.args", "--seed 3", "", "does not hold the fields.*seed"),
        ("train.args", "--seed 3", "--sede 3", "sede"),
    ],
)
def test_a_damaged_file_is_found(
    name: str, old: str, new: str, message: str, rich: Bundle, tmp_path: Path
) -> None:
    render, verify = KINDS[name]
    fields = settings.all_fields(rich, look())
    text = render(fields)
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new))
    with pytest.raises(Exception, match=message):
        verify(path, fields)


def local(**changes: object) -> Bundle:
    """Two ranks that average."""
    return replace(bundle(world_size=2, local_sgd_steps=8), **changes)  # type: ignore[arg-type]


def test_one_process_sets_nothing_for_ranks() -> None:
    assert settings.rank_fields(bundle(has_unused_parameters=True), NEW) == {}


def test_ranks_that_exchange_gradients_count_their_tokens_together() -> None:
    made = bundle(world_size=2, has_unused_parameters=True, device_type="cuda")
    assert settings.rank_fields(made, NEW) == {"ddp_find_unused_parameters": True}
    assert settings.rank_fields(bundle(world_size=2), NEW) == {}


def test_ranks_that_average_do_not_wait_for_each_other_in_a_step() -> None:
    stream = replace(FACTS, num_rows=None)
    made = local(has_unused_parameters=True, facts=stream)
    assert settings.rank_fields(made, NEW) == {
        "average_tokens_across_devices": False,
        "ddp_find_unused_parameters": True,
        "accelerator_config": {"dispatch_batches": False},
    }
    assert settings.rank_fields(local(), NEW) == {"average_tokens_across_devices": False}


def test_fields_that_a_version_lacks_are_left_out() -> None:
    made = local(has_unused_parameters=True)
    assert settings.rank_fields(made, OLD) == {"ddp_find_unused_parameters": True}


def test_the_fields_of_ranks_are_read_as_they_are_meant(tmp_path: Path) -> None:
    stream = replace(FACTS, num_rows=None)
    made = local(has_unused_parameters=True, facts=stream)
    fields = settings.all_fields(made, look())
    assert {"average_tokens_across_devices", "accelerator_config"} <= set(fields)
    for name, (render, verify) in KINDS.items():
        path = tmp_path / name
        path.write_text(render(fields))
        verify(path, fields)
        path.write_text(path.read_text().replace("dispatch_batches", "even_batches"))
        with pytest.raises(ValueError, match="accelerator_config is read as"):
            verify(path, fields)


def test_the_trials_put_the_same_knobs_in_force() -> None:
    from autotune.trial.training_arguments import knob_fields

    for checkpointing in (EVERY_LAYER, Checkpointing(every_n_layers=3), EVERY_SECOND):
        made = bundle(checkpointing=checkpointing)
        assert settings.knob_fields(made, look()) == knob_fields(made.configuration)
