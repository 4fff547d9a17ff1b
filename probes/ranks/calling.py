"""Node 0's side of one order: calls the other nodes, watches them while it runs, withdraws it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from probes.errors import RANK_FAILED, RANK_KILLED, ProbeError
from probes.ranks.meeting import TICK_S, Line, NodeState, Order

END_LIMIT_S = 12.0
"""How long node 0 waits for the others to end what was withdrawn."""
SAY_LIMIT_S = 3.0
"""How long the other nodes may take to say why a rank of theirs ended."""

REMEDY = "Look at what that node printed, and whether it still reaches node 0."


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why an order cannot be finished."""

    text: str
    code: int | None = None
    """What the share of another node ended with; None where that node is lost."""


class Call:
    """An order on all nodes, from its being said to its end everywhere. A context manager.

    Args:
        line: The meeting.
        order: What is to be run.
        on_trouble: Ends the share of node 0; called again and again, with the seconds since
            another node was lost or failed, from a thread of this object.
        lost_after_s: Silence after which a node is lost.
    """

    def __init__(
        self,
        line: Line,
        order: Order,
        *,
        on_trouble: Callable[[float], None],
        lost_after_s: float,
    ) -> None:
        self._line = line
        self._order = order
        self._on_trouble = on_trouble
        self._lost_after_s = lost_after_s
        self._others = list(range(1, order.num_nodes))
        self._heard_s = dict.fromkeys(self._others, time.monotonic())
        self._states: dict[int, NodeState] = {}
        self._trouble: Trouble | None = None
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._line.put_order(self._order)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_watching()
        # Without its store the meeting is over, and every agent ends its share by itself.
        with contextlib.suppress(RuntimeError):
            self._order = replace(self._order, is_over=True)
            self._line.put_order(self._order)
            self._await(lambda: not self._unfinished(), END_LIMIT_S)

    def wait_until_running(self) -> None:
        """Waits until every node runs its share, then watches them.

        Raises:
            ProbeError: A node is not there, or could not start, within the order's time limit.
        """
        limit_s = self._order.join_limit_s
        try:
            self._await(lambda: self._trouble is not None or not self._missing(), limit_s)
        except RuntimeError as error:
            raise ProbeError("The store where the nodes meet is gone.", REMEDY) from error
        if self._trouble is not None:
            raise ProbeError(self._trouble.text, REMEDY)
        missing = self._missing()
        if missing:
            names = " and ".join(f"node {rank}" for rank in missing)
            raise ProbeError(
                f"{names[:1].upper()}{names[1:]} did not join within {limit_s:g} s.",
                "Start the same command on every node, and check that each reaches node 0.",
            )
        self._thread.start()

    def explain(self, code: int) -> Trouble | None:
        """Where another node is the reason why the share of node 0 ended.

        A rank that fails takes those down that wait for it, on every node. So a failure of node 0
        that nobody else had before is put down to another node only where a rank was killed there.

        Args:
            code: What the share of node 0 ended with.
        """
        was_first = self._trouble is not None
        self._stop_watching()
        if not was_first and code == RANK_FAILED:
            with contextlib.suppress(RuntimeError):
                self._await(lambda: not self._unfinished(), SAY_LIMIT_S)
        trouble = self._trouble
        if trouble is None or not code:
            return None
        return trouble if was_first or trouble.code == RANK_KILLED else None

    def _stop_watching(self) -> None:
        self._is_done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _await(self, condition: Callable[[], bool], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        self._look()
        while not condition() and time.monotonic() < deadline_s:
            time.sleep(TICK_S)
            self._look()

    def _watch(self) -> None:
        since_s: float | None = None
        while not self._is_done.wait(TICK_S):
            try:
                self._look()
            except RuntimeError:
                self._trouble = Trouble(text=f"The store where the nodes meet is gone. {REMEDY}")
            if self._trouble is not None:
                since_s = time.monotonic() if since_s is None else since_s
                self._on_trouble(time.monotonic() - since_s)

    def _look(self) -> None:
        """Says that this order lives, and hears what the other nodes say."""
        self._order = replace(self._order, beat=self._order.beat + 1)
        self._line.put_order(self._order)
        now_s = time.monotonic()
        joined = [rank for rank in self._others if self._line.has_joined(rank)]
        for rank, state in zip(joined, self._line.states(joined) if joined else [], strict=True):
            before = self._states.get(rank)
            if before is None or before.beat != state.beat:
                self._heard_s[rank] = now_s
            self._states[rank] = state
            if self._trouble is None:
                self._trouble = self._trouble_of(rank, state, now_s - self._heard_s[rank])

    def _trouble_of(self, rank: int, state: NodeState, silence_s: float) -> Trouble | None:
        if state.state == "left":
            return Trouble(text=f"Node {rank} has left. {REMEDY}")
        if silence_s > self._lost_after_s:
            return Trouble(text=f"Node {rank} was not heard of for {silence_s:.0f} s. {REMEDY}")
        if state.order == self._order.number and state.state == "ended" and state.code:
            said = state.last_line or f"Its share ended with code {state.code}."
            return Trouble(text=f"Node {rank}: {said}", code=state.code)
        return None

    def _missing(self) -> list[int]:
        number = self._order.number
        return [
            rank
            for rank in self._others
            if (state := self._states.get(rank)) is None or state.order != number
        ]

    def _unfinished(self) -> list[int]:
        """Nodes that still run this order, as far as they can be heard."""
        now_s = time.monotonic()
        return [
            rank
            for rank, state in self._states.items()
            if state.order == self._order.number
            and state.state == "running"
            and now_s - self._heard_s[rank] <= self._lost_after_s
        ]
