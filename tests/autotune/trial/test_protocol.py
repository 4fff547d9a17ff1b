"""What is said on the channel comes out as it went in."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from autotune.configuration import Checkpointing, Configuration
from autotune.outcome import Failed, OutOfMemory, Phases, Speed
from autotune.trial.protocol import (
    CannotLoad,
    CheckParity,
    CheckpointingTried,
    Command,
    ContinueSpeed,
    Envelope,
    MeasureMemory,
    MeasureSpeed,
    Message,
    OpenSpeed,
    ParityFound,
    Progress,
    SpeedMeasured,
    TryCheckpointing,
    envelope_adapter,
)
from autotune.workload.facts import CheckpointingForm
from tests.autotune.trial.fake_worker import measured, ready

CONFIGURATION = Configuration(
    micro_batch_size=2, accumulation_steps=3, checkpointing=Checkpointing(every_n_layers=2)
)
SPEED = Speed(
    step_times_s=(0.5, 0.25), step_samples=(6, 5), step_tokens=(60, 50), losses=(1.5, 1.25)
)
BODIES: tuple[Command | Message, ...] = (
    MeasureMemory(configuration=CONFIGURATION, limit_bytes=10, memory_fence_bytes=20),
    MeasureSpeed(configuration=CONFIGURATION, min_steps=1, max_steps=2, max_seconds=1.5),
    OpenSpeed(configuration=CONFIGURATION, repair_loss=True),
    ContinueSpeed(num_steps=3),
    CheckParity(num_rows=8, accumulation_steps=4),
    TryCheckpointing(every_n_layers=(3, 2, 1)),
    ready(),
    CannotLoad(error="WorkloadError", cause="No column.", remedy=None),
    measured(),
    SpeedMeasured(
        speed=SPEED,
        phases=Phases(data_s=0.1, forward_s=0.2, backward_s=0.3, optimizer_s=0.4),
        steps_s=1.0,
    ),
    SpeedMeasured(speed=None, phases=None, steps_s=1.0),
    ParityFound(
        losses=(0.5, 2.0),
        gradient_norms=(1.0, 4.0),
        repaired_losses=(0.5, 0.5),
        repaired_gradient_norms=None,
    ),
    CheckpointingTried(
        saved_bytes_without=9,
        forms=(
            CheckpointingForm(
                every_n_layers=1, offload=False, is_available=False, saved_bytes=None, reason="no"
            ),
        ),
    ),
    OutOfMemory(where="device", cause="full", needed_at_least_bytes=5, is_certain=False),
    Failed(cause="shape", remedy="none"),
    Progress(stage="speed", step=1, num_steps=2, samples_per_s=3.5),
)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_everything_travels_as_one_line(body: Command | Message) -> None:
    envelope = Envelope(body=body, log="a/log", number=7, is_last=True)
    line = envelope_adapter().dump_json(envelope)
    assert b"\n" not in line
    assert envelope_adapter().validate_json(line) == envelope


def test_words_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ValidationError):
        envelope_adapter().validate_json(json.dumps({"body": {"kind": "explode"}}))
    with pytest.raises(ValidationError):
        envelope_adapter().validate_json(json.dumps({"body": {"kind": "continue_speed"}}))
