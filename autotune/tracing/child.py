"""The child process that traces a workload which nobody has loaded yet.

`main(arguments, out)` is run by `probes.child`: the request as JSON, and a directory for scratch;
the answer is a line of JSON with an error, or the word `TRACED` and a line with the trace.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO

from autotune.cost.memory import codec
from autotune.cost.memory.trace import TracedWorkload
from autotune.errors import AutotuneError
from autotune.tracing.request import TraceRequest, request_adapter
from autotune.workload.spec import WorkloadSpec

TRACED = "traced"
_OF_NO_USE = (
    *("datasets", "pandas", "pyarrow", "scipy", "sklearn"),
    *("codecarbon", "comet_ml", "mlflow", "tensorboard", "tensorboardX", "wandb"),
    *("PIL", "matplotlib", "torchvision", "tensorflow", "flax", "jax"),
)
"""Packages that a model of text or images can be built and stepped without."""
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that hide every device of a kind where they are empty."""


def main(arguments: list[str], out: IO[str]) -> int:
    """Traces and answers; returns the exit code."""
    for name in DEVICES:
        # Nothing here may touch a device, not even to look whether there is one.
        os.environ[name] = ""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    request = request_adapter().validate_json(arguments[0])
    try:
        document = codec.to_json(_traced(request, Path(arguments[1])))
    except AutotuneError as error:
        said = {"error": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        out.write(json.dumps(said) + "\n")
        return 0
    out.write(f"{TRACED}\n{json.dumps(document, separators=(',', ':'))}\n")
    return 0


def _leave_out(*packages: str) -> None:
    """Keeps libraries out that training takes in where it finds them, and a trace has no use for.

    They take longer to come in than a step takes to trace.
    """
    for name in packages:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _traced(request: TraceRequest, scratch: Path) -> TracedWorkload:
    spec = request.workload
    is_made_up = isinstance(spec, WorkloadSpec) and spec.dataset is None and not spec.demo
    if isinstance(spec, WorkloadSpec) and is_made_up and not spec.trust_remote_code:
        _leave_out(*_OF_NO_USE, *(("peft",) if spec.lora is None else ()))
    import torch

    torch.set_num_threads(1)
    from autotune.tracing.parallel import trace_in_halves
    from autotune.tracing.trace import fake_mode

    mode = fake_mode()
    place = Path(request.working_directory)
    if isinstance(spec, WorkloadSpec) and is_made_up:
        from autotune.tracing.made_up import make_up

        workload = make_up(spec, place, mode)
    else:
        from autotune.workload.load import load

        workload = load(request.workload, scratch, place, trains_here=False)
    return trace_in_halves(workload, request, scratch, mode)
