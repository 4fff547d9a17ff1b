"""Which configurations are candidates, and the reasons of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration, divisors
from autotune.space import plan
from autotune.workload.facts import CheckpointingForm


def form(
    every_n_layers: int,
    saved_bytes: int | None,
    *,
    offload: bool = False,
    reason: str | None = None,
    is_available: bool = True,
) -> CheckpointingForm:
    return CheckpointingForm(
        every_n_layers=every_n_layers,
        offload=offload,
        is_available=is_available,
        saved_bytes=saved_bytes,
        reason=reason,
    )


def baseline(size: int = 8, accumulation_steps: int = 3, world_size: int = 1) -> Configuration:
    return Configuration(
        micro_batch_size=size, accumulation_steps=accumulation_steps, world_size=world_size
    )


def test_all_divisors_by_all_useful_forms_from_most_kept_to_least() -> None:
    forms = (form(1, 20), form(2, 58), form(3, 72))
    space = plan(baseline=baseline(), num_rows=1000, forms=forms, saved_bytes_without=100)
    assert space.micro_batch_sizes == (1, 2, 3, 4, 6, 8, 12, 24)
    assert [f.every_n_layers for f in space.forms] == [None, 3, 2, 1]
    assert space.kept_fractions == (1.0, 0.72, 0.58, 0.2)
    assert len(space.candidates) == 32
    assert space.candidates[0] == Configuration(micro_batch_size=1, accumulation_steps=24)
    assert space.candidates[-1] == Configuration(
        micro_batch_size=24, accumulation_steps=1, checkpointing=Checkpointing(every_n_layers=1)
    )
    assert {c.global_batch_size for c in space.candidates} == {24}
    assert space.baseline in space.candidates


def test_what_is_kept_is_unknown_where_it_was_not_tried() -> None:
    space = plan(baseline=baseline(), num_rows=1000, forms=(form(1, 20),))
    assert space.kept_fractions == ()


def test_an_offloaded_form_is_a_form_of_its_own() -> None:
    forms = (form(1, 20), form(1, 5, offload=True))
    space = plan(baseline=baseline(), num_rows=None, forms=forms, saved_bytes_without=100)
    assert space.forms == (
        NO_CHECKPOINTING,
        Checkpointing(every_n_layers=1),
        Checkpointing(every_n_layers=1, offload=True),
    )
    assert space.kept_fractions == (1.0, 0.2, 0.05)


def test_forms_of_no_use_are_ruled_out_with_their_reason() -> None:
    forms = (
        form(1, 99, reason="it saves only 1% of what the forward pass keeps"),
        form(2, None, is_available=False, reason="GPTNeo has no switch for checkpointing"),
        form(3, None, is_available=False),
    )
    space = plan(baseline=baseline(), num_rows=1000, forms=forms)
    assert space.forms == (NO_CHECKPOINTING,)
    reasons = {r.what: r.reason for r in space.ruled_out}
    assert reasons["checkpointing every layer"] == "it saves only 1% of what the forward pass keeps"
    assert reasons["checkpointing every 2nd layer"] == "GPTNeo has no switch for checkpointing"
    assert reasons["checkpointing every 3rd layer"] == "the model does not support it"


def test_a_micro_batch_cannot_hold_more_than_the_data() -> None:
    space = plan(baseline=baseline(), num_rows=7, forms=(form(1, 20),))
    assert space.micro_batch_sizes == (1, 2, 3, 4, 6)
    removed = [r for r in space.ruled_out if "7 rows" in r.reason]
    assert [r.what for r in removed] == [f"micro-batch size {n}" for n in (8, 12, 24)]
    assert [r.num_removed for r in removed] == [2, 2, 2]


def test_a_fixed_micro_batch_size_leaves_only_the_forms() -> None:
    space = plan(
        baseline=baseline(), num_rows=1000, forms=(form(1, 20),), fixed_micro_batch_size="why"
    )
    assert space.micro_batch_sizes == (8,)
    assert len(space.candidates) == 2
    (fixed,) = [r for r in space.ruled_out if r.reason == "why"]
    assert fixed.what == "micro-batch sizes other than 8"
    assert fixed.num_removed == 7 * 2


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        ("auto", "local SGD steps above 1"),
        ("off", "local SGD steps above 1"),
        ("16", "local SGD steps 16"),
    ],
)
def test_one_process_never_averages(wish: str, what: str) -> None:
    space = plan(baseline=baseline(), num_rows=1000, local_sgd=wish)
    (out,) = space.ruled_out
    assert (out.what, out.reason) == (what, "one process has nobody to average with")
    assert space.ruled_out_json() == (
        {"what": what, "reason": "one process has nobody to average with", "num_removed": 0},
    )


def test_the_digest_follows_the_candidates_alone() -> None:
    space = plan(baseline=baseline(), num_rows=1000)
    assert plan(baseline=baseline(4, 6), num_rows=None).digest == space.digest
    assert plan(baseline=baseline(8, 4), num_rows=1000).digest != space.digest
    assert plan(baseline=baseline(), num_rows=1000, forms=(form(1, 2),)).digest != space.digest


@given(
    st.integers(1, 360),
    st.integers(1, 4),
    st.none() | st.integers(1, 400),
    st.lists(st.sampled_from([(1, 10), (2, 50), (3, 70)]), unique=True),
)
def test_every_candidate_keeps_the_global_batch_and_every_other_size_has_a_reason(
    per_device: int, world_size: int, num_rows: int | None, found: list[tuple[int, int]]
) -> None:
    space = plan(
        baseline=baseline(per_device, 1, world_size),
        num_rows=num_rows,
        forms=[form(n, saved) for n, saved in found],
        saved_bytes_without=100,
    )
    assert len(set(space.candidates)) == len(space.candidates)
    assert all(c.global_batch_size == per_device * world_size for c in space.candidates)
    assert all(c.world_size == world_size for c in space.candidates)
    if num_rows is not None:
        assert all(c.micro_batch_size * world_size <= num_rows for c in space.candidates)
    total = len(divisors(per_device)) * (len(found) + 1)
    assert len(space.candidates) + sum(r.num_removed for r in space.ruled_out) == total
    assert list(space.kept_fractions) == sorted(space.kept_fractions, reverse=True)
    by_form = [space.forms.index(c.checkpointing) for c in space.candidates]
    assert by_form == sorted(by_form)


def test_one_process_alone_is_a_candidate_beside_several() -> None:
    space = plan(
        baseline=baseline(4, 1, 2), num_rows=1000, forms=(form(1, 20),), with_one_process=True
    )
    assert space.world_sizes == (2, 1)
    assert {c.global_batch_size for c in space.candidates} == {8}
    sizes = [(c.world_size, c.micro_batch_size) for c in space.candidates]
    assert sizes == [
        *([(2, 1), (2, 2), (2, 4)] * 2),
        *([(1, 1), (1, 2), (1, 4), (1, 8)] * 2),
    ]
    # The digests of studies of one process stay what they were.
    alone = plan(baseline=baseline(8, 1), num_rows=1000, forms=(form(1, 20),))
    assert alone.digest != space.digest


def test_the_part_with_one_process_starts_from_what_is_best_so_far() -> None:
    space = plan(baseline=baseline(4, 1, 2), num_rows=1000, with_one_process=True)
    assert space.arm(2, like=space.baseline).baseline == space.baseline
    alone = space.arm(1, like=baseline(2, 2, 2))
    assert alone.baseline == baseline(2, 4)
    assert alone.world_sizes == (1,)
    assert alone.candidates == space.candidates[3:]


@pytest.mark.parametrize(
    ("wish", "refused", "total_steps", "steps", "reason"),
    [
        ("auto", None, None, (2, 4, 8, 16, 32, 64, 128, 256), None),
        ("auto", None, 20, (2, 4, 8, 16), None),
        ("auto", None, 1, (), None),
        ("12", None, None, (12,), None),
        ("1", None, None, (), None),
        ("off", None, None, (), "it was switched off"),
        ("auto", "no bf16", None, (), "no bf16"),
    ],
)
def test_which_numbers_of_local_steps_may_be_chosen(
    wish: str,
    refused: str | None,
    total_steps: int | None,
    steps: tuple[int, ...],
    reason: str | None,
) -> None:
    space = plan(
        baseline=baseline(4, 1, 2),
        num_rows=1000,
        local_sgd=wish,
        no_local_sgd=refused,
        total_steps=total_steps,
    )
    assert space.local_sgd_steps == steps
    assert [r.reason for r in space.ruled_out] == ([reason] if reason else [])
