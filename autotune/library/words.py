"""Errors in the words of the library: what the command line calls by flags has other names here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from autotune.errors import AutotuneError

_WORDS = (
    (r"`?autotune trial RUN NUMBER`? repeats one alone", "the run's directory has the log of each"),
    (r"--budget and --resume", "Budget(seconds=…) and call tune() again"),
    (r"--resume goes on", "the same call of tune() goes on"),
    (
        r"(?:go on with it by |by )?`?autotune tune --resume[^`]*`",
        "the same call of tune() goes on",
    ),
    (r"--resume\b", "the same call of tune()"),
    (r"--memory-limit\b", "Goal(memory_limit_bytes=…)"),
    (r"--global-batch-size (\d+)", r"Goal(global_batch_size=\1)"),
    (r"--global-batch-size\b", "Goal(global_batch_size=…)"),
    (r"another --processes\b", "another number of processes"),
    (r"--budget\b", "Budget(seconds=…)"),
    (r"--trials\b", "Budget(trials=…)"),
    (r"with --max-length\b", "before they reach the Trainer"),
    (r"\bplace with --out\b", "directory"),
    (r"\breplace them with --force\b", "replace them by export(…, force=True)"),
    (r"--precision fp32\b", "no bf16 or fp16"),
    (r"--(run-dir|name|out|storage|sampler|seed|force|fresh)\b", r"\1"),
)


@contextmanager
def in_library_words() -> Iterator[None]:
    """Raises errors of ours again, with remedies that can be followed in Python."""
    try:
        yield
    except AutotuneError as error:
        cause, remedy = _translated(error.cause), _translated(error.remedy)
        if (cause, remedy) == (error.cause, error.remedy):
            raise
        raise type(error)(cause or error.cause, remedy) from error


def _translated(text: str | None) -> str | None:
    for pattern, words in _WORDS if text is not None else ():
        text = re.sub(pattern, words, text or "")
    return None if text is None else text.replace("run-dir", "run_dir")
