"""A `pynvml` module that answers from a recorded scene: devices as plain JSON objects.

A query that the scene does not mention is not supported, as on many real devices. Only what the
probes ask for is there; another function is missing, as in an old binding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

CODES = {
    "InvalidArgument": 2,
    "NotSupported": 3,
    "NoPermission": 4,
    "NotFound": 6,
    "DriverNotLoaded": 9,
    "LibraryNotFound": 12,
    "FunctionNotFound": 13,
    "GpuIsLost": 15,
    "LibRmVersionMismatch": 18,
    "Unknown": 999,
}
MIB = 2**20


class NVMLError(Exception):
    """What every query of the binding raises."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def scene_binding(scene: Mapping[str, Any]) -> ModuleType:
    """The binding of one scene, in the form of the recorded cases."""
    return _Scene(scene).module()


class _Scene:
    def __init__(self, scene: Mapping[str, Any]) -> None:
        self.devices: Sequence[Mapping[str, Any]] = scene["devices"]
        self.init_error: str | None = scene.get("init_error")
        self.is_bytes: bool = scene.get("bytes", False)
        self.num_started = 0

    def module(self) -> ModuleType:
        module = ModuleType("pynvml")
        functions: dict[str, Callable[..., Any]] = {
            "nvmlInit": self.start,
            "nvmlShutdown": self.stop,
            "nvmlSystemGetDriverVersion": lambda: self.text("600.00"),
            "nvmlDeviceGetCount": lambda: len(self.devices),
            "nvmlDeviceGetHandleByIndex": self.handle,
            "nvmlDeviceGetName": lambda d: self.text(recall(d, "name")),
            "nvmlDeviceGetUUID": lambda d: self.text(recall(d, "uuid")),
            "nvmlDeviceGetMemoryInfo": lambda d: SimpleNamespace(
                **{name: int(mib * MIB) for name, mib in recall(d, "memory").items()}
            ),
            "nvmlDeviceGetUtilizationRates": lambda d: SimpleNamespace(gpu=recall(d, "util")),
            "nvmlDeviceGetPowerUsage": lambda d: recall(d, "power_mw"),
            "nvmlDeviceGetTemperature": lambda d, sensor: recall(d, "temp"),
            "nvmlDeviceGetMigMode": lambda d: [recall(d, "mig_mode")] * 2,
            "nvmlDeviceGetMaxMigDeviceCount": lambda d: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self.instance,
            "nvmlDeviceGetComputeRunningProcesses": lambda d: [
                SimpleNamespace(
                    pid=process["pid"],
                    usedGpuMemory=None if process["mib"] is None else process["mib"] * MIB,
                )
                for process in recall(d, "procs")
            ],
        }
        for name, function in functions.items():
            setattr(module, name, function)
        module.NVMLError = NVMLError  # type: ignore[attr-defined]
        module.scene = self  # type: ignore[attr-defined]
        return module

    def start(self) -> None:
        if self.init_error:
            raise NVMLError(CODES[self.init_error])
        self.num_started += 1

    def stop(self) -> None:
        self.num_started -= 1

    def text(self, value: str) -> str | bytes:
        return value.encode() if self.is_bytes else value

    def handle(self, index: int) -> Mapping[str, Any]:
        if self.devices[index].get("lost"):
            raise NVMLError(CODES["GpuIsLost"])
        return self.devices[index]

    def instance(self, device: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        instances = device.get("mig", [])
        if number >= len(instances) or instances[number] is None:
            raise NVMLError(CODES["NotFound"])
        found: Mapping[str, Any] = instances[number]
        return found


def recall(device: Mapping[str, Any], field: str) -> Any:
    value = device.get(field, {"error": "NotSupported"})
    if isinstance(value, dict) and "error" in value:
        raise NVMLError(CODES[value["error"]])
    return value
