"""One rank of scripts that several ranks run together.

Run as `python -m autotune.export.running.rank DIRECTORY` by `ranks` beside it; the directory holds
the request and takes the accounts.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from autotune.export.running.observe import hooked, keep_caches, run_script, seen, watching
from autotune.export.running.ranks import REQUEST, Caches, account_name, failure_name
from autotune.export.running.seen import as_json
from probes.lifetime import end_at_once


def main() -> None:
    """Runs every script of the request; ends at the first that fails."""
    place = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    request = json.loads((place / REQUEST).read_text(encoding="utf-8"))
    if request["caches"] is not None:
        caches = request["caches"]
        keep_caches(Caches(scratch=Path(caches["scratch"]), is_hub=caches["is_hub"]))
    with _one_group():
        for number, item in enumerate(request["runs"]):
            try:
                with (
                    hooked(request["hook"]) as extra,
                    watching(recomputation=request["watch_recomputation"]) as observed,
                ):
                    run_script(Path(item["script"]), item["flags"])
            except Exception as error:  # noqa: BLE001  whatever a script raises is an answer
                traceback.print_exc()
                _tell(place / failure_name(number, rank), _failure(rank, error))
                # The other ranks may be waiting for this one: nothing is taken down in order.
                end_at_once(1)
            _tell(place / account_name(number, rank), as_json(replace(seen(observed), extra=extra)))
    end_at_once(0)


def _failure(rank: int, error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return json.dumps({"rank": rank, "failure": text, "at_unix_s": time.time()})


def _tell(path: Path, text: str) -> None:
    """Writes a whole file or none."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


@contextlib.contextmanager
def _one_group() -> Iterator[None]:
    """Keeps the process group from one script to the next, and takes it down at the end.

    A script may take its group down, but a second one cannot be made through the same store.
    """
    destroy = torch.distributed.destroy_process_group
    torch.distributed.destroy_process_group = lambda group=None: None
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy
        if torch.distributed.is_initialized():
            destroy()


if __name__ == "__main__":
    main()
