"""What the palette finds: by the name of a command, or by words of what it does."""

from __future__ import annotations

from collections.abc import Iterable

from textual.command import Hit, Hits
from textual.system_commands import SystemCommandsProvider

_WORTH_OF_HELP = 0.3
"""How much less it counts that a word stands in the explanation."""


class KeyCommands(SystemCommandsProvider):
    """Every key of the screen in front, and every trial."""

    async def search(self, query: str) -> Hits:
        """What fits the words, the names of commands first."""
        matcher = self.matcher(query)
        wanted = query.casefold().split()
        for name, help, run, _ in self.app.get_system_commands(self.screen):
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=help)
            elif _begins_all(wanted, f"{name} {help}".casefold().split()):
                yield Hit(_WORTH_OF_HELP, name, run, help=help)


def _begins_all(wanted: Iterable[str], words: list[str]) -> bool:
    """Whether each of the wanted words begins one of the others."""
    return all(any(word.startswith(one) for word in words) for one in wanted)
