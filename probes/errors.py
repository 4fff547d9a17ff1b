"""What a probe raises where the person who called it has to act, and how starting ranks ends."""

from __future__ import annotations

RANK_FAILED = 1
"""Code of the launcher's wrapper where a rank failed; its last line on stderr says which."""
RANK_KILLED = 4
"""The same where a signal ended the rank, as the kernel's does for want of memory."""
NOT_FOR_MEMORY = "not for want of memory"
"""Words of that last line where the rank was killed and its machine's kernel says so."""
NODES_FAILED = 3
"""Code of the wrapper where the nodes did not come together, or one was lost."""


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
