"""What is known of a machine as rows for the screen, fitted to a width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from textual.content import Content

from autotune.display import wording
from autotune.display.output import one_line
from autotune.display.quantities import device, quantity, spread
from autotune.units import counted, format_bytes, format_quantity, format_short_time
from autotune.view import RunView
from probes.link import COLLECTIVES, Link, bus_factor
from probes.machine import Reading
from tui.machine.found import Found, limit_in_words
from tui.machine.meaning import Job, of_link, of_reading
from tui.widgets.rows import columns, hanging, mark, padded

_NAME_CELLS = 26
_VALUE_CELLS = 14
_SPREAD_CELLS = 8
_COUNT_CELLS = 5
_BAR_CELLS = 20
_MOST_RANKS = 8
"""Ranks of a matrix; more do not fit into a window."""


def origin(known: Found) -> str:
    """Where the readings come from, and how they are told."""
    parts = ["median, ± half the IQR"]
    if known.machine is not None and known.machine.from_store:
        parts.append("speeds from before")
    if known.origin and known.origin != "this run":
        parts.append(known.origin)
    return " · ".join(parts)


def glance(known: Found) -> list[str]:
    """What is known in three rows."""
    if known.is_empty and known.limit is None:
        return ["nothing is measured yet"]
    rows = [device(known.machine.devices[0])] if known.machine and known.machine.devices else []
    if known.limit is not None:
        rows.append(f"memory limit {limit_in_words(known.limit)}")
    running = f", {known.running} runs" if known.running is not None else ""
    return [*rows, f"{counted(len(known.readings), 'reading')}{running}"]


def devices(known: Found, width: int) -> Iterator[Content]:
    """The devices, and the host around them."""
    machine = known.machine
    if machine is None:
        return
    for one in machine.devices:
        yield from hanging(f"  {f'{one.kind}:{one.index}':<8}", device(one), width)
        if one.temperature_celsius is not None or one.power_w is not None:
            now = [
                f"{one.temperature_celsius:.0f} °C" if one.temperature_celsius is not None else "",
                f"{one.power_w:.0f} W" if one.power_w is not None else "",
                f"{one.utilization_percent:.0f} % busy"
                if one.utilization_percent is not None
                else "",
            ]
            yield from hanging("          ", ", ".join(part for part in now if part), width)
    host = machine.host
    text = (
        f"{host.num_cores:g} core{'' if host.num_cores == 1 else 's'}, "
        f"{counted(host.num_threads, 'thread')}, "
        f"{format_bytes(host.available_bytes)} free of {format_bytes(host.total_bytes)} "
        f"(limit from {one_line(host.limit_from)})"
    )
    yield from hanging("  host    ", text, width)
    if machine.from_store:
        yield from hanging(
            Content.assemble("  ", mark("note"), "       "),
            "Speeds are stored readings of this machine, which has not changed since; memory is "
            "read anew.",
            width,
        )


def readings(known: Found, job: Job, width: int) -> Iterator[Content]:
    """A row for each reading, then the probe that runs and those that wait."""
    for reading in known.readings:
        meaning = one_line(of_reading(reading, known, job))
        yield from _reading(reading, meaning, width)
    if known.running is not None:
        yield Content.assemble("  ", mark("asking"), f" {known.running}: measured now")
    if known.num_waiting:
        plural = "" if known.num_waiting == 1 else "s"
        yield Content.assemble(
            "  ", mark("open"), f" {known.num_waiting} more probe{plural} to come"
        )


def _reading(reading: Reading, meaning: str, width: int) -> Iterator[Content]:
    name = padded(one_line(reading.name), min(_NAME_CELLS, max(12, width - 40)))
    part = spread(reading)
    head = Content.assemble(
        "  ",
        mark("ok"),
        f" {name} ",
        (padded(quantity(reading), _VALUE_CELLS, right=True), "bold"),
        padded(f" ±{part}" if part != "–" else "", _SPREAD_CELLS),
        padded(f" n={len(reading.samples) or 1}", _COUNT_CELLS),
    )
    room = width - head.cell_length - 2
    if room >= 30:
        yield from hanging(head + Content("  "), meaning, width, tone="$text-muted")
        return
    yield head
    if meaning:
        yield from hanging("      ", meaning, width, tone="$text-muted")


def memory(known: Found, width: int) -> Iterator[Content]:
    """The limit, who sets it, and who else holds memory."""
    if known.limit is not None:
        yield from hanging("  limit   ", limit_in_words(known.limit), width)
    machine = known.machine
    if machine is None:
        return
    for one in machine.devices:
        for process in one.processes:
            used = format_bytes(process.used_bytes) if process.used_bytes is not None else "some"
            text = f"process {process.process} holds {used} of {one.kind}:{one.index}"
            yield from hanging(Content.assemble("  ", mark("note"), "       "), text, width)


def follows(view: RunView, width: int) -> Iterator[Content]:
    """What the run makes of the readings, as far as it has come."""
    if view.workload is not None:
        yield from hanging("  job      ", wording.workload(view.workload.facts), width)
    if view.parity is not None and view.parity.holds is not None:
        state = "ok" if view.parity.holds else "note"
        head = Content.assemble("  split    ", mark(state), " ")
        yield from hanging(head, one_line(view.parity.detail), width)
    if view.space is not None:
        text = f"{counted(len(view.space.candidates), 'configuration')} to choose from"
        yield from hanging("  space    ", text, width)
        for out in view.space.ruled_out:
            text = f"{one_line(str(out.get('what')))}: {one_line(str(out.get('reason')))}"
            yield from hanging("  out      ", text, width)
    if view.noise_scale is not None:
        yield from hanging("  noise    ", wording.noise_scale(view.noise_scale), width)


def links(known: Found, job: Job, view: RunView, width: int) -> Iterator[Content]:
    """What exchanges between ranks cost: by the probe, and as the trials met it."""
    for link in known.machine.links if known.machine is not None else ():
        yield from _link(link, job, width)
    for trial in view.trials:
        exchange = trial.measured.exchange if trial.measured is not None else None
        if exchange is not None:
            text = (
                f"#{trial.number} ({trial.configuration}): a step takes "
                f"{format_short_time(exchange.ddp_step_s)}, "
                f"{format_short_time(exchange.exposed_s)} of it for the exchange of gradients; "
                f"averaging {format_bytes(exchange.averaging_bytes)} takes "
                f"{format_short_time(exchange.averaging_s)}"
            )
            yield from hanging("  trial    ", text, width)
    if view.local_sgd is not None:
        yield from hanging("  local SGD ", one_line(view.local_sgd.sentence), width)


def _link(link: Link, job: Job, width: int) -> Iterator[Content]:
    nodes = f" on {link.num_nodes} nodes" if link.num_nodes > 1 else ""
    way = f", over {one_line(link.interface.name)}" if link.interface is not None else ""
    text = f"{link.num_ranks}{nodes}, {link.backend or 'no backend'}{way}"
    yield from hanging("  ranks    ", text, width)
    if link.sizes():
        text = (
            f"{format_short_time(link.latency_s)} latency, "
            f"{format_quantity(link.bus_bytes_per_s, 'B/s')} on the bus"
        )
        yield from hanging("  link     ", text, width)
    meaning = of_link(link, job)
    if meaning:
        yield from hanging("  meaning  ", meaning, width)
    yield from _curve(link, width)
    yield from _matrix(link, width)


def _curve(link: Link, width: int) -> Iterator[Content]:
    """Time and rate over the message size; the bars are the rate against the best one."""
    for collective in COLLECTIVES:
        exchanges = link.sizes(collective)
        if not exchanges:
            continue
        factor = bus_factor(collective, link.num_ranks)
        rates = [one.algorithm_bytes_per_s * factor for one in exchanges]
        cells = max(0, min(_BAR_CELLS, width - 48))
        yield Content.styled(f"  {collective:<12}    time    spread     on the bus", "$text-muted")
        for one, rate in zip(exchanges, rates, strict=True):
            bar = "█" * round(cells * rate / max(rates)) if cells >= 6 else ""
            yield Content.assemble(
                f"  {padded(format_bytes(one.num_bytes), 12, right=True)} "
                f"{padded(format_short_time(one.time.value), 9, right=True)} "
                f"{padded('±' + spread(one.time), 8, right=True)}  "
                f"{padded(format_quantity(rate, 'B/s'), 11, right=True)} ",
                (bar, "$text-primary"),
            )


def _matrix(link: Link, width: int) -> Iterator[Content]:
    """Latency above the diagonal, bandwidth below it."""
    if not link.pairs:
        return
    found = {pair.ranks: pair for pair in link.pairs}
    ranks = range(min(link.num_ranks, _MOST_RANKS))
    rows: list[Sequence[str]] = [["one way", *(f"rank {rank}" for rank in ranks)]]
    for one in ranks:
        row = [f"rank {one}"]
        for other in ranks:
            pair = found.get((min(one, other), max(one, other)))
            if pair is None:
                row.append("–")
            elif one < other:
                row.append(format_short_time(pair.latency_s))
            else:
                row.append(format_quantity(pair.bytes_per_s, "B/s"))
        rows.append(row)
    drawn = columns(rows, width - 2, right=range(1, len(ranks) + 1))
    yield from (Content(f"  {row}") for row in drawn)
    whole = max(cell_len(row) for row in drawn)
    is_cut = link.num_ranks > len(ranks) or f"rank {ranks[-1]}" not in drawn[0]
    note = "latency above the diagonal, bandwidth below it"
    if is_cut:
        note += f"; {link.num_ranks} ranks do not fit here, `autotune probe` prints them all"
    yield from hanging("  ", note, max(width, min(whole, width)), tone="$text-muted")


def notes(known: Found, view: RunView, width: int) -> Iterator[Content]:
    """What is to be said of the machine, and what the run warned of."""
    said = set()
    for finding in known.findings:
        text = one_line(f"{finding.cause} {finding.remedy or ''}")
        said.add(finding.cause)
        head = Content.assemble("  ", mark("note" if finding.is_problem else "open"), " ")
        yield from hanging(head, text, width)
    for warning in view.warnings:
        if warning.cause not in said:
            text = one_line(f"{warning.cause} {warning.remedy or ''}")
            yield from hanging(Content.assemble("  ", mark("note"), " "), text, width)
