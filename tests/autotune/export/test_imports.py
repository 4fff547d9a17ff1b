"""The caller's side of the export loads none of the libraries that its child verifies with."""

from __future__ import annotations

import subprocess
import sys


def test_the_parent_stays_light() -> None:
    code = (
        "import sys\n"
        "import autotune.export.write, autotune.export.running.rerun, autotune.export.document\n"
        "heavy = {'torch', 'transformers', 'accelerate', 'datasets', 'matplotlib', 'optuna'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
