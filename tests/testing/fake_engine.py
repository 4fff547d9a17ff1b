"""An engine that measures nothing: writes a story into the journal and obeys control files.

`AUTOTUNE_TEST_STORY` says how the run goes: `good`, `slow` (trials until it is stopped), `dies`,
`infeasible`, `unconfirmed` or `deaf` (hears no request).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from autotune import control, lease
from autotune.configuration import Configuration
from autotune.events import RunEnded, SearchEnded, TrialFinished, TrialProgressed, TrialStarted
from autotune.journal import Journal
from autotune.outcome import Outcome, Stopped
from autotune.run_directory import RunDirectory
from tests.testing import runs

_EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def start_engine(
    run: RunDirectory, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """What `autotune.starting.start_engine` does, for this engine."""
    with run.engine_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.testing.fake_engine", str(run.path.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )


def main(path: Path, story: str) -> int:
    """Plays the story in the run directory."""
    run = RunDirectory(path)
    lease.take(run.lease)
    try:
        with Journal(run.journal, run.progress) as journal:
            return _play(run, journal, story)
    finally:
        lease.release(run.lease)


def _play(run: RunDirectory, journal: Journal, story: str) -> int:
    resumed = bool(journal.records)
    if resumed:
        journal.append(runs.started(run.name, resumed=True))
    match story:
        case "good":
            for event in [] if resumed else runs.searching(run.name):
                journal.append(event)
            for event in runs.ending(run.name, run.out):
                journal.append(event)
            return 0
        case "dies":
            for event in runs.searching(run.name):
                journal.append(event)
            print("\x1b[31mlast words\x1b[0m of the engine", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            return 1
        case "infeasible" | "unconfirmed":
            for event in runs.searching(run.name):
                journal.append(event)
            code = 4 if story == "infeasible" else 5
            journal.append(
                RunEnded(
                    reason=story, exit_code=code, cause="It does not fit.", remedy="Allow 5 GiB."
                )
            )
            return code
        case _:
            return _trials_until_stopped(run, journal, story)


def _trials_until_stopped(run: RunDirectory, journal: Journal, story: str) -> int:
    if story == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for event in runs.opening(run.name):
        journal.append(event)
    stopped_by: str | None = None
    for number in range(1000):
        document = Configuration(micro_batch_size=1, accumulation_steps=number + 1).to_json()
        purpose = "baseline" if number == 0 else "search"
        journal.append(
            TrialStarted(number=number, purpose=purpose, configuration=document, why="it is next")  # type: ignore[arg-type]
        )
        outcome: Outcome = runs.measured(10.0 + number)
        for step in range(8):
            journal.append(
                TrialProgressed(number=number, stage="memory", step=step, samples_per_s=10.0)
            )
            time.sleep(0.1)
            requests = [] if story == "deaf" else control.take(run.control)
            for request in requests:
                stopped_by = request.text
                if request.verb == "stop_now":
                    outcome = Stopped(cause=f"Stopped by {stopped_by}.")
            if isinstance(outcome, Stopped):
                break
        journal.append(
            TrialFinished(
                number=number,
                purpose=purpose,  # type: ignore[arg-type]
                configuration=document,  # type: ignore[arg-type]
                outcome=outcome,
                wall_s=1.5,
                overhead_s=0.1,
            )
        )
        if stopped_by is not None:
            break
    journal.append(SearchEnded(reason="it was stopped", num_untried=1))
    code = _EXIT_CODES[stopped_by or "SIGINT"]
    journal.append(RunEnded(reason="stopped", exit_code=code, cause="The run was stopped."))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), os.environ.get("AUTOTUNE_TEST_STORY", "good")))
