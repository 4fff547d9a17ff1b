"""The finite list of legal configurations of a goal, and the reason every other one is out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration, divisors
from autotune.workload.facts import CheckpointingForm

EVERY_N_LAYERS = (3, 2, 1)
"""Checkpointing forms that are tried, from the least recomputation to the most."""


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
    kept_fractions: tuple[float, ...] = ()
    """What each form keeps for the backward pass of what is kept without checkpointing; empty
    where that was not tried."""

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Micro-batch sizes that occur, ascending."""
        return tuple(sorted({c.micro_batch_size for c in self.candidates}))

    @property
    def digest(self) -> str:
        """Changes whenever the list of candidates changes."""
        text = json.dumps([c.to_json() for c in self.candidates], sort_keys=True)
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
        local_sgd: The user's wish; one rank never averages.
    """
    world_size = baseline.world_size
    per_device = baseline.global_batch_size // world_size
    kept_forms, ruled_out = _useful_forms(forms)
    if baseline.checkpointing not in kept_forms:
        # On this model that form is of no use, so that training without it is the same.
        baseline = replace(baseline, checkpointing=NO_CHECKPOINTING)
    sizes: list[int] = []
    for size in divisors(per_device):
        if size != baseline.micro_batch_size and fixed_micro_batch_size is not None:
            continue
        if num_rows is not None and size * world_size > num_rows:
            ruled_out.append(
                RuledOut(
                    what=f"micro-batch size {size}",
                    reason=f"the training data has only {num_rows} rows",
                    num_removed=len(kept_forms),
                )
            )
            continue
        sizes.append(size)
    if fixed_micro_batch_size is not None:
        num_other = len(divisors(per_device)) - 1
        ruled_out.append(
            RuledOut(
                what=f"micro-batch sizes other than {baseline.micro_batch_size}",
                reason=fixed_micro_batch_size,
                num_removed=num_other * len(kept_forms),
            )
        )
    if world_size == 1:
        ruled_out.append(
            RuledOut(
                what="local SGD steps above 1"
                if local_sgd in ("auto", "off")
                else f"local SGD steps {local_sgd}",
                reason="one process has nobody to average with",
                num_removed=0,
            )
        )
    candidates = tuple(
        Configuration(
            micro_batch_size=size,
            accumulation_steps=per_device // size,
            world_size=world_size,
            checkpointing=form,
        )
        for form in kept_forms
        for size in sizes
    )
    return Space(
        global_batch_size=baseline.global_batch_size,
        baseline=baseline,
        candidates=candidates,
        ruled_out=tuple(ruled_out),
        forms=tuple(kept_forms),
        kept_fractions=_kept_fractions(kept_forms, forms, saved_bytes_without),
    )


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
