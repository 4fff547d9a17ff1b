"""What torch says of itself, for `autotune doctor`. Runs in a child: torch may be broken."""

from __future__ import annotations

import json
import time
from typing import TextIO


def main(arguments: list[str], out: TextIO) -> int:
    """Loads torch and writes one JSON object to the channel."""
    start_s = time.perf_counter()
    import torch

    loaded_s = time.perf_counter() - start_s
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    report = {
        "version": torch.__version__,
        "import_s": round(loaded_s, 2),
        "built_for_cuda": torch.version.cuda,
        "built_for_hip": getattr(torch.version, "hip", None),
        "accelerator": str(accelerator) if accelerator is not None else None,
        "num_devices": torch.accelerator.device_count() if accelerator is not None else 0,
        "num_threads": torch.get_num_threads(),
        "distributed": torch.distributed.is_available(),
    }
    out.write(json.dumps(report) + "\n")
    out.flush()
    return 0
