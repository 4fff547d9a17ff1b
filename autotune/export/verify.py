"""The child process that writes a bundle's files and reads each back through its consumer.

Run as `python -m autotune.export.verify DESCRIPTOR` by `autotune.export.write`; the request on the
channel names the directory and holds the bundle.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from autotune.export import accelerate_config, document, settings
from autotune.export.bundle import Bundle, bundle_adapter
from autotune.export.child import Channel
from autotune.export.installed import Installed, look
from autotune.export.report import page, picture
from autotune.export.running.ranks import Caches, ranks_here
from autotune.export.running.script_check import ScriptCheck, accelerator_flags, trainer_flags
from autotune.export.scripts import accelerate_script, trainer_script
from autotune.export.scripts.preparation import Preparation
from autotune.export.scripts.preparation import look as look_at_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One exported file: who reads it, how it is written, how it is read back."""

    name: str
    reader: str
    """Who reads the file, in words."""
    render: Callable[[], str]
    verify: Callable[[Path], str]
    """Raises where the file is not what was meant; says how it was read."""


def consumers(
    bundle: Bundle,
    installed: Installed,
    prepare: Callable[[], Preparation],
    caches: Caches,
) -> list[Consumer]:
    """Every file of a bundle, the cheap ones first."""
    fields = settings.all_fields(bundle, installed)
    comments = page.provenance(bundle, installed)
    accelerate = f"accelerate {installed.version('accelerate')}"
    transformers = f"transformers {installed.version('transformers')}"
    here = ranks_here(bundle)
    flags = {
        trainer_script.NAME: trainer_flags(here.num_steps, caches.scratch / "trainer"),
        accelerate_script.NAME: accelerator_flags(here.num_steps, caches.scratch / "accelerator"),
    }
    check = ScriptCheck(bundle, here, flags, caches)

    found = [
        Consumer(
            name="recommendation.json",
            reader="autotune.load, and anything that reads JSON",
            render=lambda: document.as_json(bundle.document),
            verify=lambda path: document.verify(path, bundle.document),
        ),
        Consumer(
            name="training_arguments.json",
            reader=f"HfArgumentParser, {transformers}",
            render=lambda: settings.as_json(fields),
            verify=lambda path: settings.verify_json(path, fields),
        ),
        Consumer(
            name="training_arguments.yaml",
            reader=f"HfArgumentParser, {transformers}",
            render=lambda: settings.as_yaml(fields, comments),
            verify=lambda path: settings.verify_yaml(path, fields),
        ),
        Consumer(
            name="train.args",
            reader=f"HfArgumentParser, {transformers}",
            render=lambda: settings.as_args(fields),
            verify=lambda path: settings.verify_args(path, fields),
        ),
        Consumer(
            name="accelerate.yaml",
            reader=f"accelerate launch, {accelerate}",
            render=lambda: accelerate_config.as_yaml(bundle, comments),
            verify=lambda path: accelerate_config.verify(path, bundle),
        ),
        Consumer(
            name="report.svg",
            reader="a browser, report.md",
            render=lambda: picture.draw(bundle),
            verify=lambda path: picture.verify(path, bundle),
        ),
        Consumer(
            name="report.md",
            reader="people",
            render=lambda: page.render(bundle, installed, here),
            verify=lambda path: page.verify(path, bundle),
        ),
    ]
    scripts = [
        Consumer(
            name=trainer_script.NAME,
            reader=f"Python, {transformers}",
            render=lambda: trainer_script.render(bundle, prepare(), installed),
            verify=check.verify,
        ),
        Consumer(
            name=accelerate_script.NAME,
            reader=f"Python, {accelerate}",
            render=lambda: accelerate_script.render(bundle, prepare(), installed),
            verify=check.verify,
        ),
    ]
    return [*found, *scripts] if bundle.has_scripts else found


def run(
    bundle: Bundle,
    directory: Path,
    scratch: Path,
    *,
    write: bool,
    stage: Callable[[str], None],
) -> JsonValue:
    """Writes the files if asked to, then reads every one of them back.

    Args:
        bundle: What the files tell.
        directory: Where they are, or go.
        scratch: An empty directory for what the consumers leave behind.
        write: Whether to write them first.
        stage: Told what is being done.

    Returns:
        `{"files": […]}`, or `{"failure": sentence}`.
    """
    from autotune.export.running.observe import keep_caches

    stage("looking at the installed libraries")
    installed = look()
    caches = Caches(scratch=scratch, is_hub=_is_hub(bundle))
    # Scripts that are only tried must leave nothing beside the user's data.
    keep_caches(caches)
    answer: list[Preparation] = []

    def prepare() -> Preparation:
        if not answer:
            answer.append(look_at_job(bundle, scratch))
        return answer[0]

    files = consumers(bundle, installed, prepare, caches)
    for consumer in files if write else []:
        stage(f"writing {consumer.name}")
        try:
            (directory / consumer.name).write_text(consumer.render(), encoding="utf-8")
        except Exception as error:  # noqa: BLE001  whatever a library raises is an answer
            return _failure(f"{consumer.name} cannot be written", error)
    verified: list[JsonValue] = []
    for consumer in files:
        stage(f"checking {consumer.name}")
        path = directory / consumer.name
        try:
            how = consumer.verify(path)
        except Exception as error:  # noqa: BLE001  whatever a consumer raises is an answer
            subject = f"{consumer.name} was not accepted by its consumer ({consumer.reader})"
            return _failure(subject, error)
        verified.append(
            {
                "name": consumer.name,
                "consumer": consumer.reader,
                "verified_with": how,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
        )
    return {"files": verified}


def _is_hub(bundle: Bundle) -> bool:
    from autotune.workload.source import source_of

    return bundle.workload is not None and source_of(bundle.workload).is_hub


def _failure(subject: str, error: Exception) -> JsonValue:
    traceback.print_exc()
    text = str(error).strip() or type(error).__name__
    return {"failure": f"{subject}: {text}"}


def main() -> None:
    """Answers the one request on the channel."""
    channel = Channel(int(sys.argv[1]))
    request = channel.request
    assert isinstance(request, dict)
    bundle = bundle_adapter().validate_json(json.dumps(request["bundle"]))
    directory = Path(str(request["directory"]))
    # Scripts must not depend on the place that they are tried from.
    os.chdir(directory)
    scratch = Path(str(request["scratch"]))
    write = bool(request["write"])
    channel.result(run(bundle, directory, scratch, write=write, stage=channel.stage))


if __name__ == "__main__":
    main()
