"""Commands of autotune that the UI starts as children, each answering with one JSON document.

What needs torch, the data or the disk for long is asked there, so that no key waits for it. A
child that nobody waits for any more is asked to end (it tidies up behind itself), and is ended
where it does not. None of them outlives the UI.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.display.output import one_line, plain_text
from autotune.events import Document
from probes.lifetime import leashed

GRACE_S = 5.0
"""How long a child may take to tidy up."""
_NUM_LINES = 20
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a child ended, and what it said."""

    code: int
    document: Document | None
    """What it printed on stdout; None where that is no JSON object."""
    said: tuple[str, ...]
    """The last lines of its stderr."""

    @property
    def error(self) -> tuple[str, str | None] | None:
        """Cause and remedy where it did not do what it was asked; None where it did."""
        error = (self.document or {}).get("error")
        if isinstance(error, dict):
            remedy = error.get("remedy")
            return str(error.get("cause")), None if remedy is None else str(remedy)
        if self.document is not None and self.code == 0:
            return None
        last = self.said[-1] if self.said else ""
        how = f"signal {-self.code}" if self.code < 0 else f"code {self.code}"
        return f"The command ended with {how}{': ' + last if last else ''}.", None

    @property
    def path(self) -> Path | None:
        """The directory that it tells of."""
        path = (self.document or {}).get("path")
        return Path(path) if isinstance(path, str) else None


class Children:
    """Starts children and sees to their end.

    Args:
        environment: Variables of theirs; None is those of this process.
        command: What stands before a module's name; a test may put its own program there.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-P", "-m"),
    ) -> None:
        self._environment = environment
        self._command = tuple(command)
        self._living: set[asyncio.subprocess.Process] = set()
        self._endings: dict[asyncio.subprocess.Process, asyncio.Future[None]] = {}

    async def ask(
        self,
        words: Sequence[str],
        *,
        module: str = "autotune",
        time_limit_s: float,
        on_line: Callable[[str], None] | None = None,
    ) -> Reply:
        """Runs a command and waits for its answer; where the waiting is cancelled, it is ended.

        Args:
            words: What the module is given.
            module: What is run.
            time_limit_s: Time after which the child is ended; that is told as an error.
            on_line: Is told every line of its stderr as it comes.
        """
        is_command = module == "autotune" and bool(words)
        name = f"`autotune {words[0]}`" if is_command else "What looks at the files"
        try:
            process = await asyncio.create_subprocess_exec(
                *leashed([*self._command, module, *words], os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # What the terminal sends is for the UI alone.
                start_new_session=True,
                env=None if self._environment is None else dict(self._environment),
            )
        except (OSError, ValueError) as error:
            # No memory, no process or file left, words that are too long or hold a zero.
            return _failed(f"{name} could not be started: {error}.")
        self._living.add(process)
        try:
            async with asyncio.timeout(time_limit_s):
                out, said, _ = await asyncio.gather(
                    _whole(process.stdout), _lines(process.stderr, on_line), process.wait()
                )
        except TimeoutError:
            return _failed(f"{name} took longer than {time_limit_s:.0f} s.")
        finally:
            if process.returncode is None:
                await self._end(process)
            self._living.discard(process)
            self._endings.pop(process, None)
        return Reply(code=process.returncode or 0, document=_object(out), said=said)

    async def close(self) -> None:
        """Ends every child that is left, and waits for that."""
        await asyncio.gather(*(self._end(process) for process in tuple(self._living)))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Ends a child once, however many wait: another signal would interrupt its tidying up."""
        if process not in self._endings:
            self._endings[process] = asyncio.ensure_future(_end(process))
        await asyncio.shield(self._endings[process])


def _failed(cause: str) -> Reply:
    """The reply of a child that gave none."""
    document: Document = {"error": {"cause": cause, "remedy": None}}
    return Reply(code=-signal.SIGINT, document=document, said=())


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asks a child to end, and kills it with its own children where it does not."""
    _signal(process, signal.SIGINT)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), GRACE_S)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


async def _whole(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream is not None else b""


async def _lines(
    stream: asyncio.StreamReader | None, on_line: Callable[[str], None] | None
) -> tuple[str, ...]:
    """Reads lines of any length, and keeps the last ones."""
    kept: deque[str] = deque(maxlen=_NUM_LINES)
    rest = b""
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            _keep(line, kept, on_line)
        rest = rest[-_CHUNK_BYTES:]
    _keep(rest, kept, on_line)
    return tuple(kept)


def _keep(line: bytes, kept: deque[str], on_line: Callable[[str], None] | None) -> None:
    text = one_line(plain_text(line.decode(errors="replace")))
    if text:
        kept.append(text)
        if on_line is not None:
            on_line(text)


def _object(data: bytes) -> Document | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
