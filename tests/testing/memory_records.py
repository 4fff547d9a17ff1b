"""Memory of real devices beside the traces of what ran on them: predictions are made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

from pydantic import JsonValue, TypeAdapter

from autotune.configuration import Configuration
from autotune.cost.memory import codec
from autotune.cost.memory.allocator_settings import AllocatorSettings
from autotune.cost.memory.estimate import Entry, estimate
from autotune.cost.memory.outside import Target
from autotune.cost.memory.question import Question
from autotune.cost.memory.trace import TracedWorkload
from autotune.outcome import MemoryUse
from autotune.run_directory import write_json

RECORDED = Path(__file__).parent / "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """What one configuration occupied."""

    configuration: Configuration
    memory: MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """Readings of one job on one device."""

    job: str
    target: Target
    settings: AllocatorSettings
    traced: TracedWorkload
    readings: tuple[MemoryReading, ...]

    def predicted(self, configuration: Configuration) -> tuple[Entry, int]:
        """The entry of a configuration, and what lies inside the allocator beside its tensors."""
        question = Question(
            target=self.target,
            settings=self.settings,
            global_batch_size=configuration.global_batch_size,
            micro_batch_sizes=(configuration.micro_batch_size,),
        )
        step = self.traced.of(configuration.checkpointing)
        assert step is not None
        (form,) = estimate(replace(self.traced, steps=(step,)), question).forms
        entry = next(
            e for e in form.entries if e.micro_batch_size == configuration.micro_batch_size
        )
        beside = sum(
            layer.num_bytes
            for layer in form.layers
            if layer.place == "allocator" and layer.basis not in ("traced", "modelled")
        )
        return entry, beside

    def errors(self) -> list[tuple[float, float]]:
        """Relative errors of allocated and of reserved bytes; negative where too little."""
        found = []
        for reading in self.readings:
            entry, beside = self.predicted(reading.configuration)
            assert entry.reserved_bytes is not None
            found.append(
                (
                    (entry.tensor_bytes + beside) / reading.memory.allocated_bytes - 1,
                    entry.reserved_bytes / reading.memory.reserved_bytes - 1,
                )
            )
        return found


@cache
def _adapter() -> TypeAdapter[tuple[Target, AllocatorSettings, tuple[MemoryUse, ...]]]:
    return TypeAdapter(tuple[Target, AllocatorSettings, tuple[MemoryUse, ...]])


def write(record: MemoryRecord, file: Path) -> None:
    """Stores a record; the machine's own readings go with its target."""
    target, settings, memories = _adapter().dump_python(
        (record.target, record.settings, tuple(r.memory for r in record.readings)), mode="json"
    )
    document: dict[str, JsonValue] = {
        "job": record.job,
        "target": target,
        "settings": settings,
        "configurations": cast("JsonValue", [r.configuration.to_json() for r in record.readings]),
        "memories": memories,
        "traced": codec.to_json(record.traced),
    }
    write_json(file, document)


def read(document: Mapping[str, JsonValue]) -> MemoryRecord:
    """Reads what `write` stored."""
    target, settings, memories = _adapter().validate_python(
        (document["target"], document["settings"], document["memories"])
    )
    configurations = cast("Sequence[Mapping[str, object]]", document["configurations"])
    return MemoryRecord(
        job=str(document["job"]),
        target=target,
        settings=settings,
        traced=codec.from_json(cast("Mapping[str, JsonValue]", document["traced"])),
        readings=tuple(
            MemoryReading(configuration=Configuration.from_json(c), memory=m)
            for c, m in zip(configurations, memories, strict=True)
        ),
    )


def recorded() -> list[Path]:
    """All stored records; the tests that need a device make them."""
    return sorted(RECORDED.glob("memory-*.json"))
