"""The law of memory, on traces made by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from autotune.configuration import NO_CHECKPOINTING
from autotune.cost.memory import codec
from autotune.cost.memory.evaluation import evaluation_law
from autotune.cost.memory.law import law_of, static_sizes, training_law
from autotune.cost.memory.trace import (
    EvaluationTrace,
    Event,
    Kind,
    Phase,
    Size,
    StepTrace,
    TracedWorkload,
    TraceFacts,
    Untraced,
    replay,
)


def came(
    storage: int,
    constant: float,
    per_sample: float = 0.0,
    *,
    phase: Phase = "forward",
    kind: Kind = "temporary",
    module: str = "",
) -> Event:
    return Event(
        storage=storage,
        is_free=False,
        size=Size(constant_bytes=constant, bytes_per_sample=per_sample),
        phase=phase,
        kind=kind,
        module=module,
        operator="aten.mm",
    )


def went(event: Event) -> Event:
    return Event(
        storage=event.storage,
        is_free=True,
        size=event.size,
        phase=event.phase,
        kind=event.kind,
        module=event.module,
        operator=event.operator,
    )


WEIGHTS = came(0, 100, phase="setup", kind="weights")
BATCH = came(1, 0, 1, kind="activations")
KEPT = came(2, 0, 10, kind="activations", module="layer")
GRADIENT = came(3, 100, phase="backward", kind="gradients")
AGAIN = came(4, 0, 10, kind="activations", module="layer")
ADDED = came(5, 100, phase="backward")
STATE = came(6, 200, phase="optimizer", kind="optimizer")
NORM = came(7, 50, phase="optimizer")


def step_trace(**changes: tuple[Event, ...]) -> StepTrace:
    parts: dict[str, tuple[Event, ...]] = {
        "setup": (WEIGHTS,),
        "window": (BATCH,),
        "first_micro_step": (KEPT, GRADIENT, went(KEPT)),
        "later_micro_step": (AGAIN, ADDED, went(ADDED), went(AGAIN)),
        "first_update": (STATE, NORM, went(NORM), went(GRADIENT)),
        "update": (NORM, went(NORM), went(GRADIENT)),
        **changes,
    }
    return StepTrace(checkpointing=NO_CHECKPOINTING, **parts)


def test_the_peak_is_the_highest_of_several_lines() -> None:
    law = training_law(step_trace(), 1)
    # 300 lie still. The update holds 150 more, the backward pass 100 and 10 a sample; a sample of
    # the batch waits all the time.
    assert [law.peak_bytes(b) for b in (1, 4, 5, 6, 20)] == [451, 454, 455, 466, 620]
    assert law.peak(4).phase == "optimizer"
    peak = law.peak(20)
    assert (peak.phase, peak.by_kind["gradients"], peak.by_kind["activations"]) == (
        "backward",
        100,
        220,
    )
    assert sum(peak.by_kind.values()) == peak.num_bytes


def test_gradients_live_through_later_micro_batches_and_every_batch_waits() -> None:
    law = training_law(step_trace(), 3)
    # 300 still, the gradients, what the second keeps and its own gradient; three batches wait.
    assert law.peak_bytes(20) == 300 + 100 + 200 + 100 + 3 * 20
    assert training_law(step_trace(), 2).peak_bytes(20) == 300 + 100 + 200 + 100 + 2 * 20


@pytest.mark.parametrize("limit_bytes", [399, 451, 500, 620, 621, 10_000])
def test_the_largest_micro_batch_is_the_last_that_fits(limit_bytes: int) -> None:
    law = training_law(step_trace(), 1)
    largest = law.largest(limit_bytes)
    assert largest == 0 or law.peak_bytes(largest) <= limit_bytes
    assert law.peak_bytes(largest + 1) > limit_bytes


def test_the_largest_micro_batch_is_no_larger_than_asked_for() -> None:
    assert training_law(step_trace(), 1).largest(10**9, most=64) == 64


def test_a_single_row_has_a_law_of_its_own_where_it_differs() -> None:
    odd = came(8, 500, module="layer")
    trace = step_trace(
        one_row=(odd, GRADIENT, went(odd)),
        later_one_row=(odd, went(odd)),
    )
    law = training_law(trace, 1)
    assert law.peak_bytes(1) == 300 + 500 + 100 + 1
    assert law.peak_bytes(2) == 452
    # One row does not fit, two would.
    assert law.largest(500) == 9
    assert training_law(step_trace(one_row=(odd, went(odd)), later_one_row=()), 1).largest(452) == 2


def test_a_line_through_two_peaks_would_lie_far_below() -> None:
    law = law_of([came(0, 0, 1), went(came(0, 0, 1)), came(1, 1000)])
    assert law.peak_bytes(2) == law.peak_bytes(4) == 1000
    assert law.peak_bytes(5000) == 5000


def test_what_a_kernel_works_in_stops_to_grow() -> None:
    def scratch(storage: int, constant: float, per_sample: float, most: float) -> Event:
        size = Size(constant_bytes=constant, bytes_per_sample=per_sample, most_bytes=most)
        return replace(came(storage, 0), size=size)

    bent = [scratch(1, 0, 50, 400), scratch(2, 100, 10, 450), scratch(3, 5, 90, 200)]
    activations = came(0, 10, 3, kind="activations")
    later = came(4, 0, 12)
    law = law_of([activations, *(e for b in bent for e in (b, went(b))), later])
    for size in range(1, 200):
        tops = [min(50 * size, 400), min(100 + 10 * size, 450), min(5 + 90 * size, 200), 12 * size]
        peak = law.peak(size)
        assert law.peak_bytes(size) == peak.num_bytes == 10 + 3 * size + max(tops)
        assert peak.by_kind["temporary"] == max(tops)
        assert law.largest(peak.num_bytes) == size


def test_a_half_byte_a_sample_is_rounded_up() -> None:
    assert law_of([came(0, 1, 0.5)]).peak_bytes(3) == math.ceil(2.5)


def test_between_steps_weights_and_state_are_there() -> None:
    sizes = static_sizes(step_trace())
    assert {kind: size.at(9) for kind, size in sizes.items()} == {"weights": 100, "optimizer": 200}


def test_a_replay_ends_as_it_began_and_never_repeats_a_number() -> None:
    events = list(replay(step_trace(), micro_batch_size=2, accumulation_steps=3, num_steps=2))
    alive: dict[int, Event] = {}
    for number, is_free, event in events:
        if is_free:
            del alive[number]
        else:
            assert number not in alive
            alive[number] = event
    assert sorted(event.kind for event in alive.values()) == ["optimizer", "weights"]
    allocated = [number for number, is_free, _ in events if not is_free]
    assert len(set(allocated)) == len(allocated)
    peak = current = 0
    for _, is_free, event in events:
        current += event.size.at(20) * (-1 if is_free else 1)
        peak = max(peak, current)
    assert peak == training_law(step_trace(), 3).peak_bytes(20)


def evaluation(**changes: object) -> EvaluationTrace:
    made = came(0, 0, 5, phase="evaluation")
    values = {
        "step": (made, went(made)),
        "kept": Size(constant_bytes=0, bytes_per_sample=2),
        "accumulation_steps": None,
        "num_rows": 100,
        "micro_batch_size": 8,
        **changes,
    }
    return EvaluationTrace(**values)  # type: ignore[arg-type]


def test_kept_outputs_wait_for_the_whole_evaluation_and_are_joined() -> None:
    law = evaluation_law(evaluation(), step_trace())
    # 300 still, 5 a row, and 2 a row of all the data, twice while they are joined.
    assert law.peak_bytes(10) == 300 + 50 + 2 * 200
    assert evaluation_law(evaluation(accumulation_steps=2), step_trace()).peak_bytes(10) == 430
    assert evaluation_law(evaluation(kept=Size(constant_bytes=0)), step_trace()).peak_bytes(10) == (
        350
    )


@pytest.mark.parametrize(
    ("limit_bytes", "batch_size"), [(300, None), (709, 1), (790, 8), (828, 16)]
)
def test_the_evaluation_batch_is_the_largest_power_of_two_that_fits(
    limit_bytes: int, batch_size: int | None
) -> None:
    law = evaluation_law(evaluation(), step_trace())
    assert law.recommended(limit_bytes) == batch_size


def test_no_evaluation_batch_is_larger_than_the_data() -> None:
    assert evaluation_law(evaluation(), step_trace()).recommended(10**9) == 64


FACTS = TraceFacts(
    name="by hand",
    model_class="Hand",
    num_parameters=25,
    num_trainable_parameters=25,
    sequence_length=None,
    is_padded=False,
    batch=Size(constant_bytes=0, bytes_per_sample=1),
    precision="fp32",
    optimizer="adamw_torch, fused",
    attention=("flash",),
    target="cpu",
    traced_sizes=(2, 4),
    seconds=0.1,
    notes=("A note.",),
    versions=(("torch", "2.13.0"),),
)


@pytest.mark.parametrize("has_one_row", [True, False])
def test_a_trace_survives_json(has_one_row: bool) -> None:
    size = Size(constant_bytes=1, bytes_per_sample=0.5, most_bytes=9)
    bent = replace(GRADIENT, size=size)
    alone = {"one_row": (bent,), "later_one_row": ()} if has_one_row else {}
    traced = TracedWorkload(
        facts=FACTS,
        steps=(step_trace(**alone),),
        evaluation=evaluation(),
        untraced=(Untraced(what="evaluation", checkpointing=None, reason="no head"),),
    )
    assert codec.from_json(json.loads(json.dumps(codec.to_json(traced)))) == traced
    assert traced.of(NO_CHECKPOINTING) is traced.steps[0]


@pytest.mark.parametrize("document", [{}, {"format": -1}, {"format": codec.FORMAT, "names": []}])
def test_a_damaged_trace_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="trace"):
        codec.from_json(document)  # type: ignore[arg-type]
