"""Loss parity: whether the same rows train the same whole and split into micro-batches.

Where they do not, accumulation would change what is learned, so that nothing may be searched before
this is known (design: decision 10).
"""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.configuration import Configuration
from autotune.events import ParityChecked
from autotune.outcome import Stopped
from autotune.search.session import Session
from autotune.trial.pool import WorkerPool
from autotune.trial.protocol import CannotLoad, CheckParity, ParityFound

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
NUM_ROWS = 8
CHECK_LIMIT_S = 300.0


def check_parity(session: Session, pool: WorkerPool, baseline: Configuration) -> ParityChecked:
    """Asks a worker to train on the same rows whole and split, and judges what it found.

    Args:
        session: Where a check that could not be made is warned of.
        pool: Who carries it out.
        baseline: No more rows are taken than one of its ranks trains on in a step.

    Raises:
        WorkloadError: The loss is no number, so that there is nothing to be tuned.
    """
    per_device = baseline.global_batch_size // baseline.world_size
    num_rows = min(NUM_ROWS, 2 ** int(math.log2(per_device)))
    # Of two rows only single ones are a part: two together would be held against themselves.
    num_parts = max(2, num_rows // 2)
    if num_rows < 2:
        return _unmeasured(True, "A global batch of one sample cannot be split.")
    reply = pool.ask(
        CheckParity(num_rows=num_rows, accumulation_steps=num_parts),
        log=session.run.path / "checks.log",
        time_limit_s=CHECK_LIMIT_S,
    )
    if isinstance(reply, CannotLoad):
        raise reply.exception
    if isinstance(reply, ParityFound):
        judged = judge_parity(reply, num_rows, num_parts)
        return replace(judged, unused_parameters=reply.unused_parameters)
    detail = f"Loss parity could not be checked: {getattr(reply, 'cause', reply.kind)}"
    if not isinstance(reply, Stopped):
        session.warn(
            detail,
            "Compare the loss of the first step under both configurations before you train.",
        )
    return _unmeasured(None, detail)


def _unmeasured(holds: bool | None, detail: str) -> ParityChecked:
    return ParityChecked(
        holds=holds,
        repaired=False,
        loss_difference=None,
        gradient_difference=None,
        detail=detail,
    )


def judge_parity(found: ParityFound, num_rows: int, num_parts: int) -> ParityChecked:
    """Whether splitting a batch trains the same, as it stands or with the repair.

    Args:
        found: What the worker read.
        num_rows: Rows of the batch.
        num_parts: Micro-batches that it was split into.
    """
    loss, gradient = _differences(found.losses, found.gradient_norms)
    if _holds(loss, gradient):
        return ParityChecked(
            holds=True,
            repaired=False,
            loss_difference=loss,
            gradient_difference=gradient,
            detail=(
                f"Loss parity holds: {num_rows} rows train the same whole and in micro-batches of "
                f"{num_rows // num_parts} (loss within {loss:.1e}, gradient norm within "
                f"{gradient:.1e}, fp32, dropout off)."
            ),
        )
    factor = found.gradient_norms[1] / found.gradient_norms[0] if found.gradient_norms[0] else 0
    fault = (
        f"Split into {num_parts} micro-batches, the same {num_rows} rows give "
        f"{found.losses[1] / found.losses[0] if found.losses[0] else 0:.2f} times the loss and "
        f"{factor:.2f} times the gradient norm"
    )
    if found.repaired_losses is not None and found.repaired_gradient_norms is not None:
        repaired = _differences(found.repaired_losses, found.repaired_gradient_norms)
        if _holds(*repaired):
            return ParityChecked(
                holds=False,
                repaired=True,
                loss_difference=loss,
                gradient_difference=gradient,
                detail=(
                    f"{fault}, because the model takes loss keywords that its loss ignores. The "
                    "trials and recommendation.apply(trainer) set "
                    "trainer.model_accepts_loss_kwargs = False, with which they agree, and so do "
                    "exported scripts; do the same in a script of your own, where the exported "
                    "arguments alone cannot."
                ),
            )
    return ParityChecked(
        holds=False,
        repaired=False,
        loss_difference=loss,
        gradient_difference=gradient,
        detail=f"{fault}; accumulation stays as the baseline has it.",
    )


def _holds(loss: float, gradient: float) -> bool:
    return loss <= LOSS_TOLERANCE and gradient <= GRADIENT_TOLERANCE


def _differences(losses: tuple[float, float], norms: tuple[float, float]) -> tuple[float, float]:
    return _relative(*losses), _relative(*norms)


def _relative(whole: float, split: float) -> float:
    if not (math.isfinite(whole) and math.isfinite(split)):
        return math.inf
    largest = max(abs(whole), abs(split))
    return abs(whole - split) / largest if largest else 0.0
