"""Children that answer from a script, for what would take a real one long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.events import Document
from tui.children import Answer, Children


@dataclass
class ScriptedChildren(Children):
    """Answers by the first word of a command, or by the module's last name."""

    answers: dict[str, Document | Callable[[list[str]], Document]] = field(default_factory=dict)
    talk: dict[str, Sequence[str]] = field(default_factory=dict)
    """Lines on stderr, by the same name."""
    waits: set[str] = field(default_factory=set)
    """Commands that never answer."""
    asked: list[list[str]] = field(default_factory=list)
    """What was asked, in order: the name and its words."""
    given_up: list[str] = field(default_factory=list)
    """Commands that nobody waited for to the end."""

    def __post_init__(self) -> None:
        super().__init__()

    async def ask(
        self,
        words: Sequence[str],
        *,
        module: str = "autotune",
        time_limit_s: float,
        on_line: Callable[[str], None] | None = None,
    ) -> Answer:
        name = module.rsplit(".", 1)[-1] if module != "autotune" else words[0]
        rest = list(words) if module != "autotune" else list(words[1:])
        self.asked.append([name, *rest])
        for line in self.talk.get(name, ()):
            if on_line is not None:
                on_line(line)
        try:
            await asyncio.sleep(3600 if name in self.waits else 0)
        except asyncio.CancelledError:
            self.given_up.append(name)
            raise
        found = self.answers.get(name, {})
        document = found(rest) if callable(found) else found
        return Answer(code=2 if "error" in document else 0, document=document, said=())

    def num_asked(self, name: str) -> int:
        """How often a command was asked."""
        return sum(asked[0] == name for asked in self.asked)
