"""The recommendation as a notebook shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from autotune.configuration import Configuration
from autotune.export.document import (
    MEASURED_APART,
    Readings,
    RecommendationDocument,
    are_measured_apart,
)
from autotune.units import format_bytes, format_rate, format_seconds

_ROWS = (
    "micro-batch size",
    "accumulation steps",
    "global batch size",
    "checkpointing",
    "samples/s",
    "step",
    "peak memory",
)


def table(evidence: RecommendationDocument, chosen: Configuration, summary: str) -> str:
    """Chosen configuration and baseline side by side, then the reasons. Uses no script."""
    answer = evidence.recommendation
    readings = next(
        (c.measured for c in (answer, *answer.alternatives) if c.configuration == chosen), None
    )
    columns = [_column(chosen, readings)]
    heads = ["recommended" if chosen == answer.configuration else "chosen alternative"]
    if answer.baseline.configuration != chosen:
        columns.append(_column(answer.baseline.configuration, answer.baseline.measured))
        heads.append("baseline")
    head = "".join(f"<th>{escape(text)}</th>" for text in ("", *heads))
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(c[i])}</td>' for c in columns)}</tr>"
        for i, name in enumerate(_ROWS)
    )
    apart = f"<p>{MEASURED_APART}</p>" if are_measured_apart(evidence, chosen) else ""
    return (
        f"<p><b>autotune</b> {escape(summary)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{apart}"
        f"{_list('Why', answer.reasons)}{_list('Not covered by this evidence', answer.not_covered)}"
    )


def _column(configuration: Configuration, readings: Readings | None) -> tuple[str, ...]:
    return (
        str(configuration.micro_batch_size),
        str(configuration.accumulation_steps),
        str(configuration.global_batch_size),
        str(configuration.checkpointing),
        format_rate(readings.samples_per_s) if readings else "–",
        format_seconds(readings.step_s) if readings else "–",
        format_bytes(readings.memory.total_bytes) if readings else "–",
    )


def _list(title: str, entries: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(entry)}</li>" for entry in entries)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>" if items else ""
