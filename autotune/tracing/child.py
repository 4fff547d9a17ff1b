"""The child process that traces a workload which nobody has loaded yet.

`main(arguments, out)` is run by `probes.child`: the request as JSON, and a directory for scratch;
one line of JSON is the answer, a trace or an error.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO

from autotune.cost.memory import codec
from autotune.cost.memory.trace import TracedWorkload
from autotune.errors import AutotuneError
from autotune.tracing.request import TraceRequest, request_adapter
from autotune.workload.spec import WorkloadSpec

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
    out.write(json.dumps({"traced": document}, separators=(",", ":")) + "\n")
    return 0


def _traced(request: TraceRequest, scratch: Path) -> TracedWorkload:
    import torch

    torch.set_num_threads(1)
    from autotune.tracing.trace import fake_mode, trace

    mode = fake_mode()
    place = Path(request.working_directory)
    if isinstance(request.workload, WorkloadSpec) and request.workload.dataset is None:
        from autotune.tracing.made_up import make_up

        workload = make_up(request.workload, place, mode)
    else:
        from autotune.workload.load import load

        workload = load(request.workload, scratch, place)
    return trace(workload, request, scratch, mode)
