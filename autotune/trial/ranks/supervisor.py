"""One rank's supervisor: keeps a worker of its own, and agrees with the other ranks' supervisors.

Rank 0 speaks with the engine. A command goes from it to every supervisor through the launcher's
store; each asks its own worker, and what the workers answered comes back the same way. A rank whose
measurement fails calls the others off, so that nobody waits in a collective for one that is gone.

Run by the launcher as `python -m autotune.trial.ranks.supervisor CHANNEL OPTIONS LOG`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.outcome import Failed, Stopped
from autotune.trial.channel import Channel
from autotune.trial.client import Worker, WorkerDiedError
from autotune.trial.options import WorkerOptions
from autotune.trial.protocol import (
    CannotLoad,
    Command,
    Envelope,
    GroupReply,
    Progress,
    Ready,
    envelope_adapter,
)
from autotune.trial.ranks.agreement import RankReply, agreed, is_reading
from autotune.trial.ranks.place import Place
from probes.lifetime import die_with_parent
from probes.ranks.launch import without_launch

LOOK_INTERVAL_S = 0.5
"""Time between two looks whether another rank has called the command off."""
LOOK_TOGETHER_S = 0.005
"""The same while all wait for each other's workers, which as a rule are there."""
LOAD_LIMIT_S = 600.0
"""How long a rank may take to load the workload, at the start and again after its worker ended."""
ANSWER_GRACE_S = 15.0
"""How long after a command's time limit another rank's answer may still come."""
STORE_TIMEOUT_S = 60.0


class Supervisor:
    """What one rank does between the engine, the other ranks and its own worker.

    Args:
        place: This rank's.
        options: What its worker loads.
        environment: The worker's whole environment.
        log: File for what the workers of this machine print outside of trials.
    """

    def __init__(
        self, place: Place, options: WorkerOptions, environment: dict[str, str], log: Path
    ) -> None:
        self._place = place
        self._options = replace(options, place=asdict(place))
        self._log = log if place.rank == 0 else log.with_name(f"{log.stem}-rank{place.rank}.log")
        self._environment = environment
        self._worker = self._launched()
        # The worker's imports run beside this one.
        self._store = place.store("supervisors", STORE_TIMEOUT_S)
        self._next_look_s = 0.0

    def _launched(self) -> Worker:
        Path(self._options.scratch).mkdir(parents=True, exist_ok=True)
        return Worker(self._options, self._environment, self._log)

    def loaded(self) -> RankReply:
        """Waits until the own worker has loaded the workload."""
        try:
            return self._worker.wait_ready(time_limit_s=LOAD_LIMIT_S)
        except WorkerDiedError as error:
            return Failed(cause=error.cause, remedy=error.remedy)
        except AutotuneError as error:
            return CannotLoad.of(error)

    def answered(
        self, envelope: Envelope, meeting: str, on_progress: Callable[[Progress], None] | None
    ) -> RankReply:
        """What the own worker answers to a command, once it is there again."""
        time_limit_s = envelope.time_limit_s or LOAD_LIMIT_S
        if not self._worker.is_alive:
            self._worker = self._launched()
            again = self.loaded()
            if not isinstance(again, Ready):
                return again
        missing = self._why_not_all_there(meeting)
        if missing is not None:
            return missing
        command: Command = envelope.body  # type: ignore[assignment]
        return self._worker.ask(
            command,
            log=self._own(envelope.log),
            time_limit_s=time_limit_s,
            on_progress=on_progress,
            should_stop=lambda: self._called_off(meeting),
            meeting=meeting,
        )

    def _why_not_all_there(self, meeting: str) -> RankReply | None:
        """Waits until every rank has a worker that has loaded: one may have to do it again.

        Until then no time limit of the command begins, so that loading is no part of a trial.
        """
        everybody = f"{meeting}/there"
        if self._store.add(f"{everybody}/count", 1) == self._place.world_size:
            self._store.set(everybody, "all")
        deadline_s = time.monotonic() + LOAD_LIMIT_S
        while not self._store.check([everybody]):
            reason = self._called_off(meeting)
            if reason is not None:
                return Stopped(cause=reason)
            if time.monotonic() > deadline_s:
                return Failed(cause="Another rank did not load the workload again.")
            time.sleep(LOOK_TOGETHER_S)
        return None

    def _own(self, log: str | None) -> Path | None:
        if log is None:
            return None
        path = Path(log)
        rank = self._place.rank
        return path if rank == 0 else path.with_name(f"{path.stem}-rank{rank}{path.suffix}")

    def _called_off(self, meeting: str) -> str | None:
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + LOOK_INTERVAL_S
        if self._store.check([f"{meeting}/off"]):
            return "Another rank could not go on."
        return None

    def tell(self, meeting: str, reply: RankReply) -> None:
        """Lets every rank know what came out here; calls the others off where it is no reading."""
        if not is_reading(reply):
            self._store.set(f"{meeting}/off", "off")
        text = envelope_adapter().dump_json(Envelope(body=reply)).decode()
        self._store.set(f"{meeting}/{self._place.rank}", text)

    def gathered(self, meeting: str, limit_s: float) -> GroupReply:
        """Rank 0: the one answer of all ranks, as soon as the last has come."""
        deadline_s = time.monotonic() + limit_s
        replies: list[RankReply] = []
        for rank in range(self._place.world_size):
            left_s = max(0.1, deadline_s - time.monotonic())
            try:
                self._store.wait([f"{meeting}/{rank}"], timedelta(seconds=left_s))
            except RuntimeError:  # torch's store errors derive from it
                replies.append(Failed(cause=f"Rank {rank} gave no answer: it is gone or hangs."))
                continue
            text = self._store.get(f"{meeting}/{rank}")
            replies.append(envelope_adapter().validate_json(text).body)  # type: ignore[arg-type]
        return agreed(replies)

    def order(self, number: int, envelope: Envelope) -> None:
        """Rank 0: passes a command on to the others."""
        self._store.set(f"order/{number}", envelope_adapter().dump_json(envelope).decode())

    def next_order(self, number: int) -> Envelope | None:
        """The other ranks: waits for a command; None once the launcher's store is gone."""
        name = f"order/{number}"
        while True:
            try:
                self._store.wait([name], timedelta(seconds=STORE_TIMEOUT_S))
                return envelope_adapter().validate_json(self._store.get(name))
            except RuntimeError as error:  # torch's store errors derive from it
                if "imeout" not in str(error) and "imed out" not in str(error):
                    return None

    def close(self) -> None:
        """Ends the own worker."""
        self._worker.close()


