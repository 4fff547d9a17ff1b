"""What is predicted of configurations, and what trials change about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.cost.memory.foresight import Foresight, Reckoner
from autotune.cost.memory.outside import Target
from autotune.cost.memory.trace import NO_BYTES, EvaluationTrace, Size, TracedWorkload
from autotune.outcome import MemoryUse
from tests.autotune.cost.memory.traces import EVERY_LAYER, MIB, event, traced

LIMIT = 2000 * MIB
PROCESS = 450 * MIB
CPU = Target(name="CPU", kind="cpu", total_bytes=LIMIT, total_from="the limit of the run")
CARD = Target(
    name="a card", kind="cuda", architecture="sm_89", total_bytes=LIMIT, total_from="as given"
)


def foresight(found: TracedWorkload | None = None, target: Target = CPU) -> Foresight:
    return Foresight(reckoner=Reckoner(found or traced(), target, process_bytes=PROCESS))


def at(
    size: int, accumulation_steps: int = 2, form: Checkpointing = NO_CHECKPOINTING
) -> Configuration:
    return Configuration(
        micro_batch_size=size, accumulation_steps=accumulation_steps, checkpointing=form
    )


def used(inside_mib: float, outside_mib: float = 450) -> MemoryUse:
    inside, outside = round(inside_mib * MIB), round(outside_mib * MIB)
    return MemoryUse(
        allocated_bytes=inside,
        reserved_bytes=inside,
        outside_bytes=outside,
        total_bytes=inside + outside,
        method="by hand",
    )


def total_mib(known: Foresight, configuration: Configuration) -> float:
    need = known.need(configuration)
    assert need is not None
    return need.total_bytes / MIB


def test_the_law_and_the_process_make_the_need() -> None:
    known = foresight()
    # Weights 100, state 200, gradients 100, 12 a sample; with accumulation 10 of temporaries.
    assert total_mib(known, at(8)) == 450 + 410 + 12 * 8
    assert total_mib(known, at(8, 1)) == 450 + 400 + 12 * 8
    assert total_mib(known, at(8, form=EVERY_LAYER)) == 450 + 410 + 3 * 8
    assert known.need(at(8, form=Checkpointing(every_n_layers=2))) is None
    need = known.need(at(8))
    assert need is not None
    assert need.to_json() == {
        "total_bytes": (450 + 410 + 96) * MIB,
        "phase": "backward",
        "module": "layer",
        "basis": "traced",
    }


def test_several_ranks_keep_buckets() -> None:
    one, two = at(8), replace(at(8), world_size=2)
    known = foresight()
    assert total_mib(known, two) == total_mib(known, one) + 100


def test_on_a_device_the_allocator_and_the_context_count() -> None:
    need = foresight(target=CARD).need(at(8))
    assert need is not None
    assert need.outside_bytes == 500_000_000
    assert need.inside_bytes > need.tensor_bytes + 2 * 8_519_680


def test_more_than_was_predicted_raises_all_others_and_less_lowers_none() -> None:
    first = foresight()
    higher = first.measured(at(8), used(506 * 1.1))
    assert higher.raised_by == pytest.approx(1.1)
    assert total_mib(higher, at(32)) == pytest.approx(450 + 1.1 * (410 + 384))
    assert total_mib(higher, at(4, form=EVERY_LAYER)) == pytest.approx(450 + 1.1 * 422)
    lower = higher.measured(at(16), used(590))
    assert lower.raised_by == higher.raised_by
    assert first.measured(at(8), used(500)).raised_by == 1.0


def test_what_lies_outside_is_the_most_that_a_trial_had() -> None:
    known = foresight().measured(at(8), used(506, 440))
    assert total_mib(known, at(8)) == 506 + 440
    assert total_mib(known.measured(at(8), used(506, 460)), at(8)) == 506 + 460
    assert total_mib(known.measured(at(8), used(506, 400)), at(8)) == 506 + 440


def test_out_of_memory_is_a_bound_below_the_need() -> None:
    known = foresight()
    assert known.bounded(at(8), 700 * MIB).raised_by == 1.0
    assert total_mib(known.bounded(at(8), 1057 * MIB), at(8)) == pytest.approx(1057)
    assert known.bounded(at(8, form=Checkpointing(every_n_layers=2)), 10**12) == known


def test_far_less_than_was_predicted_refutes_the_law() -> None:
    known = foresight()
    # 410 + 12 * 64 = 1178 MiB.
    assert not known.is_refuted_by(at(64), used(1178))
    assert not known.is_refuted_by(at(64), used(1178 * 0.92))
    assert known.is_refuted_by(at(64), used(1178 * 0.88))
    # Of a small need a tenth is less than an allocator's steps.
    assert not known.is_refuted_by(at(1), used(422 - 50))


def test_evaluation_has_a_law_and_a_size_of_its_own() -> None:
    assert foresight().evaluation_batch_size(LIMIT) is None
    evaluation = EvaluationTrace(
        step=(
            event(50, "logits", "evaluation", mib_per_sample=5.0),
            event(50, "logits", "evaluation", mib_per_sample=5.0, is_free=True),
        ),
        kept=NO_BYTES,
        accumulation_steps=None,
        num_rows=1000,
        micro_batch_size=8,
    )
    known = foresight(replace(traced(), evaluation=evaluation))
    # Weights and state stand there: 300 MiB, 5 a sample, 450 for the process.
    assert known.evaluation_batch_size(1400 * MIB) == 128
    assert known.evaluation_bytes(128) == (450 + 300 + 640) * MIB
    on_card = foresight(replace(traced(), evaluation=evaluation), CARD)
    # There each large block has a segment, and the workspaces fill two of 20 MiB.
    assert on_card.evaluation_bytes(128) == 500_000_000 + (300 + 640 + 2 * 20) * MIB
    raised = replace(known, raised_by=1.2)
    assert raised.evaluation_batch_size(1400 * MIB) == 64
    keeping = replace(evaluation, kept=Size(constant_bytes=0.0, bytes_per_sample=MIB))
    kept = foresight(replace(traced(), evaluation=keeping))
    # Twice the outputs of 1000 rows are joined: that alone is too much.
    assert kept.evaluation_batch_size(1400 * MIB) is None
