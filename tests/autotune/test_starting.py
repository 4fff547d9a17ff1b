"""What is known to be wrong before an engine is started, and before anything is loaded."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from autotune import control, lease, planning
from autotune import request as requests
from autotune.errors import UsageError
from autotune.run_directory import write_json
from autotune.starting import check_free, check_link, prepare, start_engine
from autotune.workload.spec import Lora
from tests.testing import runs

TWO = replace(runs.demo_request(), processes=2)


def test_a_run_that_is_worked_on_is_left_alone_whoever_wants_it(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path, "one", runs.searching("one"))
    lease.take(run.lease)
    control.send(run.control, "stop", "for the engine that runs")
    asked = run.request.read_bytes()
    who = f"process {os.getpid()} on {socket.gethostname()}"
    for fresh, resume in ((False, True), (True, False), (False, False)):
        with pytest.raises(UsageError) as raised:
            prepare(
                replace(runs.demo_request(), seed=5), tmp_path, "one", fresh=fresh, resume=resume
            )
        assert raised.value.cause == f"The run 'one' is already being worked on by {who}."
        assert raised.value.remedy is not None
        assert "--resume" not in raised.value.remedy
        assert f"`autotune tui {run.path}`" in raised.value.remedy
    assert run.request.read_bytes() == asked
    assert [request.text for request in control.take(run.control)] == ["for the engine that runs"]
    check_free(run, own_process=os.getpid())
    lease.release(run.lease)
    assert prepare(requests.load(run), tmp_path, "one", fresh=False, resume=True) == run


def test_a_run_of_another_machine_may_be_set_free_by_hand(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path, "one", runs.searching("one"))
    write_json(run.lease, asdict(replace(lease.mine(), host="elsewhere")))
    with pytest.raises(UsageError, match=f"is gone, delete {run.lease}"):
        check_free(run)


def test_an_interface_that_is_not_there_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonexistent0")
    message = "GLOO_SOCKET_IFNAME names 'nonexistent0'.* unset GLOO_SOCKET_IFNAME"
    with pytest.raises(UsageError, match=message):
        prepare(TWO, tmp_path, "two", fresh=False, resume=False)
    assert not (tmp_path / "two").exists()
    with pytest.raises(UsageError, match=message):
        planning.plan(TWO)
    # One rank, or one that stands for all, has nobody to reach.
    check_link(runs.demo_request())
    check_link(replace(TWO, alone=True))


def test_a_fresh_start_moves_the_whole_story_aside(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path, "one", runs.searching("one"))
    for text in ("first", "second"):
        run.trial(0).mkdir(exist_ok=True)
        (run.trial(0) / "output.log").write_text(text)
        prepare(runs.demo_request(), tmp_path, "one", fresh=True, resume=False)
        assert [*run.trials.iterdir()] == []
    kept = [path.read_text() for path in run.path.glob("trials.*/000/output.log")]
    assert sorted(kept) == ["first", "second"]
    assert len([*run.path.glob("journal.jsonl.*")]) == 1


def test_another_job_is_told_how_to_resume_the_run_where_it_is(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "my runs", "one", runs.searching("one"))
    other = replace(runs.demo_request(), processes=2, alone=True)
    with pytest.raises(UsageError) as raised:
        prepare(other, run.path.parent, "one", fresh=False, resume=True)
    assert f"--resume --name one --run-dir '{run.path.parent}'`" in (raised.value.remedy or "")


def test_a_run_of_several_machines_goes_on_on_as_many(tmp_path: Path) -> None:
    asked = replace(TWO, num_nodes=2, meeting="10.0.0.1:29400/agents")
    runs.write_run(tmp_path, "two", [], asked)
    with pytest.raises(UsageError, match="on 2 machines, and this call has 1") as raised:
        prepare(replace(asked, num_nodes=1), tmp_path, "two", fresh=False, resume=True)
    assert "--processes" in str(raised.value.remedy)
    assert prepare(asked, tmp_path, "two", fresh=False, resume=True).name == "two"


def test_a_directory_that_takes_no_file_is_a_usage_error(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path, "one", [])
    run.request.unlink()
    for place in (run.request, run.engine_log):
        place.mkdir()
    with pytest.raises(UsageError, match="one cannot be written: Is a directory"):
        requests.save(runs.demo_request(), run)
    with pytest.raises(UsageError, match="one cannot be written: Is a directory"):
        start_engine(run)


def test_the_newest_run_of_the_job_is_resumed_and_what_differs_is_named(tmp_path: Path) -> None:
    mine = runs.demo_request()
    goal = replace(mine.goal, global_batch_size=128)
    other = replace(mine, goal=goal)
    runs.write_run(tmp_path, "mine", [], mine)
    newest = runs.write_run(tmp_path, "other", [], other)
    os.utime(newest.request, (time.time() + 9, time.time() + 9))
    assert prepare(mine, tmp_path, None, fresh=False, resume=True).name == "mine"
    message = "'other' was started with another --global-batch-size: 128 instead of 64"
    with pytest.raises(UsageError, match=message):
        prepare(mine, tmp_path, "other", fresh=False, resume=True)
    unlike = replace(mine, workload=replace(mine.spec, seed=7))
    with pytest.raises(UsageError, match="another --training-seed: 42 instead of 7"):
        prepare(unlike, tmp_path, None, fresh=False, resume=True)


def test_what_differs_is_told_in_the_words_of_the_command_line(tmp_path: Path) -> None:
    mine = runs.demo_request()
    mine = replace(mine, goal=replace(mine.goal, memory_limit_bytes=None))
    run = runs.write_run(tmp_path, "one", [], mine)
    spec = mine.spec

    def told(other: requests.Request) -> str:
        with pytest.raises(UsageError) as raised:
            prepare(other, tmp_path, "one", fresh=False, resume=True)
        assert "replace it by --fresh, or choose another --name" in str(raised.value.remedy)
        return raised.value.cause.removeprefix("The run 'one' was started with another ")

    limited = replace(mine, goal=replace(mine.goal, memory_limit_bytes=5 * 2**30))
    assert told(limited) == "--memory-limit: what is free instead of 5.00 GiB."
    limited = replace(mine, goal=replace(mine.goal, memory_limit_bytes=5 * 2**30 + 1))
    assert told(limited) == "--memory-limit: what is free instead of 5368709121 bytes."
    sizes = replace(mine.goal, global_batch_size=None, global_batch_size_range=(32, 64))
    assert told(replace(mine, goal=sizes)) == "--global-batch-size: 64 instead of 32..64."
    assert told(replace(mine, processes=2, alone=True)) == "--processes: 1 instead of 2."
    micro = replace(mine, baseline_micro_batch_size=5)
    assert told(micro).endswith("instead of 5.")
    assert told(micro).startswith("--micro-batch-size: ")
    packed = replace(mine, workload=replace(spec, packing=not spec.packing))
    assert told(packed) == "--packing: off instead of on."
    columns = replace(mine, workload=replace(spec, columns=replace(spec.columns, text="body")))
    assert told(columns) == "--text-column: the default instead of body."
    adapted = replace(mine, workload=replace(spec, lora=Lora(rank=8)))
    assert told(adapted) == "--lora-rank: the default instead of 8."
    requests.save(adapted, run)
    wider = replace(spec, lora=Lora(rank=8, target_modules=("q", "v")))
    assert told(replace(mine, workload=wider)) == (
        "--lora-target-modules: the default instead of q,v."
    )


def test_a_file_in_the_place_of_a_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("mine")
    with pytest.raises(UsageError, match="one exists and is no run"):
        prepare(runs.demo_request(), tmp_path, "one", fresh=True, resume=False)
    (tmp_path / "two").mkdir()
    assert prepare(runs.demo_request(), tmp_path, "two", fresh=False, resume=False).name == "two"
