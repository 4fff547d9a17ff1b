"""What the library call costs beyond the steps of its trials and the starts of its processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.folding import fold
from autotune.journal import read
from autotune.run_directory import RunDirectory
from tests.benchmarks.harness import Context, Reading, Report, Row, Verdict, say
from tests.benchmarks.jobs import DATA, minilm

MOST_OVERHEAD_S = 10.0
MOST_STARTS = 6
MOST_MORE_MEMORY_PERCENT = 10.0
TIME_LIMIT_S = 900.0


def run(context: Context) -> Report:
    """Tunes a live Trainer in a script of its own, and starts its libraries a few times."""
    say("tunes a live Trainer of MiniLM on reviews")
    out = context.directory / "call.json"
    place = context.directory / "call"
    place.mkdir()
    words = ["-m", "tests.benchmarks.live_call", minilm(), str(DATA / "reviews-train.csv")]
    ended = subprocess.run(
        [sys.executable, *words, str(place), str(out)],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    if ended.returncode:
        raise AutotuneError(f"The script failed: {ended.stderr[-500:]}")
    found = json.loads(out.read_text())
    view = fold(read(RunDirectory(Path(found["run"])).journal))
    steps_s = sum((t.wall_s or 0.0) - (t.overhead_s or 0.0) for t in view.trials)
    load_s = view.workload.load_s if view.workload is not None else 0.0
    overhead_s = found["wall_s"] - steps_s - found["num_starts"] * load_s
    more = 100 * (found["peak_bytes"] / found["before_bytes"] - 1)
    return Report(
        rows=(
            _row(
                "tune(trainer) beyond its trials' steps and cold starts",
                Reading.of_samples([overhead_s], "s"),
                f"at most {MOST_OVERHEAD_S:g} s",
                is_reached=overhead_s <= MOST_OVERHEAD_S,
                note=f"{found['wall_s']:.1f} s in all, {steps_s:.1f} s of steps, "
                f"{found['num_starts']} cold starts of {load_s:.1f} s",
            ),
            _row(
                "cold starts of its processes",
                Reading.of_samples([float(found["num_starts"])], "starts"),
                f"at most {MOST_STARTS}",
                is_reached=found["num_starts"] <= MOST_STARTS,
            ),
            _row(
                "peak memory of the calling process over its level before",
                Reading.of_samples([more], "%"),
                f"at most {MOST_MORE_MEMORY_PERCENT:g} %",
                is_reached=more <= MOST_MORE_MEMORY_PERCENT,
            ),
        ),
        details={"found": found, "steps_s": steps_s, "load_s": load_s},
    )


def _row(what: str, reading: Reading, target: str, *, is_reached: bool, note: str = "") -> Row:
    verdict: Verdict = "passed" if is_reached else "failed"
    return Row(what=what, reading=reading, target=target, verdict=verdict, note=note)
