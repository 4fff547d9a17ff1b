"""Finds out, after `datasets` has failed, what exactly is wrong with a file and in which line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from autotune.errors import WorkloadError
from autotune.workload.source import Source, empty_file, file_kind, files_of_known_kind
from autotune.workload.spec import WorkloadSpec
from autotune.workload.translate import chain, is_unreachable, root_cause


def explain(error: Exception, spec: WorkloadSpec, source: Source) -> WorkloadError:
    """The error in the user's words, with the line of the file where there is one."""
    subject = f"The dataset {spec.dataset}"
    if source.is_hub and is_unreachable(error):
        return WorkloadError(
            f"{subject} is neither a file nor a directory here, and the hub cannot be reached.",
            "Give the path of a local file, or try again with a network connection.",
        )
    if source.is_hub and any(type(e).__name__ == "DatasetNotFoundError" for e in chain(error)):
        return WorkloadError(
            f"{subject} is neither a file nor a directory here, nor a dataset of the hub.",
            "Check the name or the path given with --dataset.",
        )
    text = str(error)
    if "BuilderConfig" in text or "Config name is missing" in text:
        return WorkloadError(
            f"{subject} comes in several configurations: {root_cause(error)}",
            "Choose one with --dataset-config.",
        )
    if "corresponds to no data" in text:
        return WorkloadError(
            f"{subject} has no rows in split {spec.split!r}.",
            "Give a dataset with training samples.",
        )
    if "split" in text.lower() and isinstance(error, ValueError):
        return WorkloadError(
            f"{subject} has no split {spec.split!r}: {root_cause(error)}",
            "Choose one with --split.",
        )
    path = Path(spec.dataset or "")
    files = [path] if os.path.isfile(path) else files_of_known_kind(path)
    found = next((fault for file in files if (fault := _fault_of_file(file))), None)
    return found or WorkloadError(
        f"{subject} cannot be read: {root_cause(error)}",
        "Check that the file is complete and of the kind that its ending says.",
    )


def _fault_of_file(path: Path) -> WorkloadError | None:
    if path.stat().st_size == 0:
        return empty_file(path)
    kind = file_kind(path)
    if path.suffix.lower() != kind or kind in (".parquet", ".arrow"):
        return None
    is_lines = kind in (".jsonl", ".ndjson")
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                return WorkloadError(
                    f"Line {number} of {path} is not UTF-8 text (byte 0x{raw[error.start]:02x}).",
                    "Save the file in UTF-8; `iconv -t utf-8` converts from other encodings.",
                )
            if is_lines and line.strip():
                try:
                    json.loads(line.rstrip())
                except json.JSONDecodeError as error:
                    return WorkloadError(
                        f"Line {number} of {path} is not valid JSON: {error.msg} at character "
                        f"{error.pos + 1}.",
                        "Mend or remove the line.",
                    )
    return None
