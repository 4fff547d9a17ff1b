"""The name of a study: the same for like machines and the same job, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.goal import Goal
from autotune.request import Request
from autotune.search.evidence.history import History
from autotune.search.studies import identity as identities
from autotune.search.studies.identity import StudyIdentity, identity_of
from autotune.workload.spec import WorkloadSpec
from tests.testing.landscapes import make_space

REQUEST = Request(workload=WorkloadSpec(task="causal-lm", model="org/model"))
HISTORY = History(space=make_space(24), usable_bytes=1000)


def name(
    request: Request = REQUEST, history: History = HISTORY, *, digest: str = "d", machine: str = "m"
) -> str:
    return identity_of(request, history, digest=digest, machine=machine).name


def test_names_follow_what_a_study_depends_on() -> None:
    space = make_space(24)
    base = StudyIdentity(stem="org/model", parts={"space": space.digest, "machine": "a"})
    same = StudyIdentity(stem="org/model", parts={"machine": "a", "space": space.digest})
    assert base.name == same.name
    assert base.name.startswith("org-model-")
    others = [
        StudyIdentity(stem="org/model", parts={"space": make_space(48).digest, "machine": "a"}),
        StudyIdentity(stem="org/model", parts={"space": space.digest, "machine": "b"}),
    ]
    assert len({base.name, *(o.name for o in others)}) == 3


def test_machine_workload_space_loop_and_limit_each_make_a_study_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = replace(REQUEST, goal=Goal(memory_limit_bytes=2000))
    names = [
        name(),
        name(machine="other driver"),
        name(digest="other data"),
        name(history=replace(HISTORY, space=make_space(48))),
        name(replace(REQUEST, driver="accelerate")),
        name(replace(REQUEST, processes=2)),
        name(replace(REQUEST, processes=2, alone=True)),
        name(replace(REQUEST, processes=2, num_nodes=2)),
        name(limited),
        name(limited, replace(HISTORY, usable_bytes=1900)),
    ]
    monkeypatch.setattr("autotune.search.studies.identity.socket.gethostname", lambda: "elsewhere")
    assert name() == names[0], "alone, a machine's name is nothing to go by"
    names.append(name(replace(REQUEST, processes=2, num_nodes=2)))
    monkeypatch.setattr(identities, "library_versions", lambda: {"torch": "0.1"})
    names.append(name())
    assert len(set(names)) == len(names)


def test_budget_sampler_place_and_what_is_free_this_minute_make_no_difference() -> None:
    other = replace(
        REQUEST, sampler="tpe", seed=7, out="elsewhere", storage="sqlite:///x.db", total_steps=9
    )
    assert name(other) == name()
    assert name(history=replace(HISTORY, usable_bytes=2000)) == name()


def test_parts_can_be_read_in_the_storage(tmp_path: Path) -> None:
    parts = identity_of(REQUEST, HISTORY, digest="d", machine="m").parts
    assert parts["memory limit"] == "what is free"
    assert "torch " in parts["set of libraries"]
