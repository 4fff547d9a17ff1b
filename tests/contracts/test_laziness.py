"""What people type often must start at once: no training library is loaded for it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing import runs

HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "optuna",
    "datasets",
    "numpy",
    "matplotlib",
    "sqlalchemy",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one finished run."""
    root = tmp_path_factory.mktemp("lazy")
    events = [*runs.searching("one"), *runs.ending("one", root / "out")]
    runs.write_run(root / "autotune-runs", "one", events)
    return root


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("tune", "--help"),
        ("runs",),
        ("show", "one"),
        ("show", "one", "--json"),
        ("show", "missing"),
        ("tune", "--global-batch-size", "auto"),
        ("estimate", "--help"),
        ("estimate", "--model-config", "missing.json", "--device", "RTX 4900"),
    ],
    ids=" ".join,
)
def test_no_training_library_is_loaded(root: Path, arguments: tuple[str, ...]) -> None:
    code = (
        "import json, sys\n"
        "from autotune.cli.app import main\n"
        f"main({list(arguments)!r})\n"
        f"print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60
    )
    assert json.loads(found.stderr.splitlines()[-1]) == []


def test_help_loads_no_codec() -> None:
    code = (
        "import sys\nfrom autotune.cli.app import main\nmain(['--help'])\n"
        "codecs = ('autotune.events', 'autotune.request', 'autotune.workload.spec')\n"
        "sys.exit(any(name in sys.modules for name in codecs))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert found.returncode == 0


def test_the_first_picture_waits_for_nothing_that_reads_a_run() -> None:
    code = """
import sys
from autotune.display import output
from tui.app import AutotuneApp
from tui.launch import Options, launch

async def painted(app, **options):
    late = ("pydantic", "typer", "autotune.events", "autotune.view", "tui.words")
    print([name for name in late if name in sys.modules])
    return 0

AutotuneApp.run_async = painted
output.why_no_screen = lambda otherwise: None
launch(None, Options())
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.splitlines()[0] == "[]"


def _importers(library: str) -> set[str]:
    package = Path(__file__).parents[2] / "autotune"
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            if any(name.split(".")[0] == library for name in names):
                found.add(path.relative_to(package).as_posix())
    return found


def test_one_module_draws_with_rich_and_one_package_knows_typer() -> None:
    assert _importers("rich") == {"display/rich.py"}
    assert {path.split("/")[0] for path in _importers("typer")} == {"cli"}
