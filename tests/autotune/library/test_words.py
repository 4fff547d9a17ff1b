"""Remedies of the command line in the words of the library."""

from __future__ import annotations

import pytest

from autotune.errors import NothingFeasible, UsageError
from autotune.library.words import in_library_words


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("Raise --memory-limit.", "Raise Goal(memory_limit_bytes=…)."),
        (
            "Give more with --budget and --resume; finished trials are kept.",
            "Give more with Budget(seconds=…) and call tune() again; finished trials are kept.",
        ),
        (
            "Mend what the trials report; `autotune trial RUN NUMBER` repeats one alone.",
            "Mend what the trials report; the run's directory has the log of each.",
        ),
        ("Choose another place with --run-dir.", "Choose another place with run_dir."),
        (
            "Choose another place with --out, or replace them with --force.",
            "Choose another directory, or replace them by export(…, force=True).",
        ),
        (
            "--resume goes on with every finished trial.",
            "the same call of tune() goes on with every finished trial.",
        ),
        ("Use --global-batch-size 8 or less.", "Use Goal(global_batch_size=8) or less."),
        (
            "Set --global-batch-size, or another --processes.",
            "Set Goal(global_batch_size=…), or another number of processes.",
        ),
        ("Shorten the texts.", "Shorten the texts."),
    ],
)
def test_flags_become_arguments(remedy: str, expected: str) -> None:
    with pytest.raises(NothingFeasible) as caught, in_library_words():
        raise NothingFeasible("Nothing fits.", remedy)
    assert caught.value.remedy == expected
    assert caught.value.cause == "Nothing fits."


def test_an_error_without_a_remedy_stays_as_it_is() -> None:
    error = UsageError("No.")
    with pytest.raises(UsageError) as caught, in_library_words():
        raise error
    assert caught.value is error
