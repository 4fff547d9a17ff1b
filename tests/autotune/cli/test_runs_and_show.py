from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from autotune import lease
from autotune.cli.app import main
from autotune.display import standing
from autotune.events import BestChanged, Confirmed, RecommendationMade, RunEnded
from autotune.lease import Lease
from autotune.run_directory import RunDirectory, write_json
from tests.testing import runs

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of all runs, below the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "autotune-runs"


def _finished(root: Path, name: str = "one") -> RunDirectory:
    return runs.write_run(root, name, [*runs.searching(name), *runs.ending(name, root / "out")])


def _order(*runs_in_order: RunDirectory) -> None:
    for age, run in enumerate(reversed(runs_in_order)):
        stamp = time.time() - 10 * age
        os.utime(run.request, (stamp, stamp))


def test_no_runs_yet(root: Path, capsys: Captured) -> None:
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "No runs in autotune-runs yet. `autotune tune --demo` makes one.\n"
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "run_directory": "autotune-runs",
        "runs": [],
    }


def test_runs_tells_every_state(root: Path, capsys: Captured) -> None:
    def ended(code: int) -> RunEnded:
        return RunEnded(reason="it ended", exit_code=code)

    finished = _finished(root, "finished")
    killed = runs.write_run(root, "killed", runs.searching("killed"))
    running = runs.write_run(root, "running", runs.searching("running"))
    write_json(running.lease, asdict(lease.mine()))
    stale = runs.write_run(root, "stale", runs.searching("stale"))
    old = Lease(host=socket.gethostname(), process=os.getpid(), started_unix_s=1.0)
    write_json(stale.lease, asdict(old))
    none = runs.write_run(root, "none", [*runs.opening("none"), ended(4)])
    unconfirmed = runs.write_run(root, "late", [*runs.searching("late"), ended(5)])
    stopped = runs.write_run(root, "stopped", [*runs.opening("stopped"), ended(130)])
    failed = runs.write_run(root, "failed", [*runs.opening("failed"), ended(1)])
    unborn = runs.write_run(root, "unborn", [])
    damaged = runs.write_run(root, "damaged", runs.searching("damaged"))
    damaged.journal.write_bytes(b"{ this is no JSON\n" + damaged.journal.read_bytes())
    _order(finished, killed, running, stale, none, unconfirmed, stopped, failed, unborn, damaged)
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        *("finished", "killed", "running", "stale", "none"),
        *("late", "stopped", "failed", "unborn", "damaged"),
    ]
    assert lines[1].split() == ["finished", "finished", "16×4", "+60", "%", "3", "now"]
    assert "killed   " in lines[2][8:]
    assert "+60 %, unconfirmed" in lines[2]
    main(["runs", "--json"])
    states = {r["run"]: r["state"] for r in json.loads(capsys.readouterr().out)["runs"]}
    assert states == {
        "finished": "finished",
        "killed": "killed",
        "running": "running",
        "stale": "killed",
        "none": "nothing feasible",
        "late": "unconfirmed",
        "stopped": "stopped",
        "failed": "failed",
        "unborn": "not started",
        "damaged": "damaged",
    }


def test_a_gain_in_the_list_is_that_which_is_shown_of_the_run(root: Path, capsys: Captured) -> None:
    by_batch = [
        replace(event, speedup=1.7) if isinstance(event, BestChanged) else event
        for event in runs.searching("one")
    ]
    runs.write_run(root, "one", by_batch)
    assert main(["runs"]) == 0
    assert "+60 %, unconfirmed" in capsys.readouterr().out
    assert main(["show", "one"]) == 0
    assert "+60 %" in capsys.readouterr().out


