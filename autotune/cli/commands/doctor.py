"""`autotune doctor`: a block for a bug report. Works where torch, the driver or a file is broken.

Nothing secret is printed: of variables whose name or value may hold a secret, only that they are
set.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata

import typer

from autotune.cli import documents, options, settings, summary
from autotune.cli.commands.probe import findings
from autotune.cli.declare import settings as declared_settings
from autotune.cli.startup import check_installation
from autotune.display import output, quantities
from autotune.errors import AutotuneError, ExitCode
from autotune.units import format_bytes
from probes.child import run_module
from probes.devices import nvml
from probes.devices.joined import assumed
from probes.machine import machine_adapter
from probes.memory import inherited_limits
from probes.present import present

TORCH_TIME_LIMIT_S = 120.0
_DISTRIBUTIONS = (
    "autotune-advisor",
    "torch",
    "transformers",
    "accelerate",
    "optuna",
    "datasets",
    "peft",
    "tokenizers",
    "huggingface-hub",
    "safetensors",
    "numpy",
    "pyarrow",
    "pydantic",
    "psutil",
    "nvidia-ml-py",
    "typer",
    "rich",
)
_PREFIXES = (
    "AUTOTUNE_",
    "ACCELERATE_",
    "CUDA_",
    "CUBLAS_",
    "FSDP_",
    "GLOO_",
    "HF_",
    "HIP_",
    "HUGGINGFACE_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "PYTORCH_",
    "ROCR_",
    "SLURM_",
    "TORCH",
    "TRANSFORMERS_",
    "XDG_CACHE_HOME",
)
_NAMES = (
    "CI",
    "COLUMNS",
    "FORCE_COLOR",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LOCAL_RANK",
    "MALLOC_ARENA_MAX",
    "MASTER_ADDR",
    "NO_COLOR",
    "PYTHONPATH",
    "RANK",
    "TERM",
    "TMPDIR",
    "TOKENIZERS_PARALLELISM",
    "VIRTUAL_ENV",
    "WORLD_SIZE",
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_NOT_SECRET = ("TOKENIZERS_PARALLELISM",)
_IN_URL = re.compile(
    r"(?<=://)[^/@\s]+(?=@)|(?<=[?&])(?:password|token|key)=[^&\s]*", re.IGNORECASE
)


def run(context: typer.Context, chosen: options.Doctor) -> int:
    """Runs the command."""
    report = _report()
    if chosen.json:
        output.document(report)
    else:
        output.data(_text(report))
    return ExitCode.OK


def _report() -> dict[str, object]:
    view = nvml.look()
    machine = present(view, assumed(view, os.environ))
    return {
        "schema": documents.SCHEMA,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        "torch": _torch(),
        "nvml": {
            "driver": view.driver,
            "num_devices": len(view.devices),
            "fault": view.fault.cause if view.fault else None,
        },
        "machine": machine_adapter().dump_python(machine, mode="json"),
        "limits": inherited_limits(),
        "environment": environment(os.environ),
        "settings": _settings(),
        "problems": _problems(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> dict[str, object]:
    result = run_module("autotune.cli.torch_report", [], time_limit_s=TORCH_TIME_LIMIT_S)
    for line in result.lines:
        try:
            return dict(json.loads(line))
        except ValueError:
            continue
    if result.is_timed_out:
        return {"error": f"loading it took longer than {TORCH_TIME_LIMIT_S:g} s"}
    return {"error": result.last_error or f"its process ended with code {result.returncode}"}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what training does, without secrets."""
    shown = {}
    for name, value in sorted(variables.items()):
        if name in _NAMES or name.startswith(_PREFIXES):
            is_secret = _SECRET_NAME.search(name) and name not in _NOT_SECRET
            shown[name] = "(set)" if is_secret else _IN_URL.sub("…", value)
    return shown


def _settings() -> str | None:
    try:
        path = settings.find_here()
    except AutotuneError:
        # It is among the problems.
        return None
    return str(path) if path else None


def _problems() -> list[str]:
    found = []
    try:
        check_installation()
    except AutotuneError as error:
        found.append(str(error))
    try:
        path = settings.find_here()
        if path is not None:
            settings.load(path, declared_settings(options.ALL))
    except AutotuneError as error:
        found.append(str(error))
    return found


def _text(report: Mapping[str, object]) -> str:
    machine = machine_adapter().validate_python(report["machine"])
    rows = [
        ("python", f"{report['python']}  {report['executable']}"),
        ("platform", str(report["platform"])),
        *((name, value or "not installed") for name, value in _items(report["versions"])),
        ("torch says", _words(report["torch"])),
        ("NVML says", _words(report["nvml"])),
        ("cores", f"{machine.host.num_cores:g}"),
        (
            "memory",
            f"{format_bytes(machine.host.available_bytes)} available of "
            f"{format_bytes(machine.host.total_bytes)} ({machine.host.limit_from})",
        ),
        *((f"{d.kind}:{d.index}", quantities.device(d)) for d in machine.devices),
        *((name, format_bytes(int(value))) for name, value in _items(report["limits"])),
        ("settings", str(report["settings"] or "none")),
        *((name, value) for name, value in _items(report["environment"])),
    ]
    lines = summary.table([], [(name, output.one_line(value)) for name, value in rows])
    problems = report["problems"]
    lines += [f"▲ {output.one_line(p)}" for p in (problems if isinstance(problems, list) else [])]
    return "\n".join(["```text", *lines, *findings(machine.findings), "```"])


def _items(value: object) -> list[tuple[str, str]]:
    return [(str(k), str(v or "")) for k, v in value.items()] if isinstance(value, dict) else []


def _words(value: object) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in _items(value) if text)
