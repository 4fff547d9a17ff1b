"""What ends a command from outside, so that it cleans up behind itself and says so.

Python makes an exception of Ctrl-C alone; SIGTERM and a closed terminal would leave child
processes, hidden directories and no document behind.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):
    """A signal asked the process to end.

    Args:
        number: Which one.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number
        self.cause = "Interrupted." if number is signal.SIGINT else f"Ended by {self.number.name}."


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raises `EndedBySignal` where a signal would have ended the process without a word.

    Whoever handles signals, or was told to ignore them as under nohup, goes on doing so. The first
    signal is heard, so that another one does not end the cleaning up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_IGN)
        raise EndedBySignal(signal.Signals(number))

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)
