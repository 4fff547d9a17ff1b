"""Everything that the exported files are made of: plain data, for a child process to read."""

from __future__ import annotations

import math
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

RENDEZVOUS_PORT = 29500
"""Where the launchers of several nodes meet, if nothing else is said: torchrun's own default."""

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
    num_nodes: int = 1
    """Machines that the ranks are spread over evenly."""
    address: str | None = None
    """By which the other nodes reach the first one, which holds rank 0; needed for several."""
    interfaces: tuple[str, ...] = ()
    """The network interface of each node that its exchange went through in the trials; empty where
    the process group chose one by itself."""
    rendezvous_port: int = RENDEZVOUS_PORT
    """Port of the first node at which the launchers of several nodes meet."""
    has_unused_parameters: bool = False
    """Some trained parameter gets no gradient, which the wrapper that exchanges gradients has to
    know."""

    def __post_init__(self) -> None:
        num_ranks = self.configuration.world_size
        if num_ranks % self.num_nodes:
            raise ValueError(f"{num_ranks} ranks do not spread evenly over {self.num_nodes} nodes.")
        if self.num_nodes > 1 and self.address is None:
            raise ValueError("Several nodes need the address of the first.")
        if len(self.interfaces) not in (0, self.num_nodes):
            raise ValueError(f"{len(self.interfaces)} interfaces for {self.num_nodes} nodes.")

    @property
    def launch_environment(self) -> dict[str, str]:
        """The variables that may be written down: none whose name says that it is a secret."""
        return {
            name: value
            for name, value in sorted(self.environment.items())
            if not _SECRET.search(name)
        }

    @property
    def evaluation_batch_size(self) -> int | None:
        """The recommended evaluation batch size; None where nothing is known of it."""
        answer = self.document.get("recommendation")
        found = answer.get("evaluation") if isinstance(answer, dict) else None
        size = found.get("per_device_eval_batch_size") if isinstance(found, dict) else None
        return size if isinstance(size, int) else None

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node."""
        return self.configuration.world_size // self.num_nodes

    @property
    def is_stream(self) -> bool:
        """Whether the training data has no length."""
        return self.facts.num_rows is None

    def window_rows(self, num_ranks: int) -> tuple[int, ...]:
        """Rows of each micro-batch of the first optimizer step, on every one of so many ranks.

        Data with fewer rows than one step takes makes a shorter step. A single rank then gets a
        smaller last micro-batch; for several, Accelerate fills it up with rows from the beginning,
        so that all of them have equally many.
        """
        size = self.configuration.micro_batch_size
        steps = self.configuration.accumulation_steps
        rows = self.facts.num_rows
        if rows is None or rows >= size * steps * num_ranks:
            return (size,) * steps
        if num_ranks > 1:
            return (size,) * min(steps, math.ceil(math.ceil(rows / size) / num_ranks))
        whole, rest = divmod(rows, size)
        return (size,) * whole + (rest,) * bool(rest)

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
    def has_ranks(self) -> bool:
        """Whether several ranks train together."""
        return self.configuration.world_size > 1

    @property
    def has_cpu_ranks(self) -> bool:
        """Whether several ranks train on CPUs, which Accelerate takes for single ones unasked."""
        return self.device_type == "cpu" and self.has_ranks

    @property
    def uses_local_sgd(self) -> bool:
        """Whether the ranks average their parameters instead of their gradients."""
        return self.configuration.local_sgd_steps > 1 and self.has_ranks


@cache
def bundle_adapter() -> TypeAdapter[Bundle]:
    """The codec between bundles and JSON."""
    return TypeAdapter(Bundle)
