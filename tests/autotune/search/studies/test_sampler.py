"""Optuna's samplers over a finite list: nothing twice, constraints known, faults survived."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.errors import UsageError
from autotune.outcome import Measured, OutOfMemory
from autotune.request import SamplerName
from autotune.space import Space
from tests.testing.landscapes import Entry, Landscape, measured
from tests.testing.studies import LANDSCAPE, Warnings, empty, opened, run_trials, stored, tell

pytestmark = pytest.mark.long


def made_up_device() -> Landscape:
    """Sizes 1 to 64 on a device that takes 40 units a sample, half with checkpointing, up to 600.

    As in case 23: the rate rises right up to the edge.
    """
    checkpointing = Checkpointing(every_n_layers=1)
    candidates = tuple(
        Configuration(micro_batch_size=size, accumulation_steps=2, checkpointing=form)
        for form in (NO_CHECKPOINTING, checkpointing)
        for size in range(1, 65)
    )
    entries = []
    for candidate in candidates:
        size, is_on = candidate.micro_batch_size, candidate.checkpointing.is_on
        need = round(size * 40 * (0.5 if is_on else 1.0))
        rate = size**0.8 * (0.75 if is_on else 1.0)
        fits = measured([size / rate] * 4, size, need)
        too_large = OutOfMemory(where="device", cause="full", limit_bytes=600)
        entries.append(Entry(configuration=candidate, outcome=fits if need <= 600 else too_large))
    space = Space(
        global_batch_size=128,
        baseline=candidates[7],
        candidates=candidates,
        ruled_out=(),
        forms=(NO_CHECKPOINTING, checkpointing),
        kept_fractions=(1.0, 0.5),
    )
    return Landscape(name="case 23", space=space, entries=tuple(entries), usable_bytes=600)


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "grid"])
def test_every_sampler_tries_nothing_twice_and_few_that_do_not_fit(
    sampler: SamplerName, tmp_path: Path
) -> None:
    landscape = made_up_device()
    # The gp sampler takes half a second a trial.
    num_trials = 40 if sampler != "gp" else 15
    told = Warnings()
    history = empty(landscape)
    with opened(tmp_path / "study.db", history, sampler=sampler, told=told) as study:
        history = run_trials(study, history, num_trials, landscape)
        trials = stored(study)
    assert told == []
    tried = [t.configuration for t in history.trials]
    assert len(set(tried)) == len(tried) == len(trials)
    assert {*tried} | {c for r in history.regions for c in r.configurations} | {
        *history.open_candidates
    } == {*landscape.space.candidates}
    assert sum(isinstance(t.outcome, OutOfMemory) for t in history.trials) <= 5
    told_as = {TrialState.PRUNED} | ({TrialState.COMPLETE} if sampler == "gp" else set())
    worst = min(t.measured.samples_per_s for t in history.measured)
    for trial, finished in zip(trials, history.trials, strict=True):
        violation = constraint(trial)
        if isinstance(finished.outcome, OutOfMemory):
            assert violation > 0
            assert trial.state in told_as
            assert trial.value is None or trial.value >= worst
        else:
            assert isinstance(finished.outcome, Measured)
            assert trial.value == finished.outcome.samples_per_s
            assert violation <= 0


def constraint(trial: optuna.trial.FrozenTrial) -> float:
    if hasattr(trial, "constraints"):
        return trial.constraints["memory"]
    return float(trial.user_attrs["memory_over_limit"])


def test_a_sampler_that_ignores_pruned_trials_is_told_the_worst_value(tmp_path: Path) -> None:
    fits, too_large = LANDSCAPE.space.candidates[0], LANDSCAPE.space.candidates[7]
    with opened(tmp_path / "study.db", sampler="gp") as study:
        study.ask(empty(), fits)
        history = tell(study, empty(), LANDSCAPE.outcome(fits))
        study.ask(history, too_large)
        tell(study, history, OutOfMemory(where="device", cause="full"))
        first, second = stored(study)
    assert second.state is TrialState.COMPLETE
    assert second.value == first.value
    assert constraint(second) == 1.0


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_an_older_optuna_gets_constraints_from_a_function(
    sampler: SamplerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sampler", "entry"):
        monkeypatch.setattr(f"autotune.search.studies.{module}.has_set_constraint", lambda: False)
    told = Warnings()
    with opened(tmp_path / "study.db", sampler=sampler, told=told) as study:
        history = run_trials(study, empty(), 10)
        trials = stored(study)
    assert told == []
    ran_out = [isinstance(t.outcome, OutOfMemory) for t in history.trials]
    assert True in ran_out
    for trial, did_run_out in zip(trials, ran_out, strict=True):
        # GPSampler leaves pruned trials without a constraint; it does not read them either.
        if trial.state is TrialState.COMPLETE or sampler == "tpe":
            assert (trial.system_attrs["constraints"][0] > 0) == did_run_out


def test_the_first_trial_that_runs_out_gets_no_made_up_value(tmp_path: Path) -> None:
    too_large = LANDSCAPE.space.candidates[7]
    with opened(tmp_path / "study.db", sampler="gp") as study:
        assert study.ask(empty(), too_large) == too_large
        tell(study, empty(), OutOfMemory(where="device", cause="full"))
        (trial,) = stored(study)
    assert trial.state is TrialState.PRUNED
    assert trial.value is None
    assert constraint(trial) == 1.0


def test_a_sampler_that_cannot_propose_is_replaced_by_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("singular matrix")

    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_relative", broken)
    told = Warnings()
    with opened(tmp_path / "study.db", sampler="tpe", told=told) as study:
        history = run_trials(study, empty(), 3)
    first_three = [t.configuration for t in history.trials]
    assert first_three == list(LANDSCAPE.space.candidates[:3])
    assert len(told) == 1
    assert "TPESampler: singular matrix" in told[0][0]


def test_gp_without_scipy_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "autotune.search.studies.sampler.importlib.util.find_spec",
        lambda name: None if name == "scipy" else object(),
    )
    with (
        pytest.raises(UsageError, match="gp needs scipy, which is not installed") as caught,
        opened(tmp_path / "study.db", sampler="gp"),
    ):
        pass
    assert "pip install scipy" in (caught.value.remedy or "")


def test_only_gp_loads_torch_and_only_when_it_has_a_model() -> None:
    script = (
        "import sys, tempfile; from pathlib import Path\n"
        "from tests.testing.studies import *\n"
        "for sampler in ('tpe', 'random', 'auto', 'gp'):\n"
        "    with opened(Path(tempfile.mkdtemp()) / 's.db', sampler=sampler) as study:\n"
        "        study.ask(empty(), LANDSCAPE.space.baseline)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[4], check=True, timeout=120
    )
