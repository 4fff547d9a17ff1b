"""Whether a request is sound, as far as can be told before a run is made of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from autotune import storage_url
from autotune.request import Request
from autotune.workload.resolve import resolve_spec
from autotune.workload.spec import WorkloadSpec


def check_request(request: Request, environment: Mapping[str, str] = os.environ) -> None:
    """Says what is wrong with a request, so that no run is begun that fails at once.

    Args:
        request: What is asked for.
        environment: May hold the password of its storage.

    Raises:
        UsageError: A path, a choice or the storage cannot work.
        WorkloadError: A model, a dataset or a column is not there.
    """
    workload = request.workload
    if isinstance(workload, WorkloadSpec) and not workload.demo:
        with tempfile.TemporaryDirectory(prefix="autotune-request-") as scratch:
            resolve_spec(workload, Path(scratch), Path(request.working_directory))
    if request.storage is not None:
        # It loads Optuna, which nothing else needs before a run.
        from autotune.search.studies import storage_faults

        storage_faults.check(storage_url.with_password(request.storage, environment))
