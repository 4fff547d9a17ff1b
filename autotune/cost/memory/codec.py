"""Traces to and from JSON: events as rows of numbers, names in tables beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import cast

from pydantic import JsonValue, TypeAdapter

from autotune.configuration import Checkpointing
from autotune.cost.memory.trace import (
    KINDS,
    PHASES,
    EvaluationTrace,
    Event,
    Events,
    Size,
    StepTrace,
    TracedWorkload,
    TraceFacts,
    Untraced,
)

FORMAT = 1
"""Changes whenever the form of the document does."""
_SEGMENTS = (
    "setup",
    "window",
    "first_micro_step",
    "later_micro_step",
    "first_update",
    "update",
)
_ALONE = ("one_row", "later_one_row")


def to_json(traced: TracedWorkload) -> dict[str, JsonValue]:
    """The JSON document of a traced workload; its first field is `format`."""
    names = _Table()
    steps: list[JsonValue] = [
        {
            "checkpointing": asdict(step.checkpointing),
            **{name: _rows(getattr(step, name), names) for name in _SEGMENTS},
            **{
                name: _rows(events, names)
                for name in _ALONE
                if (events := getattr(step, name)) is not None
            },
        }
        for step in traced.steps
    ]
    evaluation: JsonValue = None
    if traced.evaluation is not None:
        evaluation = {
            "step": _rows(traced.evaluation.step, names),
            "kept": _size(traced.evaluation.kept),
            "accumulation_steps": traced.evaluation.accumulation_steps,
            "num_rows": traced.evaluation.num_rows,
            "micro_batch_size": traced.evaluation.micro_batch_size,
        }
    return {
        "format": FORMAT,
        "facts": _facts_adapter().dump_python(traced.facts, mode="json"),
        "steps": steps,
        "evaluation": evaluation,
        "untraced": _untraced_adapter().dump_python(traced.untraced, mode="json"),
        "names": list(names.numbers),
    }


def from_json(document: Mapping[str, JsonValue]) -> TracedWorkload:
    """Reads what `to_json` wrote.

    Raises:
        ValueError: It is of another format, or damaged.
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"This is no trace of format {FORMAT}.")
    try:
        return _read(document)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("The trace is damaged.") from error


def _read(document: Mapping[str, JsonValue]) -> TracedWorkload:
    names = [str(name) for name in _list(document["names"])]
    steps = []
    for step in _list(document["steps"]):
        assert isinstance(step, dict)
        present = (*_SEGMENTS, *(name for name in _ALONE if name in step))
        segments = {name: _events(step[name], names) for name in present}
        form = step["checkpointing"]
        assert isinstance(form, dict)
        steps.append(StepTrace(checkpointing=Checkpointing(**form), **segments))  # type: ignore[arg-type]
    evaluation = document["evaluation"]
    return TracedWorkload(
        facts=_facts_adapter().validate_python(document["facts"]),
        steps=tuple(steps),
        evaluation=_evaluation(evaluation, names) if isinstance(evaluation, dict) else None,
        untraced=_untraced_adapter().validate_python(document["untraced"]),
    )


def _evaluation(document: Mapping[str, JsonValue], names: list[str]) -> EvaluationTrace:
    kept = _list(document["kept"])
    return EvaluationTrace(
        step=_events(document["step"], names),
        kept=Size(constant_bytes=kept[0], bytes_per_sample=kept[1]),  # type: ignore[arg-type]
        accumulation_steps=document["accumulation_steps"],  # type: ignore[arg-type]
        num_rows=document["num_rows"],  # type: ignore[arg-type]
        micro_batch_size=document["micro_batch_size"],  # type: ignore[arg-type]
    )


class _Table:
    """Numbers names in the order in which they are first met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


def _rows(events: Iterable[Event], names: _Table) -> list[JsonValue]:
    """[storage, is free, constant bytes, bytes per sample, phase, kind, module, operator] each.

    What stops to grow has the most bytes that it takes at the end.
    """
    phases = {phase: number for number, phase in enumerate(PHASES)}
    kinds = {kind: number for number, kind in enumerate(KINDS)}
    numbers, of = names.numbers, names.of
    return [
        [
            event.storage,
            int(event.is_free),
            _short(event.size.constant_bytes),
            _short(event.size.bytes_per_sample),
            phases[event.phase],
            kinds[event.kind],
            numbers[event.module] if event.module in numbers else of(event.module),
            numbers[event.operator] if event.operator in numbers else of(event.operator),
            *(() if event.size.most_bytes is None else (_short(event.size.most_bytes),)),
        ]
        for event in events
    ]


def _size(size: Size) -> list[JsonValue]:
    return [_short(size.constant_bytes), _short(size.bytes_per_sample)]


def _short(value: float) -> JsonValue:
    whole = int(value)
    return whole if whole == value else value


def _events(rows: JsonValue, names: list[str]) -> Events:
    sizes: dict[tuple[float, ...], Size] = {}
    found = []
    table = cast(
        "list[tuple[int, int, float, float, int, int, int, int, *tuple[float, ...]]]", _list(rows)
    )
    most: list[float]
    for storage, is_free, constant, per_sample, phase, kind, module, operator, *most in table:
        key = (constant, per_sample, *most)
        size = sizes.get(key)
        if size is None:
            size = sizes[key] = Size(
                constant_bytes=constant,
                bytes_per_sample=per_sample,
                most_bytes=most[0] if most else None,
            )
        found.append(
            Event(
                storage=storage,
                is_free=bool(is_free),
                size=size,
                phase=PHASES[phase],
                kind=KINDS[kind],
                module=names[module],
                operator=names[operator],
            )
        )
    return tuple(found)


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise TypeError("a list was expected")
    return value


@cache
def _facts_adapter() -> TypeAdapter[TraceFacts]:
    return TypeAdapter(TraceFacts)


@cache
def _untraced_adapter() -> TypeAdapter[tuple[Untraced, ...]]:
    return TypeAdapter(tuple[Untraced, ...])
