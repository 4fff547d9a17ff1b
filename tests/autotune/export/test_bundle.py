"""Bundles travel as JSON, and keep secrets to themselves."""

from __future__ import annotations

from dataclasses import replace

from autotune.export.bundle import bundle_adapter
from tests.autotune.export.bundles import FACTS, bundle


def test_a_bundle_survives_the_way_to_the_child() -> None:
    made = bundle(total_steps=7, repair_loss=True)
    assert bundle_adapter().validate_json(bundle_adapter().dump_json(made)) == made


def test_variables_that_name_secrets_are_not_written() -> None:
    made = bundle(
        environment={
            "OMP_NUM_THREADS": "2",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_TOKEN": "a",
            "WANDB_API_KEY": "b",
            "DB_PASSWORD": "c",
            "aws_secret_access_key": "d",
        }
    )
    assert made.launch_environment == {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}


def test_rows_of_a_step_are_all_there_are_where_the_data_is_small() -> None:
    assert bundle(micro_batch_size=4, accumulation_steps=3).rows_per_rank == 12
    assert bundle(facts=replace(FACTS, num_rows=10), micro_batch_size=16).rows_per_rank == 10
    assert bundle(facts=replace(FACTS, num_rows=None), micro_batch_size=16).rows_per_rank == 32
