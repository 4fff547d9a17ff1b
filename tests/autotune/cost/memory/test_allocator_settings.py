"""The text of PYTORCH_ALLOC_CONF, as torch reads it."""

from __future__ import annotations

import pytest

from autotune.cost.memory.allocator_settings import AllocatorSettings, from_environment, parse
from autotune.errors import UsageError

MIB = 2**20


def test_without_a_variable_nothing_is_changed() -> None:
    assert from_environment({}).is_default
    assert from_environment({"PYTORCH_ALLOC_CONF": ""}).is_default


def test_the_newer_name_counts_first() -> None:
    found = from_environment(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128",
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        }
    )
    assert found == AllocatorSettings(expandable_segments=True)
    older = from_environment({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"})
    assert older.max_split_size_bytes == 128 * MIB


def test_every_key_that_counts_is_read() -> None:
    found = parse(
        " expandable_segments:False , max_split_size_mb:200,max_non_split_rounding_mb: 40,"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,backend:native,"
        "roundup_power2_divisions:[64:8,128:2,>:1],pinned_use_background_threads:True"
    )
    assert found == AllocatorSettings(
        max_split_size_bytes=200 * MIB,
        max_non_split_rounding_bytes=40 * MIB,
        garbage_collection_threshold=0.8,
        memory_fraction=0.5,
        roundup_power2_divisions=(8,) * 7 + (2,) + (1,) * 8,
    )
    assert parse("roundup_power2_divisions:16").roundup_power2_divisions == (16,) * 16
    assert not parse("backend:cudaMallocAsync").is_native


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("expandable_segment:True", "no setting 'expandable_segment'", "'expandable_segments'?"),
        ("max_split_size_mb:512MB", "max_split_size_mb cannot be '512MB'", "20 or more"),
        ("max_split_size_mb:10", "cannot be '10'", "20 or more"),
        ("expandable_segments:true", "cannot be 'true'", "True or False"),
        ("expandable_segments", "'expandable_segments' is not a setting", "key:value"),
        ("roundup_power2_divisions:3", "cannot be '3'", "powers of two"),
        ("roundup_power2_divisions:[256:1,>:4", "a bracket is open", "[256:1,512:2,>:4]"),
        ("garbage_collection_threshold:1.0", "cannot be '1.0'", "between 0 and 1"),
        ("per_process_memory_fraction:2", "cannot be '2'", "between 0 and 1"),
        ("backend:jemalloc", "cannot be 'jemalloc'", "cudaMallocAsync"),
    ],
)
def test_what_torch_would_refuse_is_refused_with_the_remedy(
    text: str, cause: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        from_environment({"PYTORCH_CUDA_ALLOC_CONF": text})
    assert caught.value.cause.startswith("PYTORCH_CUDA_ALLOC_CONF: ")
    assert cause in caught.value.cause
    assert remedy in (caught.value.remedy or "")
