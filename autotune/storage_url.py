"""Storage URLs and the passwords in them: an engine is handed them, and nothing writes them down.

What a run keeps on disk has its storage's URL without the password. The full one reaches the engine
in the variable `AUTOTUNE_STORAGE`, which is also where the command line looks for `--storage`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

VARIABLE = "AUTOTUNE_STORAGE"
# Up to the last @ before the path, so that a password with an @ in it is hidden whole.
_IN_FRONT = re.compile(r"(://[^:/@?]*):([^/?#]*|[^@]*)@")
_IN_QUERY = re.compile(r"(?<=[?&])((?:password|passwd|pwd|sslpassword)=)([^&#]*)", re.IGNORECASE)
_SHORTEST_SECRET = 3
"""Shorter parts of a password stand in every text, and tell nobody anything."""


def shown(url: str) -> str:
    """The URL with stars for its passwords."""
    return _IN_QUERY.sub(r"\1***", _IN_FRONT.sub(r"\1:***@", url))


def without_password(url: str) -> str:
    """The URL as it may be written down; drivers then look where they keep passwords."""
    bare = _IN_QUERY.sub("", _IN_FRONT.sub(r"\1@", url))
    return re.sub(r"[?&]+$", "", re.sub(r"([?&])&+", r"\1", bare))


def with_password(url: str | None, environment: Mapping[str, str]) -> str | None:
    """A URL that was written down, with the password that the environment has for it.

    Args:
        url: What `without_password` gave; None where there is no storage.
        environment: May hold the full URL.
    """
    full = environment.get(VARIABLE)
    if url is None or full is None or without_password(full) != url:
        return url
    return full


def scrubbed(text: str, url: str) -> str:
    """A text of somebody else's, for example an error, without the URL's passwords.

    Args:
        text: What is to be shown.
        url: The URL that it may quote, whole or in parts.
    """
    secrets: set[str] = set()
    for pattern in (_IN_FRONT, _IN_QUERY):
        for match in pattern.finditer(url):
            # A driver cuts a password at an @ that was not escaped.
            for part in (match[2], *match[2].split("@")):
                secrets |= {part, unquote(part)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text
