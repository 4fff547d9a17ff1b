"""The whole job on one page, and the engine process's main function.

`python -m autotune.tuning RUN_DIRECTORY` is the engine: it probes the machine, loads the workload
in a child, checks it, searches, confirms, recommends and exports. It imports no torch; everything
that does runs in children. What it finds stands in the run directory from the first second on.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from autotune import lease, storage_url
from autotune import request as requests
from autotune.advice.document import document
from autotune.advice.nothing import none_is_predicted_to_fit, nothing_fits
from autotune.delivery import export_run
from autotune.errors import (
    AutotuneError,
    ExitCode,
    NothingFeasible,
    Unconfirmed,
)
from autotune.events import (
    RecommendationMade,
    RunEnded,
    RunStarted,
)
from autotune.folding import fold
from autotune.journal import Journal
from autotune.outcome import Failed, Stopped, TimedOut
from autotune.request import Request
from autotune.run_directory import RunDirectory, is_want_of_room
from autotune.search.averaging import efficiencies, local_sgd_model, try_local_sgd
from autotune.search.batch_size import known_efficiencies, measuring_s, try_batch_sizes
from autotune.search.confirm import confirm, confirmation_s
from autotune.search.engine import Engine, Limits
from autotune.search.evidence.closing import with_trials
from autotune.search.evidence.history import History, finished_trials
from autotune.search.link import know_link
from autotune.search.preparation import Prepared, prepare_job
from autotune.search.session import Session
from autotune.search.strategy import make_strategy
from autotune.search.studies import storage_faults
from autotune.starting import library_versions
from autotune.view import RunView
from autotune.workload.spec import Capsule

PART_FOR_NOISE = 0.25
"""Most of the budget that the search leaves for measuring the gradient noise scale."""


def run_engine(run: RunDirectory) -> ExitCode:
    """Takes a run from its request to its recommendation; what happens goes to the journal."""
    request = requests.load(run)
    request = replace(request, storage=storage_url.with_password(request.storage, os.environ))
    # Nothing that a trial runs has any use for it.
    os.environ.pop(storage_url.VARIABLE, None)
    run.create()
    lease.take(run.lease)
    try:
        with Journal(run.journal, run.progress) as journal:
            session = Session(
                run,
                journal,
                seconds=request.budget.seconds,
                parent_process=request.parent_process,
            )
            session.handle_signals()
            ended = _run(session, request)
            session.emit(ended)
            return ExitCode(ended.exit_code)
    finally:
        run.progress.unlink(missing_ok=True)
        if isinstance(request.workload, Capsule):
            # Live objects are kept no longer than they are needed.
            (run.workload / request.workload.file).unlink(missing_ok=True)
        lease.release(run.lease)


def _run(session: Session, request: Request) -> RunEnded:
    try:
        return _tune(session, request)
    except AutotuneError as error:
        if session.stop == "now":
            return _stopped(session)
        return RunEnded(
            reason=type(error).__name__,
            exit_code=error.exit_code,
            cause=error.cause,
            remedy=error.remedy,
        )
    except Exception as error:  # noqa: BLE001  (the journal must say how the run ended)
        traceback.print_exc()
        if isinstance(error, OSError) and is_want_of_room(error):
            where = Path(error.filename or session.run.path)
            return RunEnded(
                reason="disk full",
                exit_code=ExitCode.INTERNAL,
                cause=f"There is no room left on the disk that holds {where}.",
                remedy="Make room there; --resume goes on with every finished trial.",
            )
        return RunEnded(
            reason="internal error",
            exit_code=ExitCode.INTERNAL,
            cause=f"{type(error).__name__}: {error}",
            remedy=f"{session.run.engine_log} holds the details; --resume goes on with every "
            "finished trial.",
        )


def _stopped(session: Session) -> RunEnded:
    return RunEnded(
        reason="stopped",
        exit_code=session.stop_exit_code,
        cause=f"Stopped by {session.stopped_by}.",
        remedy="--resume goes on with every finished trial.",
    )


def _tune(session: Session, request: Request) -> RunEnded:
    """Probe, load, check, search, confirm, recommend, export."""
    view = fold(session.journal.records)
    session.emit(_run_started(session, request, resumed=view.started is not None))
    if view.recommendation is not None:
        # Of a run that has its answer nothing can be missing but the files and the last word.
        is_finished = view.ended is not None and view.ended.exit_code == 0
        is_wanted = request.out is not None or not is_finished
        if is_wanted and not _is_exported_to(view, _out(session, request)):
            _export(session, request)
        return RunEnded(
            reason="finished before" if is_finished else "finished", exit_code=ExitCode.OK
        )
    storage_faults.check(request.storage)
    with prepare_job(session, request) as job:
        if job is None:
            return _stopped(session)
        know_link(session, request, job, view)
        engine, history = _engine(session, job, view, request)
        strategy = make_strategy(
            request, session, history, digest=job.digest, machine=job.machine.likeness
        )
        sizes = request.goal.global_batch_size_range
        reads_gradients = sizes is not None and view.noise_scale is None
        most_for_noise_s = PART_FOR_NOISE * request.budget.seconds if reads_gradients else 0.0
        engine.search(
            strategy,
            Limits(
                num_trials=request.budget.trials,
                reserve_s=lambda history: _reserve_s(
                    engine, history, most_for_noise_s=most_for_noise_s
                ),
            ),
        )
        _know_the_baseline(engine)
        try_local_sgd(
            engine,
            local_sgd_model(job.facts),
            wish=request.local_sgd,
            total_steps=request.total_steps,
        )
        try_batch_sizes(
            engine,
            job.facts,
            sizes,
            view.noise_scale,
            reserve_s=_reserve_s(engine, engine.history),
        )
        if session.is_stopped():
            return _stopped(session)
        verdict = confirm(engine, engine.history.space.baseline)
        if session.is_stopped():
            return _stopped(session)
        if verdict is None:
            raise _unconfirmed(engine, job)
        view = fold(session.journal.records)
        answer = document(view, engine.history, request)
        session.emit(RecommendationMade(document=answer))
    _export(session, request)
    return RunEnded(reason="finished", exit_code=ExitCode.OK)


def _out(session: Session, request: Request) -> Path:
    return Path(request.working_directory, request.out) if request.out else session.run.out


def _export(session: Session, request: Request) -> None:
    export_run(session.run, _out(session, request), force=request.force, session=session)


def _is_exported_to(view: RunView, directory: Path) -> bool:
    told = view.exported.directory if view.exported is not None else None
    return told == str(directory.absolute()) and (directory / "recommendation.json").is_file()


def _know_the_baseline(engine: Engine) -> None:
    """Tries the baseline, where another engine of a shared study has it and has not told of it."""
    history, baseline = engine.history, engine.history.space.baseline
    if history.measured and history.is_open(baseline) and not engine.session.is_stopped():
        engine.run(baseline, "baseline", "what the answer is compared with")


def _unconfirmed(engine: Engine, job: Prepared) -> AutotuneError:
    """Why there is no verdict: nothing works, or the budget was too small."""
    if not engine.history.measured and _ran_out_of_time(engine.history):
        foreseen = none_is_predicted_to_fit(engine.history, job.usable_bytes)
        if foreseen is not None:
            return NothingFeasible(*foreseen)
        return Unconfirmed(
            "The budget ended before any configuration could be measured.",
            "Give more with --budget, and see that nothing else keeps this machine busy.",
        )
    if not engine.history.measured:
        return NothingFeasible(*nothing_fits(engine.history, job.usable_bytes))
    return Unconfirmed(
        "The budget ended before the best configuration was confirmed.",
        "Give more with --budget and --resume; finished trials are kept.",
    )


def _ran_out_of_time(history: History) -> bool:
    """Whether time is the only reason why nothing was measured: a killed process shows nothing."""
    outcomes = [t.outcome for t in history.trials]
    killed = [o for o in outcomes if isinstance(o, Failed) and o.is_killed]
    others = [o for o in outcomes if isinstance(o, TimedOut | Stopped)]
    return len(killed) + len(others) == len(outcomes) and (not killed or bool(others))


def _engine(
    session: Session, job: Prepared, view: RunView, request: Request
) -> tuple[Engine, History]:
    """The engine with what an earlier engine of this run has found out already."""
    step_counts = job.space.local_sgd_steps
    trials = finished_trials(view, forget_stopped=True)
    history = with_trials(
        History(
            space=job.space,
            usable_bytes=job.usable_bytes,
            gradient_bytes=job.gradient_bytes,
            efficiencies=efficiencies(step_counts, local_sgd_model(job.facts)),
            required_local_sgd_steps=None
            if request.local_sgd in ("auto", "off") or not step_counts
            else step_counts[0],
            batch_efficiencies=known_efficiencies(
                view.noise_scale,
                (trial.configuration for trial in trials),
                job.space.global_batch_size,
            ),
        ),
        trials,
    )
    engine = _with_number(session, job, view, history)
    if job.foresight is not None:
        engine.foresee(job.foresight)
    return engine, engine.history


def _with_number(session: Session, job: Prepared, view: RunView, history: History) -> Engine:
    """The engine, whose trials go on where the numbers of earlier ones ended."""
    next_number = max((t.number for t in view.trials), default=-1) + 1
    started = [r.event.number for r in session.journal.records if r.event.kind == "trial_started"]
    next_number = max([next_number, *(number + 1 for number in started)])
    return Engine(session, job.pool, history, job.plan, next_number)


def _reserve_s(engine: Engine, history: History, *, most_for_noise_s: float = 0.0) -> float:
    """What comes after the search will take, from what was seen so far.

    Args:
        engine: With the time that cold starts took.
        history: With the time that steps took.
        most_for_noise_s: What may be kept for measuring the noise scale; where that takes longer,
            nothing is, and it is measured only if time happens to be left.
    """
    slowest = max((t.measured.speed.step_s for t in history.measured), default=1.0)
    confirming_s = confirmation_s(
        num_contestants=2, cold_start_s=engine.pool.cold_start_s, step_s=slowest
    )
    noise_s = measuring_s(slowest)
    return confirming_s + (noise_s if noise_s <= most_for_noise_s else 0.0)


def _run_started(session: Session, request: Request, *, resumed: bool) -> RunStarted:
    return RunStarted(
        run=session.run.name,
        created_unix_s=time.time(),
        request=requests.request_adapter().dump_python(requests.public(request), mode="json"),
        versions=library_versions(),
        process=os.getpid(),
        host=socket.gethostname(),
        resumed=resumed,
    )


def main() -> None:
    """Entry point of the engine process."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m autotune.tuning RUN_DIRECTORY")
    run = RunDirectory(Path(sys.argv[1]))
    try:
        code = run_engine(run)
    except AutotuneError as error:
        sys.stderr.write(f"{error}\n")
        code = error.exit_code
    raise SystemExit(int(code))


if __name__ == "__main__":
    main()
