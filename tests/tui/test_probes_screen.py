"""Screen 2: readings as they arrive, by the run, by the form's plan, or measured here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from autotune.events import Document
from tests.testing import runs
from tests.tui import driving, goldens, machines, stories
from tests.tui.driving import shows, text, until
from tests.tui.scripted import ScriptedChildren
from tests.tui.setup.test_checks import PLAN
from tui.app import AutotuneApp
from tui.screens import probes as probes_screen
from tui.screens import setup as setup_screen
from tui.setup.form import JobForm


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedChildren:
    """Children of both screens that answer at once."""
    used = ScriptedChildren()
    for module in (probes_screen, setup_screen):
        monkeypatch.setattr(module, "Children", lambda: used)
    monkeypatch.setattr(setup_screen, "LOOK_DELAY_S", 0.0)
    monkeypatch.setattr(setup_screen, "PLAN_DELAY_S", 0.0)
    return used


def test_readings_arrive_one_by_one(tmp_path: Path, scripted: ScriptedChildren) -> None:
    events = [stories.opening()[0], machines.probing()]
    run = stories.write(tmp_path, events, alive=True)

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await shows(pilot, "▸ arithmetic rate: measured now")
        assert "12.4 GB/s ±0.8 %  n=3" in text(pilot.app)
        stories.append(run, machines.on(machines.machine(), stories.opening()[1:]), first_seq=2)
        await shows(pilot, "98.0 GFLOP/s")
        assert "measured now" not in text(pilot.app)
        assert "a global batch takes about 0.30 s or more" in text(pilot.app)

    driving.drive(AutotuneApp(run, unix_time=driving.clock), (80, 24), body)


def test_pictures_of_a_whole_machine(tmp_path: Path, scripted: ScriptedChildren) -> None:
    machine = machines.machine(num_ranks=4, from_store=True)
    run = stories.write(tmp_path, machines.on(machine, stories.searching()))

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await shows(pilot, "stored readings")
        goldens.hold_against("probes-80x24", text(pilot.app))
        await pilot.press("end")
        await shows(pilot, "latency above the diagonal")
        await pilot.resize_terminal(140, 40)
        await pilot.pause()
        goldens.hold_against("probes-140x40", text(pilot.app))

    driving.drive(AutotuneApp(run, unix_time=driving.clock), (80, 24), body)


def test_the_plan_of_a_form_is_shown_before_any_run(scripted: ScriptedChildren) -> None:
    plan: Document = {**PLAN, "machine": machines.document(machines.machine())}
    scripted.answers = {"look": {"task": "causal-lm"}, "plan": plan}

    async def body(pilot: Pilot[int]) -> None:
        await shows(pilot, "3 configurations")
        await pilot.press("escape", "2")
        await shows(pilot, "12.4 GB/s")
        assert "planning the job in setup" in text(pilot.app)
        assert "4.00 GiB (the limit you set)" in text(pilot.app)

    form = JobForm(values={"demo": "on"})
    driving.drive(AutotuneApp(form=form, unix_time=driving.clock), (100, 30), body)


def test_the_machine_is_measured_here_with_its_links(
    tmp_path: Path, scripted: ScriptedChildren
) -> None:
    machine = machines.document(machines.machine(num_ranks=2))
    scripted.answers = {"probe": {"machine": machine}}
    scripted.talk = {"probe": ["Probing memory bandwidth (3 of 5)"]}
    request = runs.demo_request()
    opening = stories.opening()
    opening[0] = runs.started("two", replace(request, processes=2))
    run = stories.write(tmp_path, opening)

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("2", "m")
        await shows(pilot, "between ranks")
        assert scripted.asked == [["probe", "--json", "--processes", "2"]]
        await pilot.press("y")
        assert pilot.app.clipboard == "autotune probe --processes 2"
        scripted.answers = {"probe": {"error": {"cause": "No ranks.", "remedy": "Take one."}}}
        await pilot.press("m")
        await shows(pilot, "✗ No ranks. Take one.")

    driving.drive(AutotuneApp(run, unix_time=driving.clock), (80, 24), body)


def test_a_run_that_goes_on_is_asked_for_first(tmp_path: Path, scripted: ScriptedChildren) -> None:
    scripted.waits = {"probe"}
    run = stories.make(tmp_path, "running")

    async def body(pilot: Pilot[int]) -> None:
        await pilot.press("2", "m")
        await shows(pilot, "Measure the machine beside it?")
        await pilot.press("b")
        assert scripted.asked == []
        await pilot.press("m")
        await pilot.press("down", "enter")
        await until(pilot, lambda: scripted.num_asked("probe") == 1)
        await shows(pilot, "▸ autotune probe --json")

    driving.drive(AutotuneApp(run, unix_time=driving.clock), (80, 24), body)
    assert scripted.given_up == ["probe"], "leaving the UI ends it"
