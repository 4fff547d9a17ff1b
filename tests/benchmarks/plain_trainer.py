"""The child process of `rivals`: a plain Trainer in a fresh process, under a memory limit or none.

Run as `python -m tests.benchmarks.plain_trainer DESCRIPTOR`; the request on the channel holds a
`PlainRun`, the answer is a `PlainResult`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from autotune.configuration import Configuration
from autotune.export.child import Channel
from autotune.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    import torch
    from transformers import Trainer


@dataclass(frozen=True, kw_only=True)
class PlainRun:
    """What is trained, and how."""

    spec: WorkloadSpec
    scratch: str
    configuration: Configuration
    find_batch_size: bool = False
    """Start with the configuration's micro-batch size and let `auto_find_batch_size` cut it."""
    repair_loss: bool = False
    limit_bytes: int | None = None
    """What the process may occupy, as a memory limit means it: the level after imports plus live
    tensors. The system refuses data beyond it (RLIMIT_DATA)."""
    num_rows: int
    """Training ends with the optimizer step that reaches so many."""


@dataclass(kw_only=True)
class Attempt:
    """One start of the training loop: the last one is the one that held."""

    micro_batch_size: int
    start_s: float
    step_rows: list[int] = field(default_factory=list)
    """Rows of each optimizer step."""
    step_times_s: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class PlainResult:
    """What was seen of the run."""

    attempts: list[Attempt] = field(default_factory=list)
    failure: str | None = None
    level_bytes: int = 0

    @property
    def restarts_s(self) -> float:
        """From the start of the first attempt to the start of the last."""
        return self.attempts[-1].start_s - self.attempts[0].start_s if self.attempts else 0.0


def train(request: PlainRun) -> PlainResult:
    """Trains until enough rows are done, or until the run fails."""
    import accelerate  # noqa: F401  (part of the level after imports)
    import datasets  # noqa: F401
    from transformers import Trainer  # noqa: F401

    from autotune.trial.device import fence_data, resident_bytes
    from autotune.trial.failure import describe
    from autotune.workload.load import load

    result = PlainResult(level_bytes=resident_bytes())
    try:
        workload = load(request.spec, Path(request.scratch), Path.cwd())
        if request.limit_bytes is not None:
            # The model is there already; only what training adds is still to be counted.
            held_bytes = result.level_bytes + workload.facts.parameter_bytes
            fence_data(request.limit_bytes - held_bytes)
        with tempfile.TemporaryDirectory() as output:
            _trainer(workload, request, result, output).train()
    except Exception as error:  # noqa: BLE001  (how it fails is what is asked)
        traceback.print_exc()
        result.failure = describe(error)
    return result


def _trainer(workload: object, request: PlainRun, result: PlainResult, output: str) -> Trainer:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from autotune.trial.training_arguments import knob_fields, set_checkpointing
    from autotune.workload.loaded import LoadedWorkload, num_rows

    assert isinstance(workload, LoadedWorkload)

    class CountingTrainer(Trainer):  # type: ignore[misc]
        def training_step(
            self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *rest: object
        ) -> torch.Tensor:
            result.attempts[-1].step_rows[-1] += num_rows(inputs)
            loss: torch.Tensor = super().training_step(model, inputs, *rest)
            return loss

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: object, state: object, control: object, **_: object) -> None:
            size = getattr(state, "train_batch_size", None)
            result.attempts.append(
                Attempt(
                    micro_batch_size=size or request.configuration.micro_batch_size,
                    start_s=time.perf_counter(),
                )
            )
            self.before_s = time.perf_counter()

        def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
            result.attempts[-1].step_rows.append(0)

        def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
            attempt, now_s = result.attempts[-1], time.perf_counter()
            attempt.step_times_s.append(now_s - self.before_s)
            self.before_s = now_s
            if sum(attempt.step_rows) >= request.num_rows:
                control.should_training_stop = True  # type: ignore[attr-defined]

    options: dict[str, object] = {
        **workload.arguments,
        **knob_fields(request.configuration),
        "auto_find_batch_size": request.find_batch_size,
        "output_dir": output,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "max_steps": 1_000_000,
    }
    trainer = CountingTrainer(
        model=workload.model,
        args=TrainingArguments(**options),
        train_dataset=workload.train_dataset,
        data_collator=workload.data_collator,
        processing_class=workload.processing_class,
        callbacks=[Watch()],
    )
    if request.repair_loss:
        trainer.model_accepts_loss_kwargs = False
    set_checkpointing(workload.model, request.configuration.checkpointing)
    return trainer


def main() -> None:
    """Answers the one request on the channel."""
    channel = Channel(int(sys.argv[1]))
    request = TypeAdapter(PlainRun).validate_json(json.dumps(channel.request))
    channel.stage("training")
    channel.result(asdict(train(request)))


if __name__ == "__main__":
    main()
