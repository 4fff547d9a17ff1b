"""Says early that a name of the hub cannot be had here, before a library retries for long."""

from __future__ import annotations

import os
import socket
import urllib.request
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from autotune.errors import WorkloadError


def require(
    name: str, kind: Literal["model", "dataset"], what: str, suggestion: str | None
) -> None:
    """Raises where `name` is not in the caches and the hub is surely out of reach.

    Args:
        name: A name of the hub.
        kind: What kind of repository it would be.
        what: What it was given as, for the message.
        suggestion: A near local path, in a sentence.

    Raises:
        WorkloadError: It cannot be had.
    """
    from huggingface_hub import constants

    if _is_cached(name, kind, Path(constants.HF_HUB_CACHE)):
        return
    if constants.HF_HUB_OFFLINE:
        why = "the hub is switched off by HF_HUB_OFFLINE"
    elif _is_unreachable(constants.ENDPOINT):
        why = "the hub cannot be reached"
    else:
        return
    raise WorkloadError(
        f"The {what} {name} is not here, and {why}.",
        suggestion or "Give the path of a local copy, or try again with a network connection.",
    )


def _is_cached(name: str, kind: str, hub_cache: Path) -> bool:
    places = [hub_cache / f"{kind}s--{name.replace('/', '--')}"]
    if kind == "dataset":
        cache = os.environ.get("HF_DATASETS_CACHE") or hub_cache.parent / "datasets"
        places.append(Path(cache) / name.replace("/", "___"))
    return any(os.path.isdir(place) for place in places)


def _is_unreachable(endpoint: str) -> bool:
    """Whether not even the name of the host is known; a proxy may know it where we do not."""
    if urllib.request.getproxies():
        return False
    try:
        socket.getaddrinfo(urlparse(endpoint).hostname, None)
    except OSError:
        return True
    return False
