"""What a probe raises where the person who called it has to act; all else becomes a finding."""

from __future__ import annotations


class ProbeError(Exception):
    """An error with a cause, and a remedy the reader can act on.

    Args:
        cause: One sentence that says what is wrong.
        remedy: One sentence that says what to do about it.
        is_usage: What was asked for cannot work; False where something is not available.
    """

    def __init__(self, cause: str, remedy: str, *, is_usage: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.is_usage = is_usage

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}"
