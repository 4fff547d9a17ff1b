"""The search on real jobs: real workers, real trials, the kinds of input that break tuners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune import control
from autotune.configuration import Configuration
from autotune.errors import UsageError
from autotune.outcome import Failed, Measured, OutOfMemory
from autotune.search.confirm import are_forked
from autotune.search.contestant import Contestant
from tests.testing import jobs
from tests.testing.shared import case_folder

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_search_measures_the_baseline_first_and_writes_everything_down(tmp_path: Path) -> None:
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path, micro_batch_size=4)
    with jobs.searched(asked, tmp_path) as run:
        first = run.history.trials[0]
        assert first.purpose == "baseline"
        assert first.configuration == Configuration(micro_batch_size=4, accumulation_steps=2)
        assert isinstance(first.outcome, Measured)
        assert all(t.configuration.global_batch_size == 8 for t in run.history.trials)
        speed = first.outcome.speed
        assert set(speed.step_samples) == {8}
        # 5 texts of 2, 4, 1, 9 and 2 words, with [CLS] and [SEP] around each of them.
        assert all(8 * 3 <= tokens <= 8 * 11 for tokens in speed.step_tokens)
        assert first.outcome.memory.total_bytes > first.outcome.memory.outside_bytes > 0
        view = run.view
        assert [t.number for t in view.trials] == list(range(len(run.history.trials)))
        assert view.search_ended is not None
        assert view.search_ended.reason == run.reason
        # The classifier ignores the loss keywords that it takes, and that was found out.
        assert view.parity is not None
        assert view.parity.repaired
        assert "model_accepts_loss_kwargs = False" in view.parity.detail
        # What ran before changes nothing: the last trial started from the same level.
        again = run.engine.run(first.configuration, "search", "once more")
        assert isinstance(again.outcome, Measured)
        assert again.outcome.memory.total_bytes == first.outcome.memory.total_bytes
        shared = min(len(speed.losses), len(again.outcome.speed.losses))
        assert again.outcome.speed.losses[:shared] == speed.losses[:shared]


def test_rounds_in_forks_go_on_with_the_data_and_begin_with_the_same_weights(
    tmp_path: Path,
) -> None:
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path, micro_batch_size=4, trials=1)
    with jobs.searched(asked, tmp_path) as run:
        (trial,) = run.history.measured
        assert are_forked(run.engine.pool, [trial])
        speed = replace(trial.measured.speed, step_times_s=(1.5,) * 3, step_samples=(8,) * 3)
        slow = replace(trial, measured=replace(trial.measured, speed=speed))
        assert not are_forked(run.engine.pool, [trial, slow]), "3 s to warm up"
        ranks = replace(trial, configuration=replace(trial.configuration, world_size=2))
        assert not are_forked(run.engine.pool, [trial, ranks])
        blocks = {}
        for is_forked in (True, False):
            contestant = Contestant(
                engine=run.engine,
                number=run.engine.take_number(),
                trial=trial,
                stays=True,
                is_forked=is_forked,
                is_baseline=True,
            )
            try:
                contestant.launch()
                assert contestant.enter() is None
                assert [contestant.block(2) for _ in range(2)] == [None, None]
                blocks[is_forked] = contestant.blocks
                assert len(contestant.s_per_sample) == 2
                allocated_bytes = trial.measured.memory.allocated_bytes
                assert contestant.memory.allocated_bytes == allocated_bytes
            finally:
                contestant.close()
        (new, later), (first, second) = blocks[True], blocks[False]
        assert new.losses == first.losses
        assert later.step_tokens == second.step_tokens != new.step_tokens
        assert later.losses != second.losses, "the weights of the second round are those of before"


def test_a_missing_pad_token_is_no_memory_fault_and_leaves_micro_batch_size_one(
    tmp_path: Path,
) -> None:
    asked = jobs.request(jobs.classifier(tmp_path, family="gpt2"), tmp_path)
    with jobs.searched(asked, tmp_path) as run:
        found = jobs.outcomes(run.history, (1, 2, 4, 8))
        assert found[8] == "failed"
        assert found[1] == "measured"
        assert "out_of_memory" not in found.values()
        failed = next(t.outcome for t in run.history.trials if isinstance(t.outcome, Failed))
        assert "no padding token is defined" in failed.cause
        assert failed.remedy is not None
        assert "--pad-token" in failed.remedy
        assert all(c.micro_batch_size == 1 for c in run.history.open_candidates)
        assert run.history.measured[0].configuration.global_batch_size == 8


def test_a_stream_is_searched_without_a_length(tmp_path: Path) -> None:
    spec = jobs.classifier(tmp_path, streaming=True, num_rows=200)
    asked = jobs.request(spec, tmp_path, trials=2)
    with jobs.searched(asked, tmp_path) as run:
        assert run.job.facts.num_rows is None
        assert run.history.measured
        assert all(set(t.measured.speed.step_samples) == {8} for t in run.history.measured), (
            "every timed step trained on the global batch"
        )


def test_fewer_rows_than_a_batch_are_said_and_counted_as_they_are(tmp_path: Path) -> None:
    spec = jobs.classifier(tmp_path, num_rows=7)
    asked = jobs.request(spec, tmp_path, global_batch_size=16, trials=2)
    with jobs.searched(asked, tmp_path) as run:
        assert any("7 rows" in w.cause for w in run.view.warnings)
        assert max(run.job.space.micro_batch_sizes) == 4
        assert all(set(t.measured.speed.step_samples) == {7} for t in run.history.measured)


def test_logits_that_fill_the_memory_rule_larger_micro_batches_out(tmp_path: Path) -> None:
    config = case_folder("16-vocab-logits-spike") / "model.json"
    spec = replace(
        jobs.language_model(tmp_path), model_config=str(config), tokenizer=str(tmp_path / "gpt2")
    )
    asked = jobs.request(spec, tmp_path, global_batch_size=64, memory_limit_bytes=700 * 2**20)
    with jobs.searched(asked, tmp_path) as run:
        assert len(run.job.space.forms) == 1, "checkpointing saves nothing here"
        ruled_out = {
            c.micro_batch_size for r in run.history.regions if r.by_memory for c in r.configurations
        }
        for trial in run.history.trials:
            if isinstance(trial.outcome, OutOfMemory):
                assert trial.outcome.needed_at_least_bytes is not None
                ruled_out.add(trial.configuration.micro_batch_size)
        assert 32 in ruled_out, "32 rows of 60,000 logits do not fit"
        assert all(t.configuration.micro_batch_size < min(ruled_out) for t in run.history.measured)
        assert run.history.measured, "what fits was measured"
        assert all(t.total_bytes <= run.job.usable_bytes for t in run.history.measured)


def test_a_limit_below_the_process_itself_fits_nothing_and_says_by_how_much(
    tmp_path: Path,
) -> None:
    from autotune.advice.nothing import nothing_fits

    asked = jobs.request(jobs.classifier(tmp_path), tmp_path, memory_limit_bytes=50 * 2**20)
    with jobs.searched(asked, tmp_path) as run:
        assert not run.history.measured
        cause, remedy = nothing_fits(run.history, run.job.usable_bytes)
        assert "ran out of memory" in cause
        assert "--memory-limit" in remedy
        assert "libraries alone take" in remedy, "no smaller model would help"


def test_the_budget_of_trials_is_kept_a_stop_heeded_and_nothing_left_running(
    tmp_path: Path,
) -> None:
    asked = jobs.request(jobs.classifier(tmp_path), tmp_path, trials=1)
    with jobs.searched(asked, tmp_path) as run:
        assert psutil.Process().children(recursive=True)
        assert run.reason == "the budget of 1 trial is spent"
        assert len(run.history.trials) == 1
        control.send(run.session.run.control, "stop_now", "SIGTERM")
        stopped = run.engine.run(run.job.space.candidates[0], "search", "to be stopped")
        assert stopped.outcome.kind == "stopped"
        assert run.session.stop_exit_code == 143
    assert not psutil.Process().children(recursive=True)


def test_a_micro_batch_that_does_not_divide_the_global_batch_is_refused(tmp_path: Path) -> None:
    asked = jobs.request(
        jobs.classifier(tmp_path), tmp_path, global_batch_size=8, micro_batch_size=3
    )
    with (
        pytest.raises(UsageError, match="not a multiple of the micro-batch size 3") as caught,
        jobs.searched(asked, tmp_path),
    ):
        pass
    assert caught.value.remedy == "Use --micro-batch-size 2, or --global-batch-size 9."
