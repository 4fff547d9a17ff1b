"""The worker's end of the channel to the engine."""

from __future__ import annotations

import socket

from autotune.trial.protocol import Envelope, Message, envelope_adapter


class Channel:
    """JSON lines over a socket, both ways; what is sent bears the number of the last command."""

    def __init__(self, descriptor: int) -> None:
        self._number = 0
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")

    def send(self, message: Message, *, is_last: bool = False) -> None:
        """Writes one message as one line."""
        envelope = Envelope(body=message, number=self._number, is_last=is_last)
        self._socket.sendall(envelope_adapter().dump_json(envelope) + b"\n")

    def receive(self) -> Envelope | None:
        """The next command; None when the engine is gone."""
        try:
            line = self._lines.readline()
        except OSError:
            return None
        if not line:
            return None
        envelope = envelope_adapter().validate_json(line)
        self._number = envelope.number
        return envelope

    def fileno(self) -> int:
        """For `select`: readable when a command waits or the engine is gone."""
        return self._socket.fileno()

    def is_closed(self) -> bool:
        """Of a readable channel: whether it is readable because the engine is gone."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def close(self) -> None:
        """Closes this end."""
        self._lines.close()
        self._socket.close()
