"""What the machine can do. Measures, never decides."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.known import known_machine, run_in_child
    from probes.machine import (
        Device,
        DeviceProcess,
        Finding,
        Host,
        Link,
        Machine,
        Reading,
        machine_adapter,
    )
    from probes.survey import SurveyProgress

__all__ = [
    "Device",
    "DeviceProcess",
    "Finding",
    "Host",
    "Link",
    "Machine",
    "Reading",
    "SurveyProgress",
    "known_machine",
    "machine_adapter",
    "run_in_child",
]

_HOMES = {"known_machine": "known", "run_in_child": "known", "SurveyProgress": "survey"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"probes.{_HOMES.get(name, 'machine')}"), name)
