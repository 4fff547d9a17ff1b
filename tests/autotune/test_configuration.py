"""The arithmetic of a configuration, and its way to JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.configuration import (
    NO_CHECKPOINTING,
    Checkpointing,
    Configuration,
    default_baseline,
    divisors,
)

CHECKPOINTING = st.just(NO_CHECKPOINTING) | st.builds(
    Checkpointing, every_n_layers=st.integers(1, 9), offload=st.booleans()
)
CONFIGURATIONS = st.builds(
    Configuration,
    micro_batch_size=st.integers(1, 512),
    accumulation_steps=st.integers(1, 512),
    world_size=st.integers(1, 64),
    checkpointing=CHECKPOINTING,
    local_sgd_steps=st.integers(1, 64),
)


@given(CONFIGURATIONS)
def test_json_and_back(configuration: Configuration) -> None:
    document = json.loads(json.dumps(configuration.to_json()))
    assert Configuration.from_json(document) == configuration
    assert document["global_batch_size"] == configuration.global_batch_size


def test_the_public_json_form() -> None:
    configuration = Configuration(
        micro_batch_size=16,
        accumulation_steps=2,
        world_size=2,
        checkpointing=Checkpointing(every_n_layers=2),
    )
    assert configuration.to_json() == {
        "micro_batch_size": 16,
        "accumulation_steps": 2,
        "world_size": 2,
        "global_batch_size": 64,
        "checkpointing": {"every_n_layers": 2, "offload": False},
        "local_sgd_steps": 1,
    }


def test_a_stated_product_that_is_wrong_is_refused() -> None:
    document = {**Configuration(micro_batch_size=4, accumulation_steps=2).to_json()}
    document["global_batch_size"] = 9
    with pytest.raises(ValueError, match="global_batch_size 9 is not 4 × 2 × 1"):
        Configuration.from_json(document)


def test_the_product_need_not_be_stated() -> None:
    read = Configuration.from_json({"micro_batch_size": 4, "accumulation_steps": 2})
    assert read == Configuration(micro_batch_size=4, accumulation_steps=2)


def test_checkpointing_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpointing must be an object"):
        Configuration.from_json(
            {"micro_batch_size": 4, "accumulation_steps": 2, "checkpointing": True}
        )


@pytest.mark.parametrize(
    "name", ["micro_batch_size", "accumulation_steps", "world_size", "local_sgd_steps"]
)
def test_no_factor_is_below_one(name: str) -> None:
    fields = {"micro_batch_size": 4, "accumulation_steps": 2, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        Configuration.from_json(fields)


def test_offload_needs_checkpointing() -> None:
    with pytest.raises(ValueError, match="offload needs checkpointing"):
        Checkpointing(offload=True)
    with pytest.raises(ValueError, match="every_n_layers must be at least 1"):
        Checkpointing(every_n_layers=0)


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        (Configuration(micro_batch_size=8, accumulation_steps=3), "8×3"),
        (
            Configuration(micro_batch_size=8, accumulation_steps=3, world_size=2),
            "8×3×2 ranks",
        ),
        (
            Configuration(
                micro_batch_size=4,
                accumulation_steps=1,
                checkpointing=Checkpointing(every_n_layers=1, offload=True),
                local_sgd_steps=16,
            ),
            "4×1, checkpointing every layer, offloaded, local SGD 16",
        ),
    ],
)
def test_how_it_reads(configuration: Configuration, text: str) -> None:
    assert str(configuration) == text


@pytest.mark.parametrize(
    ("every_n_layers", "text"),
    [(1, "every layer"), (2, "every 2nd layer"), (3, "every 3rd layer"), (4, "every 4th layer")],
)
def test_how_checkpointing_reads(every_n_layers: int, text: str) -> None:
    assert str(Checkpointing(every_n_layers=every_n_layers)) == f"checkpointing {text}"
    assert str(NO_CHECKPOINTING) == "no checkpointing"


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert list(divisors(number)) == [n for n in range(1, number + 1) if number % n == 0]


@given(st.integers(1, 500), st.integers(1, 8))
def test_the_default_baseline_is_micro_batch_eight_or_less(
    per_device: int, world_size: int
) -> None:
    found = default_baseline(per_device * world_size, world_size)
    assert found.global_batch_size == per_device * world_size
    assert found.micro_batch_size == max(n for n in range(1, 9) if per_device % n == 0)
    assert not found.checkpointing.is_on


def test_a_global_batch_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="10 is not a multiple of 4 ranks"):
        default_baseline(10, 4)
