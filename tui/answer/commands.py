"""Commands that do something with the end of a run, word by word behind `autotune`."""

from __future__ import annotations

from pathlib import Path

from autotune.events import FilesExported
from autotune.run_directory import RunDirectory
from tui.answer.read import Offer


def export(run: RunDirectory, out: str, offer: Offer) -> list[str]:
    """Writes the files of an offer."""
    words = ["export", str(run.path), "--out", out]
    if offer.kind is not None:
        words += ["--alternative", offer.kind.replace(" ", "-")]
    return words


def usual_place(run: RunDirectory, offer: Offer, exported: FilesExported | None) -> Path:
    """Where the files of an offer go if nobody says: those of the answer keep their place."""
    usual = Path(exported.directory) if exported is not None else run.out
    if offer.kind is None:
        return usual
    return usual.with_name(f"{usual.name}-{offer.kind.replace(' ', '-')}")


def resume(run: RunDirectory) -> list[str]:
    """Goes on with a run that ended early, and does not wait for it."""
    root = str(run.path.parent)
    return ["tune", "--resume", "--name", run.name, "--run-dir", root, "--detach"]


def show(run: RunDirectory) -> list[str]:
    """Tells what is known of a run."""
    return ["show", str(run.path)]
