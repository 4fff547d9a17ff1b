"""Every test sees the same small world: no network, no settings of the person who runs it.

The variables are set when this file is imported, since some libraries read them only once.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest

_home = tempfile.TemporaryDirectory(prefix="autotune-tests-")

for _name in [*os.environ]:
    if _name.startswith(("AUTOTUNE_", "ACCELERATE_")) or _name in (
        "CI",
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
    ):
        del os.environ[_name]

os.environ.update(
    HF_HOME=_home.name,
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    XDG_CACHE_HOME=_home.name,
    LC_ALL="C.UTF-8",
    COLUMNS="100",
    LINES="40",
    TERM="xterm-256color",
    # Two files are tested at a time: threads of one job would wait for the cores of the other.
    OMP_NUM_THREADS="1",
)

# A shell that starts the tests in the background has them ignore these, and children inherit that.
for _signal in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        is_interrupt = _signal is signal.SIGINT
        signal.signal(_signal, signal.default_int_handler if is_interrupt else signal.SIG_DFL)

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long is begun first, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def kept_signals() -> Iterator[None]:
    """A test that runs an engine in this very process leaves its handlers to no other one."""
    before = {number: signal.getsignal(number) for number in _HANDLED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
