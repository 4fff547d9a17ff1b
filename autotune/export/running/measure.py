"""The child process in which a script is run again and timed, or which starts its ranks.

Run as `python -m autotune.export.running.measure DESCRIPTOR` by `autotune.export.running.rerun`.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from autotune.export.child import Channel
from autotune.export.running import ranks
from autotune.export.running import seen as accounts
from autotune.export.running.script_check import accelerator_flags, trainer_flags
from autotune.export.running.seen import Seen
from autotune.units import counted


def run(request: dict[str, JsonValue]) -> JsonValue:
    """Runs the script and returns its steps, or `{"failure": message}`.

    A machine with fewer devices than ranks is told as `{"num_devices": number}`.
    """
    num_steps, num_ranks = int(str(request["num_steps"])), int(str(request["num_ranks"]))
    num_devices = ranks.count_devices(str(request["device_type"])) if num_ranks > 1 else None
    if num_devices is not None and num_devices < num_ranks:
        return {"num_devices": num_devices}
    flags = trainer_flags if request["driver"] == "trainer" else accelerator_flags
    output = Path(str(request["output"]))
    script, hook = Path(str(request["script"])), request["hook"]
    found = (
        _alone(script, flags(num_steps, output), None if hook is None else str(hook))
        if num_ranks == 1
        else _together(script, flags(num_steps, output), num_ranks, hook, output)
    )
    if isinstance(found, str):
        return {"failure": found}
    for account in found:
        if account.world_size != num_ranks:
            trained = counted(account.world_size, "rank")
            return {"failure": f"it trained on {trained} and not {num_ranks}"}
        made = len(account.step_rows)
        if made != num_steps:
            return {"failure": f"it made {made} optimizer steps and not {num_steps}"}
    slowest = accounts.slowest(found)
    return {
        "world_size": num_ranks,
        "step_times_s": list(slowest.step_times_s),
        "step_rows": list(accounts.rows(found)),
        "losses": list(accounts.losses(found)),
        "extra": found[0].extra,
    }


def _alone(script: Path, flags: list[str], hook: str | None) -> list[Seen] | str:
    """What the script did in this process, or why it failed."""
    from autotune.export.running.observe import hooked, run_script, seen, watching

    try:
        with hooked(hook) as extra, watching() as observed:
            run_script(script, flags)
    except Exception as error:  # noqa: BLE001  whatever a script raises is an answer
        traceback.print_exc()
        return str(error).strip() or type(error).__name__
    return [replace(seen(observed), extra=extra)]


def _together(
    script: Path, flags: list[str], num_ranks: int, hook: JsonValue, scratch: Path
) -> list[Seen] | str:
    """What each rank did, or why the first of them failed."""
    (result,) = ranks.run(
        [ranks.RankedRun(script=script, flags=tuple(flags))],
        num_ranks=num_ranks,
        scratch=scratch,
        hook=None if hook is None else str(hook),
    )
    return result.failure if result.failure is not None else list(result.accounts)


def main() -> None:
    """Answers the one request on the channel."""
    channel = Channel(int(sys.argv[1]))
    assert isinstance(channel.request, dict)
    channel.stage(f"running {Path(str(channel.request['script'])).name}")
    channel.result(run(channel.request))


if __name__ == "__main__":
    main()
