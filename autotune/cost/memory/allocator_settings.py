"""What `PYTORCH_ALLOC_CONF` says to the caching allocator, read from its text.

The grammar is the allocator's own: `key:value` pairs with commas between them, a list of values in
brackets. Keys and their bounds are those of `c10/core/AllocatorConfig` and
`c10/cuda/CUDAAllocatorConfig` of PyTorch (2.6 to 2.13).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.errors import UsageError

MIB = 1024**2
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where torch looks, in its order: the first one that is set counts."""
NUM_INTERVALS = 16
"""Sizes from 1 MiB to 64 GiB, by powers of two, that can be rounded each in their own way."""

_WITHOUT_EFFECT = (
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_register_threads",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)
"""Keys that change how memory is asked for, or host memory, and not how much a device gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """How the caching allocator rounds, splits and gives back."""

    expandable_segments: bool = False
    """One segment a pool that grows page by page, instead of many of fixed size."""
    max_split_size_bytes: int | None = None
    """Blocks from this size on are never split; None splits any."""
    max_non_split_rounding_bytes: int = 20 * MIB
    """How much larger than asked for an unsplittable block may be that is handed out."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * NUM_INTERVALS
    """Steps between two powers of two that a size is rounded up to, for each interval of sizes;
    0 and 1 round to 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """Part of the allowed memory beyond which old cached blocks are given back; 0 never does. It
    acts only where `memory_fraction` is set too."""
    memory_fraction: float | None = None
    """Part of the device that this process may reserve; None is all of it."""
    large_segment_bytes: int = 20 * MIB
    """Segment for requests between 1 and 10 MiB, and page of an expandable segment."""
    is_native: bool = True
    """Whether torch's own allocator works; CUDA's `cudaMallocAsync` follows other rules."""

    @property
    def is_default(self) -> bool:
        """Whether nothing was changed."""
        return self == UNCHANGED


UNCHANGED = AllocatorSettings()
"""What torch does by itself."""


def from_environment(environment: Mapping[str, str]) -> AllocatorSettings:
    """The settings that a training process with these variables would run under.

    Raises:
        UsageError: The variable says something that torch would refuse.
    """
    for name in VARIABLES:
        if environment.get(name):
            return parse(environment[name], source=name)
    return UNCHANGED


def parse(text: str, *, source: str = VARIABLES[0]) -> AllocatorSettings:
    """Reads a setting such as `expandable_segments:True,roundup_power2_divisions:[256:1,>:4]`.

    Args:
        text: The value of the variable.
        source: Who is named in a message.

    Raises:
        UsageError: It is none; the message names the key and what it takes.
    """
    settings = UNCHANGED
    for item in _items(text, source):
        key, colon, value = (part.strip() for part in item.partition(":"))
        if not colon or not value:
            raise UsageError(
                f"{source}: {item!r} is not a setting.",
                "Write key:value, with commas between settings.",
            )
        settings = _with(settings, key, value, source)
    return settings


def _items(text: str, source: str) -> list[str]:
    """Splits at the commas that stand outside brackets."""
    if text.count("[") != text.count("]") or re.search(r"\[[^\]]*\[", text):
        raise UsageError(
            f"{source}: a bracket is open in {text!r}.", "Write a list as [256:1,512:2,>:4]."
        )
    found = re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text)
    return [item.strip() for item in found if item.strip()]


def _with(settings: AllocatorSettings, key: str, value: str, source: str) -> AllocatorSettings:
    match key:
        case "expandable_segments":
            return replace(settings, expandable_segments=_truth(key, value, source))
        case "max_split_size_mb":
            size = _mib(key, value, source, least=settings.large_segment_bytes // MIB)
            return replace(settings, max_split_size_bytes=size)
        case "max_non_split_rounding_mb":
            size = _mib(key, value, source, least=settings.large_segment_bytes // MIB)
            return replace(settings, max_non_split_rounding_bytes=size)
        case "large_segment_size_mb":
            return replace(settings, large_segment_bytes=_mib(key, value, source, least=2))
        case "roundup_power2_divisions":
            return replace(settings, roundup_power2_divisions=_divisions(value, source))
        case "garbage_collection_threshold":
            part = _part(key, value, source)
            if part == 1:
                raise _refused(key, value, "a number between 0 and 1", source)
            return replace(settings, garbage_collection_threshold=part)
        case "per_process_memory_fraction":
            return replace(settings, memory_fraction=_part(key, value, source))
        case "backend":
            if value not in ("native", "cudaMallocAsync", "hipMallocAsync"):
                raise _refused(key, value, "native or cudaMallocAsync", source)
            return replace(settings, is_native=value == "native")
        case _ if key in _WITHOUT_EFFECT:
            return settings
    near = difflib.get_close_matches(key, (*_KEYS, *_WITHOUT_EFFECT), n=1)
    raise UsageError(
        f"{source}: the caching allocator has no setting {key!r}.",
        f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(_KEYS)}.",
    )


_KEYS = (
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "per_process_memory_fraction",
    "large_segment_size_mb",
    "backend",
)


def _refused(key: str, value: str, needed: str, source: str) -> UsageError:
    return UsageError(f"{source}: {key} cannot be {value!r}.", f"It takes {needed}.")


def _truth(key: str, value: str, source: str) -> bool:
    # torch takes these two spellings alone, and so does a training that would follow.
    if value not in ("True", "False"):
        raise _refused(key, value, "True or False, written so", source)
    return value == "True"


def _mib(key: str, value: str, source: str, *, least: int) -> int:
    if not value.isdigit() or int(value) < least:
        raise _refused(key, value, f"a whole number of MiB, {least} or more", source)
    return int(value) * MIB


def _part(key: str, value: str, source: str) -> float:
    try:
        part = float(value)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise _refused(key, value, "a number between 0 and 1", source)
    return part


def _divisions(value: str, source: str) -> tuple[int, ...]:
    """One number for all sizes, or `[256:1,512:2,>:4]`: from how many MiB on how many steps."""
    key = "roundup_power2_divisions"
    if not value.startswith("["):
        return (_power_of_two(key, value, source),) * NUM_INTERVALS
    found = [0] * NUM_INTERVALS
    last: int | None = None
    for pair in filter(None, (part.strip() for part in value.strip("[]").split(","))):
        start, _, steps = (part.strip() for part in pair.partition(":"))
        num_steps = 0 if steps == "0" else _power_of_two(key, steps, source)
        if start == ">":
            beyond = 0 if last is None else last + 1
            found[beyond:] = [num_steps] * (NUM_INTERVALS - beyond)
            continue
        interval = min(_power_of_two(key, start, source).bit_length() - 1, NUM_INTERVALS - 1)
        if last is None:
            found[:interval] = [num_steps] * interval
        found[interval] = num_steps
        last = interval
    return tuple(found)


def _power_of_two(key: str, value: str, source: str) -> int:
    if not value.isdigit() or int(value).bit_count() != 1:
        raise _refused(key, value, "powers of two, as one number or as [256:1,512:2,>:4]", source)
    return int(value)