def test_show_tells_the_whole_story(root: Path, capsys: Captured) -> None:
    _finished(root)
    assert main(["show", "one"]) == 0
    out = capsys.readouterr().out
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[:2] == ["run      one", "state    finished"]
    assert any(line.split()[:4] == ["1", "✓", "measured", "search"] for line in lines)
    assert "  ▲ #2 out of memory: the limit of 4.00 GiB (needs at least 5.00 GiB)" in lines
    assert "  - local SGD steps above 1: one process" in lines
    assert "  speed   40.0 samples/s (95 %: 39.6 to 40.4), a step takes 1.60 s" in lines
    assert "  change  +60 % samples/s over 8×8 (95 %: +50 % to +70 %)" in lines
    assert "  - least memory: 8×8, 40.0 samples/s, 2.00 GiB" in lines
    assert "  trainer.py  read by Python" in lines


def test_show_says_which_rates_are_of_the_search_alone_and_what_is_set_for_evaluation(
    root: Path, capsys: Captured
) -> None:
    told = runs.answer("one")
    answer = told["recommendation"]
    assert isinstance(answer, dict)
    answer["evaluation"] = {"per_device_eval_batch_size": 32}
    told["trials"] = [
        {
            "number": 3,
            "purpose": "confirm",
            "configuration": runs.BEST.to_json(),  # type: ignore[dict-item]
            "outcome": "measured",
        }
    ]
    ending = [
        replace(event, document=told) if isinstance(event, RecommendationMade) else event
        for event in runs.ending("one", root / "out")
    ]
    runs.write_run(root, "one", [*runs.searching("one"), *ending])
    assert main(["show", "one"]) == 0
    out = capsys.readouterr().out
    assert "  - least memory: 8×8, 40.0 samples/s (once, before confirmation), 2.00 GiB" in out
    assert "  eval    per_device_eval_batch_size=32, which touches evaluation only" in out


