"""What fits: read off steps whose bytes can be reckoned in the head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.configuration import divisors
from autotune.cost.memory.allocator_settings import AllocatorSettings, parse
from autotune.cost.memory.estimate import Estimate, FormEstimate, estimate
from autotune.cost.memory.outside import Ranks, Target
from autotune.cost.memory.question import Question, table_sizes
from tests.autotune.cost.memory.traces import EVERY_LAYER, MIB, event, step, traced

CONTEXT = 500_000_000
WORKSPACES = 2 * 8_519_680 + 4 * MIB
TARGET = Target(
    name="a card", kind="cuda", architecture="sm_89", total_bytes=3072 * MIB, total_from="as given"
)
USABLE = 3072 * MIB - 256 * MIB


def asked(**changes: object) -> Question:
    return replace(Question(target=TARGET), **changes)  # type: ignore[arg-type]


def plain(answer: Estimate) -> FormEstimate:
    return answer.forms[0]


def test_the_largest_size_fits_and_the_next_one_does_not() -> None:
    answer = estimate(traced(), asked())
    assert answer.question.usable_bytes == USABLE
    for form in answer.forms:
        assert form.largest > 0
        sizes = (form.largest, form.largest + 1)
        again = estimate(traced(*answer.traced.steps), asked(micro_batch_sizes=sizes))
        same = next(f for f in again.forms if f.checkpointing == form.checkpointing)
        fits = {e.micro_batch_size: e.fits for e in same.entries}
        assert (fits[sizes[0]], fits[sizes[1]]) == (True, False)
    # Tensors alone: 100 + 200 + 100 + 10 + 12 b, which leaves no more than that for b.
    bound = (USABLE - CONTEXT - WORKSPACES - 410 * MIB) // (12 * MIB)
    assert 0.9 * bound < plain(answer).largest <= bound
    assert answer.forms[1].checkpointing == EVERY_LAYER
    assert answer.forms[1].largest > 2 * plain(answer).largest


def test_rows_go_on_to_the_first_size_that_fits_nowhere() -> None:
    answer = estimate(traced(), asked())
    sizes = [entry.micro_batch_size for entry in plain(answer).entries]
    assert sizes == [2**power for power in range(len(sizes))]
    last = [form.entries[-1] for form in answer.forms]
    assert not any(entry.fits for entry in last)
    assert any(form.entries[-2].fits for form in answer.forms)
    assert {entry.accumulation_steps for entry in plain(answer).entries} == {None}


def test_every_byte_of_the_need_belongs_to_a_layer() -> None:
    answer = estimate(traced(), asked())
    for form in answer.forms:
        entry = estimate(answer.traced, asked(micro_batch_sizes=(form.largest,))).forms[
            answer.forms.index(form)
        ]
        total = next(e.total_bytes for e in entry.entries if e.micro_batch_size == form.largest)
        assert form.total_bytes == total <= USABLE
        by_name = {layer.name: layer for layer in form.layers}
        assert by_name["tensors of the step"].basis == "traced"
        assert by_name["tensors of the step"].num_bytes == form.peak.num_bytes
        assert by_name["allocator"].basis == "modelled"
        assert by_name["allocator"].num_bytes >= 0
        assert by_name["context"].num_bytes == CONTEXT
        assert sum(form.peak.by_kind.values()) == form.peak.num_bytes


def test_all_samples_of_a_global_batch_wait_on_the_device() -> None:
    waits = replace(step(), window=(event(40, "activations", "forward", mib_per_sample=3.0),))
    question = asked(global_batch_size=64)
    alone, waiting = (estimate(traced(s), question) for s in (step(), waits))
    for one, other in zip(plain(alone).entries, plain(waiting).entries, strict=True):
        assert other.tensor_bytes == one.tensor_bytes + 3 * 64 * MIB
        if one.reserved_bytes is not None and other.reserved_bytes is not None:
            assert other.reserved_bytes >= one.reserved_bytes + 3 * 64 * MIB - 20 * MIB


def test_the_global_batch_decides_how_each_size_accumulates() -> None:
    answer = estimate(traced(step()), asked(global_batch_size=64))
    entries = plain(answer).entries
    assert [e.micro_batch_size for e in entries] == list(divisors(64))
    assert [e.accumulation_steps for e in entries] == [64, 32, 16, 8, 4, 2, 1]
    # One micro-batch a step has no gradients beside its activations until its own are there.
    (whole,) = [e for e in entries if e.accumulation_steps == 1]
    assert whole.tensor_bytes == (100 + 200 + 100 + 12 * 64) * MIB
    assert entries[0].tensor_bytes == (100 + 200 + 100 + 10 + 12) * MIB
    assert plain(answer).largest == 64


def test_ranks_share_the_global_batch_and_keep_buckets() -> None:
    one = estimate(traced(step()), asked(global_batch_size=96))
    two = estimate(
        traced(step()), asked(global_batch_size=96, ranks=Ranks(world_size=2, averages=True))
    )
    assert [e.micro_batch_size for e in plain(two).entries] == list(divisors(48))
    names = {layer.name: layer.num_bytes for layer in plain(two).layers}
    assert names["gradient buckets"] == 100 * MIB
    assert names["communication buffers"] == 544_000_000
    allocator = next(layer for layer in plain(two).layers if layer.name == "allocator")
    assert "64.0 MiB at a time" in allocator.source
    (first,), (second,) = (
        [e.total_bytes for e in plain(answer).entries if e.micro_batch_size == 16]
        for answer in (one, two)
    )
    assert second - first >= 544_000_000 + 80 * MIB


def test_a_cpu_has_no_allocator_of_its_own() -> None:
    target = replace(TARGET, kind="cpu", architecture=None)
    answer = estimate(traced(step()), asked(target=target, process_bytes=400 * MIB))
    usable = int(3072 * MIB * 0.95)
    assert answer.question.usable_bytes == pytest.approx(usable, abs=1)
    assert plain(answer).largest == (usable - 400 * MIB - 410 * MIB) // (12 * MIB)
    assert [layer.name for layer in plain(answer).layers] == ["tensors of the step", "process"]
    assert plain(answer).largest_with_expandable_segments is None


def test_expandable_segments_are_told_where_they_make_more_fit() -> None:
    # Sizes that fill segments of twenty badly.
    awkward = step(weights_mib=101.0, activations_mib=6.2, logits_mib=1.1)
    answer = estimate(traced(awkward), asked())
    expanded = estimate(
        traced(awkward), asked(settings=AllocatorSettings(expandable_segments=True))
    )
    told = plain(answer).largest_with_expandable_segments
    assert told in (None, plain(expanded).largest)
    assert (told is None) == (plain(expanded).largest == plain(answer).largest)
    assert plain(expanded).largest_with_expandable_segments is None


@pytest.mark.parametrize(
    ("total_mib", "words"),
    [
        (700, "the weights alone take 300 MiB"),
        (1500, "weights, gradients and optimizer state take 1.17 GiB"),
        (1980, "activations take 40.0 MiB at the peak"),
    ],
)
def test_why_nothing_fits_is_told_by_what_it_is(total_mib: int, words: str) -> None:
    target = replace(TARGET, total_bytes=total_mib * MIB)
    heavy = step(weights_mib=300.0, activations_mib=40.0)
    answer = estimate(traced(heavy), asked(target=target))
    assert answer.best is None
    assert (plain(answer).largest, plain(answer).shown_size) == (0, 1)
    (entry,) = plain(answer).entries
    assert not entry.fits
    assert entry.why is not None
    assert words in entry.why
    assert "more than may be filled" in entry.why
    assert entry.reserved_bytes is None


def test_gaps_between_tensors_are_a_reason_of_their_own() -> None:
    answer = estimate(traced(step()), asked())
    tight = plain(answer).largest + 1
    again = estimate(traced(step()), asked(micro_batch_sizes=(tight,)))
    (entry,) = [e for e in plain(again).entries if e.micro_batch_size == tight]
    assert entry.why is not None
    assert entry.reserved_bytes is None or "cannot reuse" in entry.why


def test_a_part_of_the_device_may_be_all_that_is_allowed() -> None:
    half = parse("per_process_memory_fraction:0.25")
    answer = estimate(traced(step()), asked(settings=half))
    free = estimate(traced(step()), asked())
    assert 0 < plain(answer).largest < plain(free).largest
    refused = next(e for e in plain(answer).entries if not e.fits)
    assert refused.why == "per_process_memory_fraction allows no more"


def test_the_rows_of_a_table() -> None:
    assert table_sizes(asked(), 0) == (1,)
    assert table_sizes(asked(), 5) == (1, 2, 4, 8)
    assert table_sizes(asked(micro_batch_sizes=(6,)), 5) == (1, 2, 4, 6, 8)
    assert table_sizes(asked(global_batch_size=12), 3) == (1, 2, 3, 4)
    assert table_sizes(asked(global_batch_size=12), 12) == (1, 2, 3, 4, 6, 12)
    many = table_sizes(asked(global_batch_size=720_720), 720_720)
    assert len(many) == 16
    assert (many[0], many[-1]) == (1, 720_720)


def test_the_form_with_the_least_recomputation_that_fits_is_the_best() -> None:
    small = replace(TARGET, total_bytes=1300 * MIB)
    heavy = step(activations_mib=400.0)
    light = step(EVERY_LAYER, activations_mib=1.0)
    answer = estimate(traced(heavy, light), asked(target=small))
    assert answer.best is not None
    assert answer.best.checkpointing == EVERY_LAYER
    assert answer.leanest.checkpointing == EVERY_LAYER
