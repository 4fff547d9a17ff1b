"""Pictures of the terminal UI for the README: `python -m tests.testing.screenshots RUN_DIRECTORY`.

They show a real run. Fonts are the reader's own, so that looking at one asks nobody else.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from functools import partial
from pathlib import Path

from autotune.run_directory import RunDirectory
from tests.tui.driving import Driver, until
from tui.app import AutotuneApp
from tui.keys.key import ScreenName

SIZE = (132, 36)
SCREENS: dict[str, ScreenName] = {"search": "search", "recommendation": "export"}
PLACE = Path(__file__).parents[2] / "docs"
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_FONT = re.compile(r"font-family: Fira Code,")


def without_fonts(svg: str) -> str:
    """The picture without fonts from elsewhere."""
    return _FONT.sub("font-family: 'DejaVu Sans Mono',", _FONT_FACE.sub("", svg))


def _is_in_front(app: AutotuneApp, name: ScreenName) -> bool:
    return app.front is not None and name == app.front.NAME


def main() -> None:
    """Draws each screen into a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    app = AutotuneApp(RunDirectory(parser.parse_args().run.absolute()))

    async def draw() -> None:
        async with app.run_test(size=SIZE) as pilot:
            driver: Driver = pilot
            await until(driver, lambda: app.is_awake and app.latest.is_read)
            PLACE.mkdir(exist_ok=True)
            for name, screen in SCREENS.items():
                app.action_go(screen)
                await until(driver, partial(_is_in_front, app, screen))
                await pilot.pause(0.5)
                svg = app.export_screenshot(title=f"autotune tui: {name}")
                (PLACE / f"tui-{name}.svg").write_text(without_fonts(svg), encoding="utf-8")

    asyncio.run(draw())


if __name__ == "__main__":
    main()