def lead(supervisor: Supervisor, channel: Channel) -> None:
    """Rank 0's loop: from the engine to the ranks and back, until the engine is gone."""
    supervisor.tell("load", supervisor.loaded())
    ready = supervisor.gathered("load", LOAD_LIMIT_S)
    channel.send(ready, is_last=not isinstance(ready, Ready))
    number = 0
    while isinstance(ready, Ready) and (envelope := channel.receive()) is not None:
        number += 1
        meeting = f"command-{number}"
        supervisor.order(number, envelope)
        supervisor.tell(meeting, supervisor.answered(envelope, meeting, channel.send))
        limit_s = (envelope.time_limit_s or LOAD_LIMIT_S) + ANSWER_GRACE_S
        channel.send(supervisor.gathered(meeting, limit_s))


def follow(supervisor: Supervisor) -> None:
    """The loop of every other rank."""
    supervisor.tell("load", supervisor.loaded())
    number = 0
    while (envelope := supervisor.next_order(number := number + 1)) is not None:
        meeting = f"command-{number}"
        supervisor.tell(meeting, supervisor.answered(envelope, meeting, None))


def main() -> None:
    """Entry point of a rank."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    environment = without_launch(os.environ)
    # That the store closes with the group is how it ends, and nothing to be warned of.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    address, options, log = sys.argv[1:4]
    place = Place.of_environment(os.environ)
    supervisor = Supervisor(place, WorkerOptions(**json.loads(options)), environment, Path(log))
    try:
        if place.rank == 0:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(address)
            lead(supervisor, Channel(connection.detach()))
        else:
            follow(supervisor)
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()
