"""The link between the ranks of a run: timed once, on the ranks that are about to run trials.

Starting ranks for it alone, as `autotune probe` does, would take longer than the measurement. What
an exchange costs the job, trials measure on the job itself (`trial.readings.exchange`), and by that
they are judged; the link tells why, and which way the traffic takes.
"""

from __future__ import annotations

from pydantic import ValidationError

from autotune.events import LinkProbed
from autotune.outcome import Stopped
from autotune.request import Request
from autotune.search.limits import num_local_ranks
from autotune.search.preparation import Prepared
from autotune.search.session import Session
from autotune.trial.environment import THREADS, shared, trial_environment
from autotune.trial.protocol import LinkMeasured, MeasureLink
from autotune.view import RunView
from probes.collectives.result import link_of
from probes.link import Link, link_adapter
from probes.ranks.launch import Ranks

MEASURING_S = 2.0
"""Time for all collectives and sizes; what has no time is reckoned from what has."""
LIMIT_S = 60.0
LEAST_PAYLOAD_BYTES = 64 * 1024


def know_link(session: Session, request: Request, job: Prepared, before: RunView) -> None:
    """Adds the link between the ranks to the run's machine, where it has several.

    It is measured anew in every run. An engine that takes a run up again keeps what the one before
    it measured, as long as machine and ranks are the same.

    Args:
        session: Where it is told, with whatever is wrong with it.
        request: How many ranks there are, and where.
        job: What was found out so far.
        before: The run as earlier engines left it.
    """
    if request.processes == 1 or request.alone or session.should_end():
        return
    ranks = Ranks(
        num_processes=request.processes, num_nodes=request.num_nodes, meeting=request.meeting
    )
    link = _kept(before, job, ranks)
    if link is None:
        link = _measured(session, request, job, ranks)
    if link is None:
        return
    session.emit(LinkProbed(link=link))
    for finding in link.findings:
        if finding.is_problem:
            session.warn(finding.cause, finding.remedy)


def _measured(session: Session, request: Request, job: Prepared, ranks: Ranks) -> Link | None:
    num_local = num_local_ranks(request)
    environment = shared(trial_environment(job.machine.host.num_threads, num_local), num_local)
    reply = job.pool.ask(
        MeasureLink(
            num_ranks=ranks.num_processes,
            payload_bytes=max(LEAST_PAYLOAD_BYTES, job.gradient_bytes),
            measuring_s=MEASURING_S,
        ),
        log=session.run.path / "link.log",
        time_limit_s=LIMIT_S,
    )
    if isinstance(reply, LinkMeasured):
        return link_of(reply.said, ranks, job.machine, num_threads=int(environment[THREADS]))
    if not isinstance(reply, Stopped):
        session.warn(
            f"The link between the ranks could not be measured: "
            f"{getattr(reply, 'cause', reply.kind)}",
            "Check that they reach each other, and that no firewall stands between them.",
        )
    return None


def link_in(view: RunView) -> Link | None:
    """The link that a run has measured; None where it has none.

    Args:
        view: The run.
    """
    links = view.machine.machine.get("links") if view.machine is not None else None
    if not isinstance(links, list) or not links:
        return None
    try:
        return link_adapter().validate_python(links[0])
    except ValidationError:
        return None


def _kept(before: RunView, job: Prepared, ranks: Ranks) -> Link | None:
    """What an earlier engine of this run measured on the same machine and ranks."""
    link = link_in(before)
    if link is None or before.machine is None:
        return None
    is_same = before.machine.machine.get("digest") == job.machine.digest
    there = (link.num_ranks, link.num_nodes)
    return link if is_same and there == (ranks.num_processes, ranks.num_nodes) else None
