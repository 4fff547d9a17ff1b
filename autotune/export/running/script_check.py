"""Runs exported scripts for a step or two and checks what they did (child process only)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.configuration import Checkpointing
from autotune.export.bundle import Bundle
from autotune.export.running import ranks
from autotune.export.running.ranks import Caches, RankedResult, RankedRun, RanksHere
from autotune.export.running.seen import Seen
from autotune.units import counted

_SAME_SUM = 1e-6
"""Relative difference of the ranks' sums of parameters that rounding may leave."""


def trainer_flags(num_steps: int, output: Path) -> list[str]:
    """Flags of `trainer.py` for a run that reports nowhere and keeps no checkpoints."""
    return [
        *("--max_steps", str(num_steps)),
        *("--output_dir", str(output)),
        *("--report_to", "none"),
        *("--save_strategy", "no"),
    ]


def accelerator_flags(num_steps: int, output: Path) -> list[str]:
    """Flags of `accelerator.py` for a run of so many steps."""
    return ["--max-steps", str(num_steps), "--output-dir", str(output)]


class ScriptCheck:
    """Checks the scripts of a bundle on as many of its ranks as this machine can hold.

    Args:
        bundle: What the scripts are meant to train.
        here: How many ranks there can be.
        flags: Of each script, by its name.
        caches: Where what they store goes.
    """

    def __init__(
        self, bundle: Bundle, here: RanksHere, flags: Mapping[str, Sequence[str]], caches: Caches
    ) -> None:
        self._bundle = bundle
        self._here = here
        self._flags = flags
        self._caches = caches
        self._results: dict[str, RankedResult] = {}

    def verify(self, path: Path) -> str:
        """Runs the script on the real data and checks rows, exchange and checkpointing.

        Args:
            path: The script.

        Raises:
            ValueError: It did something else than was meant.
            Exception: Whatever the script raises.
        """
        check(self._run(path), self._bundle, num_steps=self._here.num_steps)
        return f"run for {self._here.steps}"

    def _run(self, path: Path) -> Sequence[Seen]:
        if self._here.num_ranks == 1:
            return [_run_here(path, self._flags[path.name])]
        if not self._results:
            # A start of all ranks takes longer than the steps: one start runs every script.
            found = ranks.run(
                [
                    RankedRun(script=path.parent / name, flags=tuple(flags))
                    for name, flags in self._flags.items()
                ],
                num_ranks=self._here.num_ranks,
                scratch=self._caches.scratch,
                watch_recomputation=True,
                caches=self._caches,
            )
            self._results = dict(zip(self._flags, found, strict=True))
        result = self._results[path.name]
        if result.failure is not None:
            raise ValueError(result.failure)
        return result.accounts


def _run_here(script: Path, flags: Sequence[str]) -> Seen:
    """What a script does in this process."""
    from autotune.export.running.observe import run_script, seen, watching

    with watching(recomputation=True) as observed:
        run_script(script, flags)
    return seen(observed)


def check(accounts: Sequence[Seen], bundle: Bundle, *, num_steps: int) -> None:
    """Raises where a script did something else than was meant.

    Args:
        accounts: What each rank did.
        bundle: What was meant.
        num_steps: Optimizer steps that were asked for.

    Raises:
        ValueError: It says what.
    """
    for account in accounts:
        if account.world_size != len(accounts):
            raise ValueError(
                f"it trained on {counted(account.world_size, 'rank')} and not {len(accounts)}"
            )
        check_rows(account, bundle, num_steps)
        check_checkpointing(account, bundle.configuration.checkpointing)
        if len(accounts) > 1:
            check_exchange(account, bundle)
    low, high = min(a.parameter_sum for a in accounts), max(a.parameter_sum for a in accounts)
    if not math.isclose(low, high, rel_tol=_SAME_SUM):
        raise ValueError("the ranks end with different parameters")


def check_rows(account: Seen, bundle: Bundle, num_steps: int) -> None:
    """Raises where the first step did not train on the rank's share of the global batch.

    Raises:
        ValueError: The number of steps or of rows is another one, or a loss is not finite.
    """
    if len(account.step_rows) != num_steps:
        raise ValueError(f"it made {len(account.step_rows)} optimizer steps and not {num_steps}")
    found, meant = account.step_rows[0], bundle.window_rows(account.world_size)
    if found != meant:
        raise ValueError(
            f"an optimizer step trained on micro-batches of {list(found)} rows and not "
            f"{list(meant)}"
        )
    for loss in account.losses:
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss}")


def check_exchange(account: Seen, bundle: Bundle) -> None:
    """Raises where ranks exchanged their gradients under local SGD, or did not without it.

    Raises:
        ValueError: A step did the other thing.
    """
    if bundle.uses_local_sgd and any(account.exchanges):
        raise ValueError("the ranks exchange their gradients although local SGD should be on")
    if not bundle.uses_local_sgd and not all(account.exchanges):
        raise ValueError("the ranks do not exchange their gradients")


def check_checkpointing(account: Seen, checkpointing: Checkpointing) -> None:
    """Raises where other layers were recomputed in the backward pass than were meant.

    Raises:
        ValueError: Checkpointing is on, off, or on other layers.
    """
    if not checkpointing.is_on:
        if account.has_recomputed:
            raise ValueError("checkpointing is on although it should be off")
        return
    if not account.has_recomputed:
        raise ValueError("checkpointing is off although it should be on")
    found = account.recomputed_layers
    every = checkpointing.every_n_layers or 1
    meant = tuple(index % every == 0 for index in range(len(found)))
    if found != meant:
        raise ValueError(
            f"{sum(found)} of {len(found)} layers are checkpointed, and not {sum(meant)}"
        )