def test_show_marks_a_gain_that_is_not_settled(root: Path, capsys: Captured) -> None:
    ending = [
        replace(event, settled=False) if isinstance(event, Confirmed) else event
        for event in runs.ending("one", root / "out")
    ]
    runs.write_run(root, "one", [*runs.searching("one"), *ending])
    assert main(["show", "one"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "  change  +60 % samples/s over 8×8 (95 %: +50 % to +70 %), not settled" in lines
    (proof,) = (line for line in lines if line.startswith("proof "))
    assert "measured again beside the baseline, not settled: +60 %" in proof


def test_show_json_is_the_public_document(root: Path, capsys: Captured) -> None:
    run = _finished(root)
    for word in ("one", "last", str(run.path)):
        assert main(["show", word, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == runs.answer("one")


def test_show_json_of_an_unfinished_run_lists_its_trials(root: Path, capsys: Captured) -> None:
    runs.write_run(root, "one", runs.searching("one"))
    assert main(["show", "one", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recommendation"] is None
    assert "error" not in document
    assert [t["number"] for t in document["trials"]] == [0, 1, 2]
    assert document["trials"][1]["measured"]["samples_per_s"] == 40.0
    assert document["cost"]["trials"] == 3
    assert document["cost"]["trial_s"] == 4.5


def test_a_run_that_is_not_there_names_those_that_are(root: Path, capsys: Captured) -> None:
    _finished(root)
    assert main(["show", "on"]) == 2
    assert capsys.readouterr().err == (
        "Error: There is no run 'on' in autotune-runs.\n"
        "Hint: Runs there: one. `autotune runs` lists them all.\n"
    )


def test_a_damaged_journal_is_an_error_with_the_line(root: Path, capsys: Captured) -> None:
    run = _finished(root)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(b"".join([*lines[:2], lines[2][:20] + b"\n", *lines[3:]]))
    assert main(["show", "one"]) == 1
    err = capsys.readouterr().err
    assert f"Error: Line 3 of {run.journal.relative_to(root.parent)} is damaged." in err
    assert "Hint: " in err


def test_a_cut_last_line_is_left_out(root: Path, capsys: Captured) -> None:
    run = runs.write_run(root, "one", runs.searching("one"))
    run.journal.write_bytes(run.journal.read_bytes()[:-30])
    assert main(["show", "one"]) == 0
    assert "killed" in capsys.readouterr().out


def test_a_recommendation_of_another_shape_is_an_error(root: Path, capsys: Captured) -> None:
    document = runs.answer("one")
    document["recommendation"] = {"configuration": {}}
    runs.write_run(root, "one", [*runs.searching("one"), RecommendationMade(document=document)])
    assert main(["show", "one"]) == 1
    assert "cannot be read: recommendation.configuration" in capsys.readouterr().err
    assert main(["show", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_following_a_run_that_has_ended_shows_it(root: Path, capsys: Captured) -> None:
    _finished(root)
    assert main(["show", "one", "--follow", "--display", "plain"]) == 0
    out, err = capsys.readouterr()
    assert "recommends" in out
    assert err == ""


def test_an_event_that_makes_no_sense_is_an_error(root: Path, capsys: Captured) -> None:
    run = runs.write_run(root, "one", runs.searching("one"))
    text = run.journal.read_text()
    run.journal.write_text(text.replace('"micro_batch_size":16', '"micro_batch_size":0'))
    assert main(["show", "one"]) == 1
    assert "makes no sense: micro_batch_size must be at least 1, not 0." in capsys.readouterr().err
    assert main(["runs"]) == 0
    assert "damaged" in capsys.readouterr().out


def test_a_trial_whose_engine_was_killed_runs_no_more(root: Path, capsys: Captured) -> None:
    begun = runs.trial(3, runs.BEST, runs.measured(1.0))[0]
    run = runs.write_run(root, "one", [*runs.searching("one"), begun])
    assert main(["show", "one"]) == 0
    out = capsys.readouterr().out
    assert "▸" not in out
    lines = [line.split() for line in out.splitlines()]
    assert ["3", "⊘", "lost", "search", "16×4"] in [line[:5] for line in lines]
    assert "  ⊘ #3 lost: it was running when its engine ended" in out.splitlines()
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["trials"] == 3
    write_json(run.lease, asdict(lease.mine()))
    assert main(["show", "one"]) == 0
    assert ["3", "▸", "running"] in [
        line.split()[:3] for line in capsys.readouterr().out.splitlines()
    ]


def test_a_journal_that_is_missing_is_no_run_that_has_not_begun(
    root: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.write_run(root, "one", [])
    run.journal.unlink()
    assert main(["show", "one"]) == 0
    assert "state    not started" in capsys.readouterr().out
    run.engine_log.touch()
    assert main(["show", "one"]) == 0
    assert "state    starting" in capsys.readouterr().out
    _age(run, standing.START_PATIENCE_S + 5)
    assert main(["show", "one"]) == 0
    assert "state    killed" in capsys.readouterr().out
    monkeypatch.setenv("CI", "1")
    assert main(["tui", "one"]) == 1, "as the command that started it"
    capsys.readouterr()
    run.trial(0).mkdir()
    for command in ("show", "tui"):
        assert main([command, "one"]) == 1
        assert "Error: The journal autotune-runs/one/journal.jsonl is missing, though trials" in (
            capsys.readouterr().err
        )
    assert main(["runs"]) == 0
    assert "damaged" in capsys.readouterr().out
    assert main(["tune", "--resume", "--name", "one"]) == 1, "it would begin with number 0 again"


def _age(run: RunDirectory, age_s: float) -> None:
    stamp = time.time() - age_s
    os.utime(run.request, (stamp, stamp))


def test_show_json_of_a_run_that_found_nothing_says_why(root: Path, capsys: Captured) -> None:
    end = RunEnded(reason="NothingFeasible", exit_code=4, cause="It does not fit.", remedy="Grow.")
    runs.write_run(root, "one", [*runs.searching("one"), end])
    assert main(["show", "one", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["error"] == {"cause": "It does not fit.", "remedy": "Grow."}


def test_a_run_is_shown_from_inside_of_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    run = runs.write_run(root, "one", runs.searching("one"))
    monkeypatch.chdir(run.path)
    assert main(["show", "."]) == 0
    assert capsys.readouterr().out.startswith("run      one\n")
