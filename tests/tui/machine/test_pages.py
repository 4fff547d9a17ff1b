"""What probes found, in rows that fit; and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from textual.content import Content

from autotune.events import LocalSGDPredicted, WarningRaised
from autotune.folding import fold
from autotune.outcome import Exchange
from autotune.view import RunView
from tests.testing import runs
from tests.tui import machines, stories
from tui.machine import found, pages
from tui.machine.found import Found
from tui.machine.meaning import Job

WIDTHS = (56, 64, 78, 98, 138)
JOB = Job(
    num_parameters=1_200_000, num_trainable=1_200_000, tokens_per_sample=64, global_batch_size=64
)


def _texts(rows: Iterable[Content]) -> list[str]:
    return [row.plain for row in rows]


def _joined(rows: Iterable[Content]) -> str:
    """The rows as running text."""
    return " ".join(" ".join(_texts(rows)).split())


def _view() -> RunView:
    """A run on two ranks with everything that a page may tell."""
    exchange = Exchange(
        compute_s=0.9,
        ddp_step_s=1.2,
        exposed_s=0.3,
        averaging_s=0.05,
        averaging_bytes=4_800_000,
        num_collectives_per_step=0.0,
    )
    measured = runs.measured(40.0)
    events = [
        *machines.on(machines.machine(num_ranks=8), stories.opening()),
        *runs.trial(0, runs.BASELINE, replace(measured, exchange=exchange)),
        LocalSGDPredicted(
            trial=0, local_sgd_steps=8, rows=(), sentence="Averaging every 8 steps pays."
        ),
        WarningRaised(cause="Swap is in use: 512 MiB.", remedy="Close what is not needed."),
        WarningRaised(cause="The data has few rows.", remedy=None),
    ]
    return fold(runs.records(events))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_row_is_wider_than_its_place(width: int) -> None:
    view = _view()
    for known in (
        found.of_run(view),
        found.of_machine(machines.document(machines.accelerator()), None, origin="here"),
        found.of_run(fold(runs.records([*stories.opening()[:1], machines.probing()]))),
    ):
        rows = [
            *pages.devices(known, width),
            *pages.readings(known, JOB, width),
            *pages.memory(known, width),
            *pages.follows(view, width),
            *pages.links(known, JOB, view, width),
            *pages.notes(known, view, width),
        ]
        assert [row.plain for row in rows if cell_len(row.plain) > width] == []
        assert len(rows) > 3


def test_readings_stand_with_spread_count_and_meaning() -> None:
    known = found.of_run(_view())
    text = _joined(pages.readings(known, JOB, 138))
    assert "✓ memory bandwidth 12.4 GB/s ±0.8 % n=3 a step of AdamW alone takes 2.71 ms" in text
    assert "✓ matmul float32 98.0 GFLOP/s ±0.4 % n=3 a global batch takes about 0.30 s" in text
    assert "✓ matmul bfloat16 7.00 GFLOP/s ±0.3 % n=3 only pretended: 14 times slower" in text
    assert "✓ allocation tried 5.50 GiB n=1 allocated and touched on cpu:0" in text
    without_job = _joined(pages.readings(known, Job(), 138))
    assert "both directions counted" in without_job, "a reading's note, where it means nothing"


def test_readings_arrive_one_by_one() -> None:
    known = found.of_run(fold(runs.records([*stories.opening()[:1], machines.probing()])))
    assert _texts(pages.readings(known, Job(), 78))[-2:] == [
        "  ▸ arithmetic rate: measured now",
        "  · 1 more probe to come",
    ]
    assert known.machine is None
    assert len(known.readings) == 1
    assert found.of_run(RunView()).is_empty


def test_stored_readings_are_said_to_be_stored() -> None:
    machine = machines.machine(from_store=True)
    known = found.of_run(fold(runs.records(machines.on(machine, stories.opening()))))
    assert "Speeds are stored readings of this machine" in _joined(pages.devices(known, 78))
    assert pages.origin(known) == "median, ± half the IQR · speeds from before"
    fresh = found.of_machine(machines.document(machines.machine()), None, origin="measured here")
    assert pages.origin(fresh) == "median, ± half the IQR · measured here"


def test_memory_tells_limit_source_margin_and_company() -> None:
    known = found.of_run(_view())
    assert _joined(pages.memory(known, 138)) == (
        "limit 4.00 GiB (--memory-limit); 3.80 GiB usable, a margin of 205 MiB is never filled"
    )
    shared = found.of_machine(machines.document(machines.accelerator()), None, origin="")
    assert _joined(pages.memory(shared, 138)) == "▲ process 4121 holds 614 MiB of cuda:0"
    assert "41 °C, 88 W, 3 % busy" in _joined(pages.devices(shared, 138))


def test_links_are_a_curve_and_a_matrix() -> None:
    machine = machines.machine(num_ranks=4)
    known = Found(machine=machine)
    rows = _texts(pages.links(known, JOB, RunView(), 78))
    assert rows[0].split() == ["ranks", "4,", "gloo,", "over", "lo"]
    curve = [row for row in rows if "iB " in row and "±" in row]
    assert [row.count("█") for row in curve] == [0, 7, 18, 20]
    matrix = rows[rows.index(next(row for row in rows if "one way" in row)) :]
    assert matrix[2].split() == ["rank", "1", "1.20", "GB/s", "–", "110", "µs", "165", "µs"]
    assert matrix[-1].strip() == "latency above the diagonal, bandwidth below it"
    many = Found(machine=machines.machine(num_ranks=12))
    assert "12 ranks do not fit here" in _joined(pages.links(many, JOB, RunView(), 58))
    assert "all gradients of this job (4.58 MiB) take" in _joined(
        pages.links(known, JOB, RunView(), 138)
    )


def test_trials_and_the_run_add_what_they_met() -> None:
    view = _view()
    text = _joined(pages.links(found.of_run(view), JOB, view, 138))
    assert "#0 (" in text
    assert "): a step takes 1.20 s, 0.30 s of it for the exchange of gradients" in text
    assert "Averaging every 8 steps pays." in text
    follows = _joined(pages.follows(view, 138))
    assert "split ✓ holds" in follows
    assert "12 configurations to choose from" in follows
    notes = _joined(pages.notes(found.of_run(view), view, 138))
    assert notes.count("Swap is in use") == 1, "said once, by the machine or by the run"
    assert "▲ The data has few rows." in notes


def test_a_machine_that_cannot_be_read_is_as_good_as_unknown() -> None:
    assert found.of_machine({"host": 1}, None, origin="x").machine is None
    assert found.of_plan({}).machine is None
    plan = found.of_plan(
        {
            "machine": machines.document(machines.machine()),
            "memory_limit_bytes": 10,
            "usable_bytes": 9,
            "limit_source": "you",
        }
    )
    assert plan.machine is not None
    assert plan.limit is not None
    linked = found.with_links(plan, Found(machine=machines.machine(num_ranks=2)))
    assert linked.machine is not None
    assert len(linked.machine.links) == 1
    assert found.with_links(Found(), linked) == Found()
