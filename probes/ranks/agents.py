"""One process on every node: node 0 leads, the others run their shares of what it orders.

An agent outlives whatever its ranks do. It leaves with the code that node 0 announces, or with an
error where node 0 is gone; and nothing that it started outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from probes.errors import ProbeError
from probes.ranks.launch import (
    GRACE_S,
    JOIN_LIMIT_S,
    LOST_AFTER_S,
    share_command,
    without_launch,
)
from probes.ranks.meeting import (
    TICK_S,
    Lead,
    Line,
    NodeState,
    Order,
    host_line,
    join_line,
)
from probes.ranks.nodes import FACTS, Node, NodeFacts, facts_of_here

_FAREWELL_S = 5.0
"""How long node 0 waits for the others to read what it says at the end."""


class Meeting:
    """Node 0's hold on the other nodes; made by `host_meeting`."""

    def __init__(self, node: Node, line: Line, facts: NodeFacts) -> None:
        self._node = node
        self._line = line
        self._facts = facts
        self._lead = Lead(beat=0)
        self._others = list(range(1, node.num_nodes))
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What `Ranks.meeting` takes."""
        return self._node.meeting

    @property
    def num_nodes(self) -> int:
        """Nodes, this one counted."""
        return self._node.num_nodes

    def gather(self, *, time_limit_s: float = JOIN_LIMIT_S) -> tuple[NodeFacts, ...]:
        """Waits until every node is there.

        Args:
            time_limit_s: How long.

        Returns:
            What each tells of itself, by its number.

        Raises:
            ProbeError: Some did not come.
        """
        deadline_s = time.monotonic() + time_limit_s
        try:
            while missing := [n for n in self._others if not self._line.has_joined(n)]:
                if time.monotonic() > deadline_s:
                    names = " and ".join(f"node {number}" for number in missing)
                    raise ProbeError(
                        f"{names[:1].upper()}{names[1:]} did not join within {time_limit_s:g} s.",
                        "Start the same command on every node, and check that each reaches "
                        f"{self._node.meeting.partition('/')[0]}.",
                    )
                time.sleep(TICK_S)
            found = [FACTS.validate_json(self._line.facts(number)) for number in self._others]
        except RuntimeError as error:
            raise ProbeError(
                "The store where the nodes meet is gone.", "Look at what its launcher printed."
            ) from error
        return (self._facts, *found)

    def dismiss(self, code: int, cause: str = "") -> None:
        """Sends the other nodes home; later calls change nothing.

        Args:
            code: What they leave with.
            cause: Why, where there is an error.
        """
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._thread.join()
        with suppress(RuntimeError):
            self._line.put_lead(replace(self._lead, code=code, cause=cause))
            joined = [number for number in self._others if self._line.has_joined(number)]
            deadline_s = time.monotonic() + _FAREWELL_S
            # Whoever hosts the store must not leave before the others have read it.
            while joined and time.monotonic() < deadline_s:
                if all(state.state == "left" for state in self._line.states(joined)):
                    break
                time.sleep(TICK_S / 5)

    def _beat(self) -> None:
        while not self._is_closed.wait(TICK_S):
            self._lead = replace(self._lead, beat=self._lead.beat + 1)
            try:
                self._line.put_lead(self._lead)
            except RuntimeError:
                return


@contextmanager
def host_meeting(node: Node) -> Iterator[Meeting]:
    """Node 0's side of the meeting, open until the block is left.

    Where the block is left without `dismiss`, the other nodes leave with an error: with the
    `exit_code` of the exception, if it has one.

    Args:
        node: Node 0.

    Raises:
        ProbeError: The nodes cannot meet at that address.
    """
    if node.has_store:
        line, store = join_line(node.meeting, time_limit_s=JOIN_LIMIT_S), None
    else:
        line, store = host_line(node.meeting)
    line.open()
    meeting = Meeting(node, line, facts_of_here())
    try:
        yield meeting
    except BaseException as error:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        code = getattr(error, "exit_code", 128 + signal.SIGINT if is_interrupt else 1)
        meeting.dismiss(int(code), "Interrupted." if is_interrupt else str(error))
        raise
    finally:
        meeting.dismiss(1, "Node 0 left without a word.")
        line.close()
        del store


def serve(
    node: Node,
    *,
    join_limit_s: float = JOIN_LIMIT_S,
    lost_after_s: float = LOST_AFTER_S,
    on_word: Callable[[str], None] | None = None,
) -> int:
    """Runs this node's shares of what node 0 orders, until it says that there is no more.

    Args:
        node: This one, not node 0.
        join_limit_s: Time to find node 0.
        lost_after_s: Silence after which node 0 counts as gone.
        on_word: Is told what goes on, for people.

    Returns:
        The exit code that node 0 announces.

    Raises:
        ProbeError: Node 0 is not there, or is gone.
    """
    say = on_word or (lambda text: None)
    deadline_s = time.monotonic() + join_limit_s
    line = join_line(node.meeting, time_limit_s=join_limit_s)
    _await_opening(line, node, deadline_s, join_limit_s)
    line.put_facts(node.rank, FACTS.dump_json(facts_of_here()).decode())
    post = _Post(line, node.rank, lost_after_s)
    share: _Share | None = None
    say(f"Node {node.rank} of {node.num_nodes} waits for what node 0 orders.")
    try:
        while True:
            order = post.order
            if post.lead.code is not None:
                if post.lead.cause:
                    say(f"Node 0: {post.lead.cause}")
                return post.lead.code
            if post.trouble is not None:
                raise ProbeError(
                    f"Node 0 is gone: {post.trouble}.",
                    "Look at what it printed, and start the command again on every node.",
                )
            if share is not None:
                share = _looked_after(share, order, post)
            elif order is not None and not order.is_over and order.number > post.done:
                share = _Share(order, node.rank)
                post.say(NodeState(order=order.number, state="running"))
            time.sleep(TICK_S / 5)
    finally:
        if share is not None:
            share.end()
        post.leave()


def _await_opening(line: Line, node: Node, deadline_s: float, limit_s: float) -> None:
    try:
        while not line.is_open():
            if time.monotonic() > deadline_s:
                raise ProbeError(
                    f"Node 0 did not open the meeting at {node.meeting.partition('/')[0]} within "
                    f"{limit_s:g} s.",
                    "Start the same command on every node.",
                )
            time.sleep(TICK_S)
    except RuntimeError as error:
        raise ProbeError(
            "The store where the nodes meet is gone.", "Start the command again on every node."
        ) from error


def _looked_after(share: _Share, order: Order | None, post: _Post) -> _Share | None:
    """Ends a share that is not wanted any more, and tells how one has ended."""
    number = share.order.number
    is_wanted = order is not None and order.number == number and not order.is_over
    if share.code() is None and is_wanted and not post.is_order_silent():
        return share
    code = share.end()
    post.say(NodeState(order=number, state="ended", code=code, last_line=share.last_line))
    return None


class _Post:
    """Speaks with node 0 in a thread of its own, so that a silent store holds nothing up."""

    def __init__(self, line: Line, rank: int, lost_after_s: float) -> None:
        self._line = line
        self._rank = rank
        self._lost_after_s = lost_after_s
        self._lock = threading.Lock()
        self._state = NodeState()
        self._is_left = threading.Event()
        self._error: str | None = None
        self.lead = Lead(beat=-1)
        self.order: Order | None = None
        self._heard_s = self._order_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> int:
        """Number of the last order that this node dealt with."""
        return self._state.order

    @property
    def trouble(self) -> str | None:
        """Why node 0 counts as gone; None while it lives."""
        if self._error is not None:
            return self._error
        silence_s = time.monotonic() - self._heard_s
        if silence_s > self._lost_after_s:
            return f"it was not heard of for {silence_s:.0f} s"
        return None

    def is_order_silent(self) -> bool:
        """Whether whoever gave the order is gone."""
        return time.monotonic() - self._order_s > self._lost_after_s

    def say(self, state: NodeState) -> None:
        """Says how this node stands, at the next tick."""
        with self._lock:
            self._state = replace(state, beat=self._state.beat)

    def leave(self) -> None:
        """Says that this node leaves."""
        self._is_left.set()
        self._thread.join(timeout=_FAREWELL_S)

    def _run(self) -> None:
        try:
            while not self._is_left.is_set():
                self._tick()
                self._is_left.wait(TICK_S)
            with self._lock:
                self._state = replace(self._state, state="left")
            self._tick()
        except RuntimeError:
            self._error = "its store is closed"

    def _tick(self) -> None:
        with self._lock:
            self._state = replace(self._state, beat=self._state.beat + 1)
            state = self._state
        self._line.put_state(self._rank, state)
        lead, order = self._line.read()
        now_s = time.monotonic()
        if lead != self.lead:
            self._heard_s = now_s
        if order != self.order:
            self._order_s = now_s
        self.lead, self.order = lead, order


class _Share:
    """The wrapper that runs this node's ranks of one order."""

    def __init__(self, order: Order, node_rank: int) -> None:
        self.order = order
        self.last_line = ""
        """What it said last on stderr."""
        self._process = subprocess.Popen(
            share_command(order, node_rank),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=without_launch(os.environ),
        )
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def end(self) -> int:
        """Ends it with its ranks if it still runs, and returns its code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_S + 3)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._process.wait()
        self._reader.join(timeout=1)
        return code

    def _pass_on(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
                text = line.decode(errors="replace").strip()
                self.last_line = text or self.last_line
