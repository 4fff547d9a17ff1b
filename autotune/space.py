"""The finite list of legal configurations of a goal, and the reason every other one is out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration, divisors
from autotune.units import counted
from autotune.workload.facts import CheckpointingForm

EVERY_N_LAYERS = (3, 2, 1)
"""Checkpointing forms that are tried, from the least recomputation to the most."""
MOST_LOCAL_SGD_STEPS = 256
"""Longest round of local SGD that is considered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """Configurations that are not candidates, and why."""

    what: str
    reason: str
    num_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All candidates of one run.

    Candidates are ordered by checkpointing form (none first), then by micro-batch size.
    """

    global_batch_size: int
    baseline: Configuration
    candidates: tuple[Configuration, ...]
    ruled_out: tuple[RuledOut, ...]
    forms: tuple[Checkpointing, ...]
    """Checkpointing forms of the candidates, from the most memory kept to the least."""
    local_sgd_steps: tuple[int, ...] = ()
    """Optimizer steps between two averagings that may be chosen, ascending; each goes with every
    candidate of several ranks. What they give is predicted, and the chosen one is tried."""
    kept_fractions: tuple[float, ...] = ()
    """What each form keeps for the backward pass of what is kept without checkpointing; empty
    where that was not tried."""

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Micro-batch sizes that occur, ascending."""
        return tuple(sorted({c.micro_batch_size for c in self.candidates}))

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of ranks that occur, descending."""
        return tuple(sorted({c.world_size for c in self.candidates}, reverse=True))

    def arm(self, world_size: int, like: Configuration) -> Space:
        """The part with one number of ranks, as a space of its own.

        Args:
            world_size: One of `world_sizes`.
            like: Where this part holds not the baseline itself, it starts from what is nearest to
                this configuration.
        """
        candidates = tuple(c for c in self.candidates if c.world_size == world_size)
        baseline = self.baseline
        if baseline.world_size != world_size:
            baseline = min(candidates, key=lambda c: distance(c, like))
        return replace(self, baseline=baseline, candidates=candidates)

    @property
    def digest(self) -> str:
        """Changes whenever the list of candidates changes."""
        listed = [c.to_json() for c in self.candidates]
        text = json.dumps([*listed, list(self.local_sgd_steps)] if self.local_sgd_steps else listed)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def ruled_out_json(self) -> tuple[dict[str, object], ...]:
        """The reasons as plain JSON objects."""
        return tuple(asdict(r) for r in self.ruled_out)


def plan(
    *,
    baseline: Configuration,
    num_rows: int | None,
    forms: Sequence[CheckpointingForm] = (),
    saved_bytes_without: int | None = None,
    fixed_micro_batch_size: str | None = None,
    local_sgd: str = "auto",
    no_local_sgd: str | None = None,
    with_one_process: bool = False,
    total_steps: int | None = None,
) -> Space:
    """Lists the candidates around a baseline.

    Args:
        baseline: Its global batch size and world size hold for every candidate. A checkpointing
            form that changes nothing on this model is left out of it.
        num_rows: Training samples; a micro-batch cannot hold more. None for a stream.
        forms: Checkpointing forms as tried on the model.
        saved_bytes_without: Bytes kept for the backward pass of the same batch without any.
        fixed_micro_batch_size: A reason why the micro-batch size must stay the baseline's (loss
            parity fails without repair, or the loss depends on the batch); None lets it vary.
        local_sgd: The user's wish: auto, off or a number of steps. One rank never averages.
        no_local_sgd: A reason why the ranks must exchange gradients in every step.
        with_one_process: Whether one process alone is a candidate beside the baseline's ranks.
        total_steps: Optimizer steps of the training to come: no round is longer.
    """
    world_size = baseline.world_size
    kept_forms, ruled_out = _useful_forms(forms)
    if baseline.checkpointing not in kept_forms:
        # On this model that form is of no use, so that training without it is the same.
        baseline = replace(baseline, checkpointing=NO_CHECKPOINTING)
    candidates: list[Configuration] = []
    for num_ranks in sorted({world_size, 1} if with_one_process else {world_size}, reverse=True):
        sizes, too_large = _sizes(baseline, num_ranks, num_rows, fixed_micro_batch_size)
        candidates += (
            Configuration(
                micro_batch_size=size,
                accumulation_steps=baseline.global_batch_size // num_ranks // size,
                world_size=num_ranks,
                checkpointing=form,
            )
            for form in kept_forms
            for size in sizes
        )
        ruled_out += (replace(r, num_removed=r.num_removed * len(kept_forms)) for r in too_large)
    steps, without = _local_sgd_steps(world_size, local_sgd, no_local_sgd, total_steps)
    if without is not None:
        ruled_out.append(without)
    return Space(
        global_batch_size=baseline.global_batch_size,
        baseline=baseline,
        candidates=tuple(candidates),
        ruled_out=tuple(ruled_out),
        forms=tuple(kept_forms),
        local_sgd_steps=steps,
        kept_fractions=_kept_fractions(kept_forms, forms, saved_bytes_without),
    )


def _sizes(
    baseline: Configuration, world_size: int, num_rows: int | None, fixed: str | None
) -> tuple[list[int], list[RuledOut]]:
    """Micro-batch sizes for a number of ranks, and those left out, counted for one form."""
    all_sizes = divisors(baseline.global_batch_size // world_size)
    place = "" if world_size == baseline.world_size else " on one process"
    if fixed is not None:
        # What one rank and the ranks together train on in one micro-step may both be meant.
        kept = [size for size in all_sizes if size == baseline.micro_batch_size]
        left_out = RuledOut(
            what=f"micro-batch sizes other than {baseline.micro_batch_size}{place}",
            reason=fixed,
            num_removed=len(all_sizes) - len(kept),
        )
        return kept, [left_out]
    sizes, ruled_out = [], []
    for size in all_sizes:
        if num_rows is not None and size * world_size > num_rows:
            ruled_out.append(
                RuledOut(
                    what=f"micro-batch size {size}{place}",
                    reason=f"the training data has only {counted(num_rows, 'row')}",
                    num_removed=1,
                )
            )
        else:
            sizes.append(size)
    return sizes, ruled_out


def _local_sgd_steps(
    world_size: int, wish: str, refused: str | None, total_steps: int | None
) -> tuple[tuple[int, ...], RuledOut | None]:
    """Step counts that may be chosen, or why there are none."""
    what = "local SGD steps above 1" if wish in ("auto", "off") else f"local SGD steps {wish}"
    reason = (
        "one process has nobody to average with"
        if world_size == 1
        else "it was switched off"
        if wish == "off"
        else refused
    )
    if reason is not None:
        return (), RuledOut(what=what, reason=reason, num_removed=0)
    if wish != "auto":
        return ((int(wish),), None) if int(wish) > 1 else ((), None)
    longest = min(MOST_LOCAL_SGD_STEPS, total_steps or MOST_LOCAL_SGD_STEPS)
    powers = (2**exponent for exponent in range(1, MOST_LOCAL_SGD_STEPS.bit_length()))
    return tuple(steps for steps in powers if steps <= longest), None


def distance(first: Configuration, second: Configuration) -> tuple[int, float]:
    """How far two configurations are apart: knobs that differ, then doublings of the size."""
    num_changes = (
        (first.micro_batch_size != second.micro_batch_size)
        + (first.checkpointing != second.checkpointing)
        + (first.local_sgd_steps != second.local_sgd_steps)
        + (first.world_size != second.world_size)
    )
    return num_changes, abs(math.log2(first.micro_batch_size / second.micro_batch_size))


def _useful_forms(
    forms: Sequence[CheckpointingForm],
) -> tuple[list[Checkpointing], list[RuledOut]]:
    """Keeps the forms that save memory, from the most bytes kept to the fewest."""
    useful: list[tuple[int, Checkpointing]] = []
    ruled_out: list[RuledOut] = []
    for form in forms:
        if form.is_available and form.reason is None:
            checkpointing = Checkpointing(every_n_layers=form.every_n_layers, offload=form.offload)
            useful.append((form.saved_bytes or 0, checkpointing))
        else:
            ruled_out.append(
                RuledOut(
                    what=str(
                        Checkpointing(every_n_layers=form.every_n_layers, offload=form.offload)
                    ),
                    reason=form.reason or "the model does not support it",
                    num_removed=0,
                )
            )
    useful.sort(key=lambda pair: -pair[0])
    return [NO_CHECKPOINTING, *(form for _, form in useful)], ruled_out


def _kept_fractions(
    kept_forms: Sequence[Checkpointing],
    forms: Sequence[CheckpointingForm],
    saved_bytes_without: int | None,
) -> tuple[float, ...]:
    saved_bytes = {(f.every_n_layers, f.offload): f.saved_bytes for f in forms}
    fractions = [1.0]
    for form in kept_forms[1:]:
        num_bytes = saved_bytes.get((form.every_n_layers or 0, form.offload))
        if not saved_bytes_without or num_bytes is None:
            return ()
        fractions.append(num_bytes / saved_bytes_without)
    return tuple(fractions)
