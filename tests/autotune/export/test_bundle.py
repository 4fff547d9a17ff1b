"""Bundles travel as JSON, and keep secrets to themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
    ten = replace(FACTS, num_rows=10)
    assert bundle(micro_batch_size=4, accumulation_steps=3).window_rows(1) == (4, 4, 4)
    assert bundle(facts=ten, micro_batch_size=16).window_rows(1) == (10,)
    assert bundle(facts=ten, micro_batch_size=4, accumulation_steps=4).window_rows(1) == (4, 4, 2)
    stream = replace(FACTS, num_rows=None)
    assert bundle(facts=stream, micro_batch_size=16).window_rows(1) == (16, 16)


def test_several_ranks_have_full_micro_batches_and_equally_many() -> None:
    ten = replace(FACTS, num_rows=10)
    assert bundle(micro_batch_size=4, accumulation_steps=3).window_rows(2) == (4, 4, 4)
    # Three batches of four, and a fourth that begins anew, for two ranks.
    assert bundle(facts=ten, accumulation_steps=8).window_rows(2) == (4, 4)
    assert bundle(facts=ten, micro_batch_size=16).window_rows(2) == (16,)


def test_ranks_are_spread_evenly_over_nodes_that_find_each_other() -> None:
    two = bundle(world_size=4, num_nodes=2, address="10.0.0.1", interfaces=("eth0", "eth1"))
    assert two.ranks_per_node == 2
    with pytest.raises(ValueError, match="3 ranks do not spread evenly over 2 nodes"):
        bundle(world_size=3, num_nodes=2, address="10.0.0.1")
    with pytest.raises(ValueError, match="need the address of the first"):
        bundle(world_size=2, num_nodes=2)
    with pytest.raises(ValueError, match="1 interfaces for 2 nodes"):
        bundle(world_size=2, num_nodes=2, address="10.0.0.1", interfaces=("eth0",))
