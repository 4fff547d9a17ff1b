"""The library call: tunes a live job in processes of its own and returns the answer."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from autotune import control
from autotune import request as requests
from autotune.delivery import check_out
from autotune.display import DisplayName, watch
from autotune.display.base import Display
from autotune.errors import (
    AutotuneError,
    ExitCode,
    NothingFeasible,
    Unconfirmed,
    UsageError,
    WorkloadError,
)
from autotune.folding import view_of
from autotune.goal import Budget, Goal
from autotune.library import notebook, ranks, stored
from autotune.library.checks import check, maker_of, path_of
from autotune.library.parking import parked
from autotune.library.recommendation import Recommendation, load
from autotune.library.words import in_library_words
from autotune.request import Request, SamplerName
from autotune.run_directory import RunDirectory, is_full
from autotune.sharing import check_shared, shared_goal
from autotune.sound import check_request
from autotune.starting import check_link, engine_environment, prepare, start_engine
from autotune.view import RunView
from autotune.workload.live.capture import FILE_NAME, capture, import_path
from autotune.workload.live.identity import digest_of
from autotune.workload.live.job import Job, base_trainer, job_of_parts, job_of_trainer
from autotune.workload.spec import Capsule
from probes.ranks.launch import without_launch

if TYPE_CHECKING:
    import torch
    from transformers import Trainer, TrainingArguments

STOP_PATIENCE_S = 45.0
"""How long an engine that was asked to stop now may take to save, before it is killed."""
_KINDS: dict[int, type[AutotuneError]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.INFEASIBLE: NothingFeasible,
    ExitCode.UNCONFIRMED: Unconfirmed,
}


def tune(
    trainer: Trainer | Callable[[], Trainer] | None = None,
    *,
    model: torch.nn.Module | None = None,
    train_dataset: object | None = None,
    data_collator: object | None = None,
    args: TrainingArguments | None = None,
    processing_class: object | None = None,
    compute_loss_func: Callable[..., torch.Tensor] | None = None,
    optimizers: tuple[object | None, object | None] = (None, None),
    trainer_class: type[Trainer] | None = None,
    goal: Goal | None = None,
    budget: Budget | None = None,
    sampler: SamplerName = "auto",
    local_sgd: str | int = "auto",
    seed: int = 0,
    storage: str | None = None,
    run_dir: str | PathLike[str] = "autotune-runs",
    name: str | None = None,
    out: str | PathLike[str] | None = None,
    fresh: bool = False,
    park: bool = True,
    display: DisplayName = "auto",
) -> Recommendation:
    """Finds the fastest configuration that fits this machine and keeps the learning the same.

    Trials run in child processes on a copy of the job; nothing of what is given here is changed.
    Call it before `train()`. Under several ranks, call it on every rank: the first one tunes, and
    all of them get the same answer.

    Args:
        trainer: A Trainer, or a function without arguments that makes one. The function runs in
            the child processes, where live objects cannot be captured.
        model: Instead of a Trainer, with the arguments below: what it would be made with.
        train_dataset: Map-style, of `datasets`, or iterable.
        data_collator: None is Trainer's own choice.
        args: The job's TrainingArguments; their batch size and accumulation are the baseline.
        processing_class: Tokenizer or processor.
        compute_loss_func: Trainer's loss function.
        optimizers: Optimizer and schedule of your own making.
        trainer_class: A subclass of Trainer.
        goal: Global batch size and memory limit; None keeps the job's global batch size and
            takes what is free.
        budget: Trials and seconds.
        sampler: `auto`, or one of Optuna's: `tpe`, `gp`, `random`, `grid`.
        local_sgd: On several ranks: `auto` averages parameters now and then where that learns more
            per second than exchanging gradients in every step, by an assumed sample efficiency;
            `off` keeps the exchange; a number of optimizer steps is what is recommended.
        seed: Of the sampler.
        storage: An Optuna storage URL, which engines on like machines may share; None keeps the
            study in the run's directory.
        run_dir: Where runs are kept.
        name: The run's name; None makes one up.
        out: Where files are exported; None is `out` in the run's directory.
        fresh: Measure again, though the same job was answered before on this machine.
        park: Move what the job holds on a device to the host while trials need the device.
        display: `auto`, `rich`, `plain` or `none`.

    Returns:
        The recommendation, confirmed against the baseline in fresh processes.

    Raises:
        UsageError: The job cannot be tuned or captured; cause and remedy say why.
        WorkloadError: There is no training data, or it cannot be read.
        NothingFeasible: No configuration fits.
        Unconfirmed: The budget ended too early. Called again, the run goes on.
        AutotuneError: The run failed otherwise.
        KeyboardInterrupt: Finished trials are kept. Called again, the run goes on.

    Example:
        >>> recommendation = autotune.tune(
        ...     trainer, budget=autotune.Budget(trials=2, seconds=240), display="none"
        ... )
        >>> recommendation.apply(trainer)
        >>> recommendation.configuration.global_batch_size
        4
    """
    check(
        display=display,
        goal=goal,
        budget=budget,
        sampler=sampler,
        local_sgd=local_sgd,
        seed=seed,
        storage=storage,
        name=name,
        optimizers=optimizers,
    )
    place = path_of("run_dir", run_dir)
    wanted = path_of("out", out) if out is not None else None
    parts = {
        "model": model,
        "train_dataset": train_dataset,
        "data_collator": data_collator,
        "args": args,
        "processing_class": processing_class,
        "compute_loss_func": compute_loss_func,
        "optimizers": next((optimizers for one in optimizers if one is not None), None),
        "trainer_class": trainer_class,
    }
    given = [name for name, value in parts.items() if value is not None]
    if trainer is not None and given:
        raise UsageError(
            f"tune() was given a Trainer and {given[0]}.",
            "Give the Trainer alone, or the parts that one would be made with.",
        )
    if trainer is None:
        job: Job | Callable[[], Trainer] = job_of_parts(
            model=model,
            arguments=args,
            train_dataset=train_dataset,
            data_collator=data_collator,
            processing_class=processing_class,
            optimizers=optimizers,
            trainer_class=trainer_class,
            trainer_options={}
            if compute_loss_func is None
            else {"compute_loss_func": compute_loss_func},
        )
    elif isinstance(trainer, base_trainer()):
        args = trainer.args
        job = job_of_trainer(trainer)
    else:
        job = maker_of(trainer)
    with in_library_words():
        num_ranks = ranks.num_ranks()
        budget = budget or Budget()
        goal = shared_goal(goal or Goal(), num_ranks)
        if goal.global_batch_size is not None:
            check_shared(goal.global_batch_size, None, num_ranks)
        request = Request(
            workload=_capsule(job, num_ranks),
            goal=goal,
            budget=budget,
            sampler=sampler,
            local_sgd=str(local_sgd),
            processes=num_ranks,
            # A job that runs already has the ranks that it was started with.
            with_one_process=False,
            alone=ranks.spans_machines(num_ranks),
            seed=seed,
            storage=storage,
            out=str(wanted) if wanted is not None else None,
            parent_process=os.getpid(),
        )
        call = _Call(job, request, place, name, display, fresh=fresh, park=park)
        if num_ranks == 1:
            found = call.answer()
        else:
            document = ranks.on_first_rank(
                lambda: call.answer().document, time_limit_s=2 * budget.seconds + 600.0
            )
            # Only the rank that asked has the run at hand.
            found = Recommendation.of(document, run=call.run)
        return replace(found, _arguments=args)


def _capsule(job: Job | Callable[[], Trainer], num_ranks: int) -> Capsule:
    if isinstance(job, Job):
        config = getattr(job.model, "config", None)
        known = str(getattr(config, "name_or_path", "") or "").rstrip("/").rsplit("/", 1)[-1]
        stem, precision = known or type(job.model).__name__, job.precision
    else:
        stem, precision = getattr(job, "__name__", "job").strip("<>_") or "job", "fp32"
    return Capsule(
        name=stem,
        file=FILE_NAME,
        digest=digest_of(job),
        precision=precision,  # type: ignore[arg-type]
        world_size=num_ranks,
        import_path=import_path(),
    )


class _Call:
    """One call of `tune`, from the captured job to its answer."""

    def __init__(
        self,
        job: Job | Callable[[], Trainer],
        request: Request,
        root: Path,
        name: str | None,
        display: DisplayName,
        *,
        fresh: bool,
        park: bool,
    ) -> None:
        self._job = job
        self._request = request
        self._root = root
        self._name = name
        self._display = notebook.choose(display)
        self._fresh = fresh
        self._park = park
        self.run: Path | None = None
        """Directory of the run that answered, once it did."""

    def answer(self) -> Recommendation:
        """The stored answer of the same job, or the one of a run."""
        if not self._fresh:
            known = stored.finished(self._request, self._root)
            if known is not None:
                self._display.say(
                    f"autotune: {known.summary}. Known from run {known.evidence.run}; "
                    "fresh=True measures again."
                )
                self._write_out(known)
                self.run = known.run
                return known
        run = self._prepared()
        capsule = run.workload / FILE_NAME
        run.workload.mkdir(parents=True, exist_ok=True)
        try:
            try:
                capture(self._job, capsule)
            except UsageError:
                run.discard_unbegun()
                raise
            view = self._run(run)
        finally:
            capsule.unlink(missing_ok=True)
        if view.recommendation is None or view.ended is None or view.ended.exit_code != 0:
            raise _error(run, view)
        self.run = run.path
        found = Recommendation.of(view.recommendation, run=run.path)
        self._display.say(f"autotune: {found.summary} (run {run.name})")
        return found

    def _write_out(self, known: Recommendation) -> None:
        """Writes the files of a known answer where they are wanted and not there yet."""
        if self._request.out is None:
            return
        place = Path(self._request.out)
        if os.path.exists(place / "recommendation.json") and load(place) == known:
            return
        check_out(place, run=known.evidence.run, force=False)
        known.export(place)

    def _prepared(self) -> RunDirectory:
        """A new run, or the one that the same call left unfinished."""
        check_link(self._request)
        begun = None
        if not self._fresh:
            begun = stored.unfinished(self._request, self._root, self._name)
        if self._request.out is not None:
            own_name = self._name if begun is None else begun.name
            check_out(Path(self._request.out), run=own_name, force=False)
        if begun is None:
            check_request(self._request)
            return prepare(self._request, self._root, self._name, fresh=self._fresh, resume=False)
        self._display.say(f"autotune: run {begun.name} goes on with every finished trial.")
        # What was asked of an engine that has ended is not meant for the next one.
        control.take(begun.control)
        requests.save(self._request, begun)
        return begun

    def _run(self, run: RunDirectory) -> RunView:
        before = view_of(run)
        is_parked = isinstance(self._job, Job) and self._park
        model = self._job.model if isinstance(self._job, Job) else None
        optimizer = self._job.optimizers[0] if isinstance(self._job, Job) else None
        with parked(model, optimizer) if is_parked else nullcontext():  # type: ignore[arg-type]
            engine = start_engine(run, self._environment())
            try:
                return watch.until_it_ends(run, engine, _NoSignals(), self._display, before)
            except BaseException:
                _stop(run, engine, self._display)
                raise

    def _environment(self) -> dict[str, str]:
        environment = without_launch(dict(os.environ))
        if self._request.workload.precision != "fp32":
            # Earlier versions of TrainingArguments leave it behind, where it would also hold for
            # the checks in fp32.
            environment.pop("ACCELERATE_MIXED_PRECISION", None)
        return engine_environment(self._request, environment)


class _NoSignals(watch.Signals):
    """The caller's own handlers stay in force: Ctrl-C is the KeyboardInterrupt that it expects."""


