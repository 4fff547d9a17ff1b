"""Everything that the exported files are made of: plain data, for a child process to read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from pydantic import TypeAdapter

from autotune.configuration import Configuration
from autotune.events import Document
from autotune.request import Driver
from autotune.view import TrialView
from autotune.workload.facts import WorkloadFacts
from autotune.workload.loaded import TASK_LOSS_ITEMS, LossItems
from autotune.workload.spec import WorkloadSpec

_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?)(_|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A finished run, as far as its files tell of it."""

    run: str
    """The run's name."""
    configuration: Configuration
    """The one that the files put in force: the recommended one, or an alternative of it."""
    baseline: Configuration
    document: Document
    """The public recommendation document, as `recommendation.json` holds it."""
    workload: WorkloadSpec | None
    """Resolved: its paths are absolute and its columns are chosen. None where the job came as live
    objects, of which no script can be written."""
    facts: WorkloadFacts
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the trials ran under, and that the launch commands set."""
    repair_loss: bool = False
    """Loss parity fails as the library stands, and holds with `model_accepts_loss_kwargs = False`
    set on the Trainer."""
    trials: tuple[TrialView, ...] = ()
    total_steps: int | None = None
    """Optimizer steps of the training to come; None trains for the default number of epochs."""
    driver: Driver = "trainer"
    """Whose loop the trials ran."""
    device_type: str = "cpu"
    """torch's name of the kind of device that was measured: cpu, cuda, xpu, mps, …"""

    @property
    def launch_environment(self) -> dict[str, str]:
        """The variables that may be written down: none whose name says that it is a secret."""
        return {
            name: value
            for name, value in sorted(self.environment.items())
            if not _SECRET.search(name)
        }

    @property
    def rows_per_rank(self) -> int:
        """Samples of one optimizer step on one rank: all its rows where the data has fewer."""
        rows = self.configuration.micro_batch_size * self.configuration.accumulation_steps
        return rows if self.facts.num_rows is None else min(rows, self.facts.num_rows)

    @property
    def has_scripts(self) -> bool:
        """Whether whole scripts can be written."""
        return self.workload is not None

    @property
    def spec(self) -> WorkloadSpec:
        """The workload that scripts are written of.

        Raises:
            ValueError: There is none.
        """
        if self.workload is None:
            raise ValueError("the job came as live objects, of which no script can be written")
        return self.workload

    @property
    def loss_items(self) -> LossItems:
        """What the model's loss is the mean of."""
        return TASK_LOSS_ITEMS[self.spec.task]

    @property
    def has_cpu_ranks(self) -> bool:
        """Whether several ranks train on CPUs, which Accelerate takes for single ones unasked."""
        return self.device_type == "cpu" and self.configuration.world_size > 1

    @property
    def uses_local_sgd(self) -> bool:
        """Whether the ranks average their parameters instead of their gradients."""
        return self.configuration.local_sgd_steps > 1 and self.configuration.world_size > 1


@cache
def bundle_adapter() -> TypeAdapter[Bundle]:
    """The codec between bundles and JSON."""
    return TypeAdapter(Bundle)
