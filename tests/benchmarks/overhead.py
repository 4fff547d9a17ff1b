"""What a further trial costs beyond its own steps, against a cold start."""

from __future__ import annotations

import time

from autotune.errors import AutotuneError
from autotune.outcome import Stopped
from tests.benchmarks.harness import Context, Reading, Report, Row, say
from tests.benchmarks.tuned import tuned_run, workers

TARGET_S = 0.5
NUM_COLD_STARTS = 3


def run(context: Context) -> Report:
    """Reads the overhead of a real run's trials, and starts its worker anew a few times."""
    tuned = tuned_run(context)
    searched = [t for t in tuned.view.trials if t.purpose in ("baseline", "search")]
    # The first trial may pay for what the later ones find in caches.
    further = [t for t in searched[1:] if t.measured is not None]
    overheads_s = [t.overhead_s for t in further if t.overhead_s is not None]
    if not overheads_s:
        raise AutotuneError("The run measured no further trial, so that there is no overhead.")
    say("starts workers anew")
    cold_starts_s = []
    with workers(tuned, context, tuned.request.driver) as pool:
        for _ in range(1 if context.quick else NUM_COLD_STARTS):
            start_s = time.perf_counter()
            worker = pool.fresh()
            cold_starts_s.append(time.perf_counter() - start_s)
            assert not isinstance(worker, Stopped)
            worker.close()
    overhead = Reading.of_samples(overheads_s, "s")
    cold = Reading.of_samples(cold_starts_s, "s")
    walls_s = Reading.of_samples([t.wall_s for t in further if t.wall_s is not None], "s")
    return Report(
        rows=(
            Row(
                what="a further trial beyond its own steps",
                reading=overhead,
                target=f"median below {TARGET_S} s",
                verdict="passed" if overhead.value < TARGET_S else "failed",
            ),
            Row(what="a cold start of a worker", reading=cold),
            Row(what="a whole further trial", reading=walls_s),
        ),
        details={"overheads_s": list(overheads_s), "cold_starts_s": list(cold_starts_s)},
    )
