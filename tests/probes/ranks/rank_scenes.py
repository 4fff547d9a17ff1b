"""What ranks do in tests: `python -m tests.probes.ranks.rank_scenes DIRECTORY SCENE …`.

Each writes its process id, variables and arguments to `DIRECTORY/rankN.json` first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from probes.lifetime import end_at_once

ENDLESS_S = 120.0


def main() -> int:
    directory, scene = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    document = {"pid": os.getpid(), "arguments": sys.argv[1:], "variables": dict(os.environ)}
    unfinished = directory / f"rank{rank}.part"
    unfinished.write_text(json.dumps(document))
    unfinished.replace(directory / f"rank{rank}.json")
    # One write, lest the ranks write into each other's lines.
    sys.stdout.write(f"rank {rank} says so\n")
    match scene:
        case "wait":
            time.sleep(ENDLESS_S)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(ENDLESS_S)
        case "fail":
            if rank == int(os.environ["WORLD_SIZE"]) - 1:
                # The others have begun, and said so, before they are ended with this one.
                while not all((directory / f"rank{n}.json").exists() for n in range(rank)):
                    time.sleep(0.02)
                return 3
            time.sleep(ENDLESS_S)
        case "together":
            import torch
            import torch.distributed as dist

            from probes.ranks.launch import rank_store

            dist.init_process_group("gloo")
            total = torch.ones(1)
            dist.all_reduce(total)
            dist.destroy_process_group()
            # The store outlives the group.
            store = rank_store("scene", timeout_s=30)
            store.set(f"said/{rank}", f"{total.item():g} from {rank}")
            said = [store.get(f"said/{other}").decode() for other in range(2)]
            (directory / f"said{rank}.json").write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    end_at_once(main())
