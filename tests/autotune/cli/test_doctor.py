from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from autotune.cli.app import main
from autotune.cli.commands.doctor import environment

Captured = pytest.CaptureFixture[str]


def test_secrets_are_never_printed() -> None:
    shown = environment(
        {
            "HF_TOKEN": "hf_secret",
            "HUGGINGFACE_HUB_TOKEN": "hf_secret",
            "AUTOTUNE_STORAGE": "postgresql://user:pass@host/db?password=word&x=1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "2",
            "HOME": "/home/somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
    )
    assert shown == {
        "HF_TOKEN": "(set)",
        "HUGGINGFACE_HUB_TOKEN": "(set)",
        "AUTOTUNE_STORAGE": "postgresql://…@host/db?…&x=1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "2",
    }


def test_doctor_works_without_torch_and_with_a_broken_settings_file(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is missing')\n")
    (tmp_path / "autotune.toml").write_text("memory-limt = '6GiB'\n")
    code = "import sys; from autotune.cli.app import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (["doctor", "--json"], ["doctor"]):
        found = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"HF_TOKEN": "hf_secret", "PYTHONPATH": str(tmp_path)},
            timeout=120,
        )
        assert found.returncode == 0, found.stderr
        assert "libtorch.so is missing" in found.stdout
        assert "memory-limit" in found.stdout
        assert "hf_secret" not in found.stdout
        if "--json" in arguments:
            report = json.loads(found.stdout)
            assert report["torch"] == {"error": "ImportError: libtorch.so is missing"}
            assert report["versions"]["autotune-advisor"] == version("autotune-advisor")
            assert report["machine"]["host"]["total_bytes"] > 0
            assert report["environment"]["HF_TOKEN"] == "(set)"
        else:
            assert found.stdout.startswith("```text\npython ")
            assert found.stdout.endswith("```\n")


def test_doctor_says_what_torch_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["torch"]["version"] == version("torch")
    assert report["problems"] == []
    assert report["settings"] is None
