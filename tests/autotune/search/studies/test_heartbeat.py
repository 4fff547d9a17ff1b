"""Heartbeats: silence is measured by one's own clock, and only while others could be heard."""

from __future__ import annotations

from autotune.search.studies.heartbeat import Listener, Patience


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def listened(listener: Listener, clock: Clock, seconds: int) -> None:
    """Time passes in which the storage answers every ten seconds."""
    for _ in range(seconds // 10):
        clock.now_s += 10
        listener.reached()


def test_silence_is_longer_than_the_grace_and_ends_with_the_next_beat() -> None:
    clock = Clock()
    listener = Listener(60.0, clock)
    listener.reached()
    assert not listener.is_silent(3, 7)
    listened(listener, clock, 60)
    assert not listener.is_silent(3, 7)
    listened(listener, clock, 10)
    assert listener.is_silent(3, 7)
    assert not listener.is_silent(3, 8), "it was heard again"
    assert not listener.is_silent(4, 7), "another trial is heard for the first time"


def test_time_without_the_storage_counts_against_nobody() -> None:
    clock = Clock()
    listener = Listener(60.0, clock)
    listener.reached()
    assert not listener.is_silent(3, 7)
    # The server is away, or this machine sleeps, for an hour.
    clock.now_s += 3600
    listener.reached()
    assert not listener.is_silent(3, 7)
    listened(listener, clock, 60)
    assert not listener.is_silent(3, 7)
    listened(listener, clock, 10)
    assert listener.is_silent(3, 7)


def test_many_beats_have_to_be_missed() -> None:
    patience = Patience()
    assert patience.grace_s >= 5 * patience.beat_s
