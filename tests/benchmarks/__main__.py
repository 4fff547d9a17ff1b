"""Runs benchmarks and prints what they found: `python -m tests.benchmarks [NAME …] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import harness

SETS = {
    "job": ("overhead", "promise", "regret", "rivals"),
    "library": ("call",),
    "ranks": ("averaging", "links", "distributing"),
    "memory": ("memory", "estimate"),
    "tui": ("terminal",),
}
"""Benchmarks that belong together; the name of a set stands for all of it."""
DEFAULT = "job"
"""The set that runs where nothing is named."""


def main() -> int:
    """Returns 1 where a benchmark failed, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measures what is promised, on this machine, which should do nothing else.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="; ".join(f"{name}: {', '.join(names)}" for name, names in SETS.items())
        + f"; {DEFAULT} without one",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run with tiny budgets")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"), metavar="DIR")
    parser.add_argument(
        "--record",
        action="store_true",
        help="store the measured grids as landscapes, which the tests of the search replay",
    )
    options = parser.parse_args()
    known = [name for names in SETS.values() for name in names]
    names = {n for asked in options.names or [DEFAULT] for n in SETS.get(asked, (asked,))}
    unknown = sorted(names - {*known})
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    if options.record and options.quick:
        parser.error("a smoke run is not worth recording: leave out --quick or --record")
    with tempfile.TemporaryDirectory(prefix="autotune-benchmarks-") as directory:
        _set_environment(Path(directory))
        context = harness.Context(
            directory=Path(directory), quick=options.quick, record=options.record
        )
        results: list[harness.Result] = []
        for name in known:
            if name not in names:
                continue
            benchmark = importlib.import_module(f"tests.benchmarks.{name}")
            results.append(harness.run(name, benchmark.run, context))
            # What was found is kept, whatever becomes of the rest.
            text = harness.write(options.out, results, quick=options.quick)
    print(text)
    verdicts = [row.verdict for result in results for row in result.report.rows]
    return 1 if "failed" in verdicts else 0


def _set_environment(directory: Path) -> None:
    """Every child finds the same small world: no hub, and caches that are gone afterwards."""
    os.environ.update(
        # Some children run modules of this package.
        PYTHONPATH=str(Path(__file__).parents[2]),
        HF_HOME=str(directory / "cache"),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TOKENIZERS_PARALLELISM="false",
    )


if __name__ == "__main__":
    sys.exit(main())