def _stop(run: RunDirectory, engine: subprocess.Popen[bytes], display: Display) -> None:
    """Lets the engine save what it has, and waits; a second interrupt ends it at once."""
    try:
        try:
            control.send(run.control, "stop_now", "the caller")
        except OSError:
            # The run directory is gone, or its disk is full: a signal needs neither.
            engine.terminate()
        display.say("Stopping now, finished trials are kept.")
        deadline_s = time.monotonic() + STOP_PATIENCE_S
        while engine.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
    finally:
        if engine.poll() is None:
            engine.terminate()
            try:
                engine.wait(watch.LAST_GRACE_S)
            except subprocess.TimeoutExpired:
                engine.kill()
                engine.wait()


def _error(run: RunDirectory, view: RunView) -> AutotuneError:
    ended = view.ended
    if ended is None and is_full(run.path):
        return AutotuneError(
            f"The engine could not go on: the disk that holds {run.path} is full.",
            "Make room there, and call tune() again to go on with every finished trial.",
        )
    if ended is None:
        return AutotuneError(
            "The engine ended without a word.",
            f"{run.engine_log} may say why; call tune() again to go on with every finished trial.",
        )
    kind = _KINDS.get(ended.exit_code, AutotuneError)
    if ended.reason == WorkloadError.__name__:
        kind = WorkloadError
    return kind(ended.cause or f"The run ended: {ended.reason}.", ended.remedy)
