"""What is predicted of a real device against what its allocator says; with
AUTOTUNE_RECORD_READINGS=1 the readings are kept for tests without a device."""

from __future__ import annotations

import json
import os
import re
import statistics
from pathlib import Path

import pytest
import torch

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.cost.memory.allocator_settings import from_environment
from autotune.cost.memory.outside import Target
from autotune.outcome import Measured
from autotune.tracing.client import trace_workload
from autotune.tracing.request import Target as TraceTarget
from autotune.tracing.request import TraceRequest
from autotune.workload.spec import Columns, Precision, WorkloadSpec
from probes import context
from probes.known import known_machine
from probes.reading import CONTEXT, WORKSPACES
from tests.testing import jobs, memory_records, tiny_models
from tests.testing.memory_records import MemoryReading, MemoryRecord

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here"),
]

FORMS = (NO_CHECKPOINTING, Checkpointing(every_n_layers=2), Checkpointing(every_n_layers=1))
SIZES = (4, 32)
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def job(directory: Path, precision: Precision) -> WorkloadSpec:
    """A GPT-2 large enough that its tensors come from the large pool."""
    place = tiny_models.gpt2(directory / "gpt2", with_pad=True)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(
        json.dumps(config | {"n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 256})
    )
    texts = directory / "texts.txt"
    texts.write_text("\n".join(" ".join(tiny_models.WORDS) for _ in range(400)) + "\n")
    return WorkloadSpec(
        task="causal-lm",
        model_config=str(place),
        dataset=str(texts),
        columns=Columns(text="text"),
        max_length=128,
        packing=True,
        precision=precision,
    )


def measured(directory: Path, precision: Precision) -> MemoryRecord:
    """A trace of the job, and trials of it under every form."""
    spec = job(directory, precision)
    machine = known_machine()
    device = machine.device
    capability = torch.cuda.get_device_capability() if device.kind == "cuda" else None
    traced = trace_workload(
        TraceRequest(
            workload=spec,
            target=TraceTarget(kind=device.kind, capability=capability),
            forms=FORMS,
            with_evaluation=False,
            working_directory=str(directory),
        )
    )
    readings = []
    with jobs.searched(
        jobs.request(spec, directory, global_batch_size=64, trials=1), directory
    ) as run:
        for form in FORMS:
            for size in SIZES:
                configuration = Configuration(
                    micro_batch_size=size, accumulation_steps=64 // size, checkpointing=form
                )
                trial = run.engine.run(configuration, "search", "memory")
                assert isinstance(trial.outcome, Measured)
                readings.append(
                    MemoryReading(configuration=configuration, memory=trial.outcome.memory)
                )
    return MemoryRecord(
        job=f"GPT-2 of 8 layers, {precision}",
        target=Target(
            name=device.name,
            kind=device.kind,
            architecture=None if capability is None else f"sm_{capability[0]}{capability[1]}",
            total_bytes=device.usable_bytes,
            total_from=device.memory_from,
            machine=machine,
        ),
        settings=from_environment(os.environ),
        traced=traced,
        readings=tuple(readings),
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[MemoryRecord]:
    found = [measured(tmp_path_factory.mktemp(p), p) for p in PRECISIONS]
    if os.environ.get("AUTOTUNE_RECORD_READINGS") == "1":
        for precision, record in zip(PRECISIONS, found, strict=True):
            name = re.sub(r"\W+", "-", record.target.name.lower())
            memory_records.write(
                record, memory_records.RECORDED / f"memory-{name}-{precision}.json"
            )
    return found


def test_allocated_bytes_are_predicted(records: list[MemoryRecord]) -> None:
    errors = [allocated for record in records for allocated, _ in record.errors()]
    sizes = sorted(abs(error) for error in errors)
    assert statistics.median(sizes) <= 0.01
    assert sizes[round(0.95 * (len(sizes) - 1))] <= 0.03
    assert min(errors) >= -0.01


def test_reserved_bytes_are_predicted(records: list[MemoryRecord]) -> None:
    errors = [reserved for record in records for _, reserved in record.errors()]
    assert max(abs(error) for error in errors) <= 0.05


def test_the_context_of_this_device_is_measured() -> None:
    device = known_machine().device
    if device.nvml_index is None:
        pytest.skip("NVML does not know this device")
    found = {r.name: r.value for r in context.measure(device, time_limit_s=60.0)}
    assert 50 * 2**20 < found[CONTEXT] < 3 * 2**30
    assert 0 < found[WORKSPACES] < 2**30
