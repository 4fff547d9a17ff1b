"""The link of a run: measured once, kept by the engine that takes the run up, never in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from autotune.events import LinkProbed, MachineProbed, WarningRaised
from autotune.folding import fold
from autotune.journal import Journal, read
from autotune.outcome import Stopped, TimedOut
from autotune.request import Request
from autotune.run_directory import RunDirectory
from autotune.search.link import know_link, link_in
from autotune.search.preparation import Prepared
from autotune.search.session import Session
from autotune.trial.protocol import LinkMeasured, MeasureLink
from autotune.view import RunView
from probes.collectives.said import Said, Started
from probes.link import Exchange
from probes.machine import Machine, machine_adapter
from probes.reading import Reading
from tests.testing import runs

MACHINE = replace(runs.machine(), digest="this one")
TWO = replace(runs.demo_request(), processes=2)
SAID = (
    Said(started=Started(backend="gloo", device_kind="cpu")),
    Said(
        exchange=Exchange(
            collective="all-reduce",
            num_bytes=1024,
            time=Reading(name="all-reduce", unit="s", value=1e-4, samples=(1e-4,)),
        )
    ),
)


class Pool:
    """Answers with the same reply to everything."""

    def __init__(self, reply: object) -> None:
        self.reply = reply
        self.asked: list[object] = []

    def ask(self, command: object, **options: object) -> object:
        self.asked.append(command)
        return self.reply


def known(
    place: Path, pool: Pool, request: Request = TWO, machine: Machine = MACHINE
) -> tuple[RunView, list[object]]:
    """The run after an engine went for the link, and the events of that."""
    run = RunDirectory(place / "job")
    run.create()
    probed = MachineProbed(
        machine=machine_adapter().dump_python(machine, mode="json"),
        from_store=False,
        memory_limit_bytes=1,
        usable_bytes=1,
        limit_source="made up",
    )
    job = SimpleNamespace(machine=machine, pool=pool, gradient_bytes=100_000)
    before = fold(read(run.journal)) if run.journal.exists() else RunView()
    with Journal(run.journal, run.progress) as journal:
        session = Session(run, journal, seconds=60.0)
        num = len(journal.records)
        session.emit(probed)
        know_link(session, request, cast("Prepared", job), before)
        events: list[object] = [record.event for record in journal.records[num + 1 :]]
    return fold(read(run.journal)), events


def test_it_is_measured_on_the_ranks_of_the_trials_and_stands_with_the_machine(
    tmp_path: Path,
) -> None:
    pool = Pool(LinkMeasured(said=SAID))
    view, events = known(tmp_path, pool)
    assert pool.asked == [MeasureLink(num_ranks=2, payload_bytes=100_000, measuring_s=2.0)]
    link = link_in(view)
    assert link is not None
    assert (link.backend, link.num_ranks, link.threads_of_rank) == ("gloo", 2, 1)
    assert link.latency_s == 1e-4
    assert events == [LinkProbed(link=link)]
    assert view.machine is not None
    assert view.machine.machine["digest"] == "this one"


def test_an_engine_that_takes_the_run_up_keeps_it_while_nothing_changed(tmp_path: Path) -> None:
    first = Pool(LinkMeasured(said=SAID))
    before, _ = known(tmp_path, first)
    again = Pool(LinkMeasured(said=SAID[:1]))
    view, _ = known(tmp_path, again)
    assert again.asked == []
    assert link_in(view) == link_in(before)
    view, _ = known(tmp_path, again, replace(TWO, processes=4))
    assert len(again.asked) == 1
    assert link_in(view) != link_in(before)
    known(tmp_path, again, replace(TWO, processes=4), replace(MACHINE, digest="another"))
    assert len(again.asked) == 2


@pytest.mark.parametrize(
    ("reply", "warned"),
    [(TimedOut(limit_s=60.0, cause="No answer."), True), (Stopped(cause="Enough."), False)],
)
def test_a_run_goes_on_without_it(reply: object, warned: bool, tmp_path: Path) -> None:
    view, events = known(tmp_path, Pool(reply))
    assert link_in(view) is None
    assert [isinstance(event, WarningRaised) for event in events] == [True] * warned
    if warned:
        assert "could not be measured: No answer." in view.warnings[0].cause


@pytest.mark.parametrize("request_", [replace(TWO, processes=1), replace(TWO, alone=True)])
def test_one_process_has_none(request_: Request, tmp_path: Path) -> None:
    pool = Pool(LinkMeasured(said=SAID))
    _, events = known(tmp_path, pool, request_)
    assert (pool.asked, events) == ([], [])
