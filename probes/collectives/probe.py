"""The interconnect probe: starts ranks on the job's own kind of process group and times them.

The figures are of the moment, like a network is: they are taken anew each time and kept nowhere. A
run that trains on several ranks takes its own, by the same steps, on the ranks of its trials.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from probes.collectives.result import link_of
from probes.collectives.said import SAID, Options, Said
from probes.errors import NODES_FAILED, RANK_KILLED, ProbeError
from probes.link import Link
from probes.machine import Machine
from probes.ranks import interfaces
from probes.ranks.launch import GRACE_S, Ranks, rank_command, threads_of_rank
from probes.reading import Finding

PAYLOAD_BYTES = 4 * 2**20
"""The largest message where the caller does not say."""
TIME_LIMIT_S = 14.0
"""Time for all measurements, the start of the ranks apart."""
CALL_LIMIT_S = 20.0
"""Time after which a collective counts as hung."""
START_LIMIT_S = 90.0
"""Time for the ranks to start and to load torch, beyond that for the nodes to come together."""

_POLL_S = 0.05


def check(ranks: Ranks, machine: Machine) -> None:
    """Whether so many ranks can run here, on the interface that the environment names.

    Args:
        ranks: How many, and where.
        machine: This node.

    Raises:
        ProbeError: They cannot.
    """
    device = machine.device
    num_devices = len(machine.devices)
    if device.kind != "cpu" and ranks.num_local > num_devices:
        raise ProbeError(
            f"{ranks.num_local} processes on a machine with {num_devices} "
            f"{device.kind} device{'s' if num_devices > 1 else ''}: each process needs its own.",
            f"Take at most {num_devices * ranks.num_nodes} processes, or hide the devices to "
            "use the CPU.",
            is_usage=True,
        )
    interfaces.check_named(os.environ)


def measure(
    ranks: Ranks,
    machine: Machine,
    *,
    payload_bytes: int = PAYLOAD_BYTES,
    time_limit_s: float = TIME_LIMIT_S,
    call_limit_s: float = CALL_LIMIT_S,
    on_step: Callable[[str], None] | None = None,
) -> Link:
    """Measures what collectives between ranks cost.

    What goes wrong between the ranks stands in the findings, with whatever was measured before.
    Every rank gets its share of the threads that one process would compute with.

    Args:
        ranks: How many, and where.
        machine: This node, as it was surveyed.
        payload_bytes: The largest message; larger ones than there is time for are left out.
        time_limit_s: Time for all measurements.
        call_limit_s: Time after which a collective counts as hung.
        on_step: Is told what is measured next.

    Raises:
        ProbeError: So many ranks cannot run here, an interface does not exist, or the nodes did
            not come together.
    """
    check(ranks, machine)
    num_threads = threads_of_rank(machine.host.num_threads, ranks.num_local)
    variables = {"OMP_NUM_THREADS": str(num_threads), **dict(ranks.variables)}
    num_threads = int(variables["OMP_NUM_THREADS"])
    ranks = replace(ranks, variables=tuple(variables.items()))
    heard = _Heard(on_step=on_step)
    with tempfile.TemporaryDirectory(prefix="autotune-links-") as directory:
        out = Path(directory) / "said"
        out.touch()
        options = Options(
            out=str(out),
            payload_bytes=payload_bytes,
            time_limit_s=time_limit_s,
            call_limit_s=call_limit_s,
        )
        limit_s = START_LIMIT_S + time_limit_s * 2 + call_limit_s
        if ranks.num_nodes > 1:
            limit_s += ranks.join_limit_s
        end = _run(ranks, options, heard, limit_s)
    if end.code == NODES_FAILED and not heard.has_started:
        cause, _, remedy = end.last_line.partition(". ")
        raise ProbeError(f"{cause.rstrip('.')}.", remedy or "Start the same command on every node.")
    return link_of(
        heard.said,
        ranks,
        machine,
        num_threads=num_threads,
        faults=_ended(heard, end, call_limit_s),
    )


@dataclass(slots=True)
class _Heard:
    """What rank 0 has written so far."""

    on_step: Callable[[str], None] | None
    step: str = "the start"
    step_s: float = field(default_factory=time.monotonic)
    """When it began, and later when the ranks ended."""
    has_started: bool = False
    said: list[Said] = field(default_factory=list)

    def hear(self, line: bytes) -> None:
        said = SAID.validate_json(line)
        if said.step is not None:
            self.step = said.step
            self.step_s = time.monotonic()
            if self.on_step is not None:
                self.on_step(said.step)
        if said.started is not None:
            self.has_started = True
        self.said.append(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How the group ended."""

    code: int | None
    """The wrapper's; None where it was ended for taking too long."""
    last_line: str
    in_step_s: float
    """Seconds since the last step began."""


def _run(ranks: Ranks, options: Options, heard: _Heard, limit_s: float) -> _End:
    command = rank_command("probes.collectives.rank", [json.dumps(asdict(options))], ranks)
    deadline_s = time.monotonic() + limit_s
    with tempfile.TemporaryFile() as printed, open(options.out, "rb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        rest = b""
        code: int | None = None
        try:
            while code is None and time.monotonic() < deadline_s:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(_POLL_S)
                *lines, rest = (rest + out.read()).split(b"\n")
                for line in lines:
                    heard.hear(line)
        finally:
            in_step_s = time.monotonic() - heard.step_s
            end(process)
        printed.seek(0)
        lines_printed = printed.read().decode(errors="replace").strip().splitlines()
    return _End(
        code=code,
        last_line=lines_printed[-1].strip() if lines_printed else "",
        in_step_s=in_step_s,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a wrapper with its ranks, if it still runs, and reaps it.

    Args:
        process: What was started with `rank_command`, in a session of its own.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S + 3)


def _ended(heard: _Heard, end: _End, call_limit_s: float) -> list[Finding]:
    """Why the measurement is not whole."""
    if end.code == 0:
        return []
    fault = next((one.fault for one in heard.said if one.fault is not None), None)
    # A rank that was killed says nothing itself; those that lost it say only that.
    said = end.last_line if end.code == RANK_KILLED else fault or end.last_line
    why = (said or "nothing was printed").rstrip(".")
    if not heard.has_started:
        return [
            Finding(
                cause=f"The ranks did not come together: {why}.",
                remedy=f"Check that they reach each other, and name the interface between them in "
                f"{interfaces.VARIABLE}.",
            )
        ]
    # Some backends end the process that waited too long, and say nothing.
    if end.code is None or end.in_step_s >= 0.9 * call_limit_s:
        return [
            Finding(
                cause=f"A collective hung: {heard.step} did not end within {call_limit_s:g} s "
                f"({why}).",
                remedy="Check that no firewall stands between the ranks and that none of them is "
                f"stopped, or name the interface between them in {interfaces.VARIABLE}.",
            )
        ]
    return [
        Finding(
            cause=f"The measurement broke off at {heard.step}: {why}.",
            remedy="What was measured before holds; probe again to try once more.",
        )
    ]
