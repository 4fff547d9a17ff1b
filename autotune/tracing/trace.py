"""The whole trace of a loaded workload: training under each form, and evaluation."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from autotune.configuration import Checkpointing, Configuration
from autotune.cost.memory.trace import (
    EvaluationTrace,
    Size,
    StepTrace,
    TracedWorkload,
    TraceFacts,
    Untraced,
)
from autotune.tracing.batches import Batches, batch_bytes, longest_tokens
from autotune.tracing.depth import Fold, fold_of, folded
from autotune.tracing.evaluation import trace_evaluation
from autotune.tracing.fakes import make_fake, with_arguments
from autotune.tracing.memo import Memo
from autotune.tracing.pairing import SIZES, Mismatch
from autotune.tracing.request import TraceRequest
from autotune.tracing.steps import StepTracer
from autotune.trial.failure import describe
from autotune.trial.stepper import Stepper, make_stepper
from autotune.workload.loaded import Batch, LoadedWorkload

_LOGGER = logging.getLogger(__name__)
_VERSIONS = ("accelerate", "peft", "torch", "transformers")
_LEFT_OUT = {
    "torch_compile": "Compilation is left out; it changes what the backward pass keeps.",
    "use_liger_kernel": "Liger kernels are left out; with them, logits take less.",
}
"""Switches that cannot be traced, and what is said of them. Whatever begins by their name goes
with them, as it would switch them on again."""


def fake_mode() -> FakeTensorMode:
    """A mode for fake tensors that takes real ones beside them."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def trace(
    workload: LoadedWorkload, request: TraceRequest, scratch: Path, mode: FakeTensorMode
) -> TracedWorkload:
    """Traces a workload, whose model is not usable afterwards.

    Never raises for what cannot be traced: that stands in the result.

    Args:
        workload: Loaded, on real or on fake weights.
        request: What to trace.
        scratch: A directory for what training libraries insist on writing.
        mode: Of the fake tensors.
    """
    # What cannot be traced is told in words; the frames inside torch are of no use to anybody.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    # What is there already is not looked through again after every step.
    gc.collect()
    gc.freeze()
    try:
        return _Trace(workload, request, scratch, mode).run()
    finally:
        gc.unfreeze()


class _Trace:
    def __init__(
        self, workload: LoadedWorkload, request: TraceRequest, scratch: Path, mode: FakeTensorMode
    ) -> None:
        self._request = request
        self._scratch = scratch
        self._mode = mode
        self._memo = Memo(mode)
        self._notes: list[str] = []
        self._batches = Batches(request.is_padded)
        on_device = request.target.kind != "cpu"
        self._workload = self._on_cpu(make_fake(workload, mode, on_device=on_device))
        self._attention: set[str] = set()
        self._optimizer = workload.facts.optim
        self._weights = _formats(workload.model)

    def run(self) -> TracedWorkload:
        start_s = time.perf_counter()
        steps: list[StepTrace] = []
        untraced: list[Untraced] = []
        evaluation: EvaluationTrace | None = None
        for form in self._request.forms:
            found = self._form(form)
            if isinstance(found, Untraced):
                untraced.append(found)
            else:
                steps.append(found)
        if self._request.with_evaluation and steps:
            found_evaluation = self._evaluation()
            if isinstance(found_evaluation, Untraced):
                untraced.append(found_evaluation)
            else:
                evaluation = found_evaluation
        return TracedWorkload(
            facts=self._facts(time.perf_counter() - start_s),
            steps=tuple(steps),
            evaluation=evaluation,
            untraced=tuple(untraced),
        )

    def _on_cpu(self, workload: LoadedWorkload) -> LoadedWorkload:
        """The workload with arguments that can be followed without a device."""
        arguments = workload.arguments
        changes: dict[str, object] = {"use_cpu": True, "tf32": None, "group_by_length": None}
        if arguments.get("fp16"):
            changes |= {"fp16": None, "bf16": True}
        if self._request.target.kind == "cuda" and _has_convolutions(workload.model):
            self._notes.append(
                "What convolutions work in on the device is not counted: keep more of it free."
            )
        if workload.facts.precision == "fp16":
            self._notes.append("fp16 is traced as bf16, which takes as many bytes.")
        for name, note in _LEFT_OUT.items():
            if arguments.get(name):
                changes |= {other: None for other in arguments if other.startswith(name)}
                self._notes.append(note)
        return with_arguments(workload, **changes)

    def _form(self, form: Checkpointing) -> StepTrace | Untraced:
        if form.offload:
            return _untraced(form, "what waits in host memory is not followed")
        if (fold := self._fold(form)) is not None:
            try:
                return self._traced(form, fold)
            except Exception as error:  # noqa: BLE001  (whatever it is, it may be of the short stack)
                # Where layers turn out to be unequal, they are traced one by one.
                _LOGGER.debug("Layers are traced one by one: %s", error)
        try:
            return self._traced(form, None)
        except Exception as error:  # noqa: BLE001  (whatever the user's code raises is a reason)
            return _untraced(form, why(error))

    def _fold(self, form: Checkpointing) -> Fold | None:
        """How the model's layers are spared; an optimizer that has them already needs them all."""
        is_bound = self._workload.optimizers[0] is not None
        if is_bound or not self._request.folds_layers:
            return None
        return fold_of(self._workload.model, form)

    def _traced(self, form: Checkpointing, fold: Fold | None) -> StepTrace:
        with folded(self._workload.model, fold), self._stepper(form) as stepper:
            tracer = self._tracer(stepper, fold)
            traced = tracer.trace(form)
            self._learn(tracer)
            return traced

    def _evaluation(self) -> EvaluationTrace | Untraced:
        try:
            with self._stepper(self._request.forms[0]) as stepper:
                tracer = self._tracer(stepper)
                return trace_evaluation(tracer)
        except Exception as error:  # noqa: BLE001  (as above)
            return _untraced(None, why(error))

    def _tracer(self, stepper: Stepper, fold: Fold | None = None) -> StepTracer:
        request = self._request
        return StepTracer(stepper, self._batches, self._mode, self._memo, request.target, fold)

    @contextlib.contextmanager
    def _stepper(self, form: Checkpointing) -> Iterator[Stepper]:
        """A stepper bound to a form; the model is as before when the block is left."""
        from accelerate.state import AcceleratorState, GradientState

        model = self._workload.model
        own = dict(vars(model))
        optimizer = self._workload.optimizers[0]
        state = _state_of(optimizer)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        configuration = Configuration(
            micro_batch_size=SIZES[0], accumulation_steps=1, checkpointing=form
        )
        with tempfile.TemporaryDirectory(prefix="trace-", dir=self._scratch) as directory:
            try:
                yield make_stepper(
                    self._workload,
                    configuration,
                    driver=self._request.driver,
                    output_dir=directory,
                    repair_loss=self._request.repair_loss,
                )
            finally:
                # What wrappers have put on the model goes with the stepper.
                for name in vars(model).keys() - own.keys():
                    delattr(model, name)
                for name in ("forward", "to"):
                    if name in own:
                        setattr(model, name, own[name])
                model.zero_grad()
                if isinstance(optimizer, torch.optim.Optimizer):
                    optimizer.state.clear()
                    optimizer.state.update(state)

    def _learn(self, tracer: StepTracer) -> None:
        self._attention |= tracer.kernels
        self._optimizer = tracer.optimizer_name(self._workload.facts.optim)

    def _facts(self, seconds: float) -> TraceFacts:
        facts = self._workload.facts
        batch = self._batches.whole
        rows = self._batches.num_rows
        return TraceFacts(
            name=facts.name,
            model_class=facts.model_class,
            num_parameters=facts.num_parameters,
            num_trainable_parameters=facts.num_trainable_parameters,
            sequence_length=longest_tokens(batch),
            is_padded=bool(self._batches.is_padded) and "attention_mask" in batch,
            batch=Size(constant_bytes=0.0, bytes_per_sample=batch_bytes(batch) / max(1, rows)),
            precision=facts.precision,
            optimizer=self._optimizer,
            attention=tuple(sorted(self._attention)),
            target=self._request.target.kind,
            traced_sizes=SIZES,
            seconds=round(seconds, 3),
            notes=(*facts.notes, *self._notes, *_images(batch)),
            versions=_versions(),
            weights=self._weights,
            weights_from=facts.weights_from,
        )


def _has_convolutions(model: torch.nn.Module) -> bool:
    """Whether there are some beyond those that cut an image into pieces."""
    from torch.nn.modules.conv import _ConvNd

    return any(isinstance(m, _ConvNd) and m.kernel_size != m.stride for m in model.modules())


def _state_of(optimizer: object) -> dict[torch.Tensor, dict[str, object]]:
    """What an optimizer keeps; some cannot step without what they were made with."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {}
    return {parameter: dict(entries) for parameter, entries in optimizer.state.items()}


def _images(batch: Batch) -> list[str]:
    """What is said of the images of a batch."""
    pixels = batch.get("pixel_values")
    if pixels is None:
        return []
    sizes = " × ".join(map(str, pixels.shape[1:]))
    return [f"Images are taken to be {sizes} (channels × height × width)."]


def _formats(model: torch.nn.Module) -> str:
    """The number formats of the weights, that of most of them first."""
    found: dict[str, int] = {}
    for parameter in model.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        found[name] = found.get(name, 0) + parameter.numel()
    return " and ".join(sorted(found, key=lambda name: -found[name]))


def _untraced(form: Checkpointing | None, reason: str) -> Untraced:
    return Untraced(
        what="evaluation" if form is None else str(form), checkpointing=form, reason=reason
    )


def why(error: BaseException) -> str:
    """Why a step could not be traced, in words."""
    if isinstance(error, Mismatch):
        return f"a step does other operations at another micro-batch size: {error}"
    if isinstance(error, DynamicOutputShapeException | DataDependentOutputException):
        return (
            f"the result of {error.func} depends on values, which only a real run has, as the "
            "routing of a mixture of experts does"
        )
    if isinstance(error, ValueError | AttributeError | NotImplementedError):
        # How models say that they have no checkpointing.
        return str(error).partition("\n")[0] or type(error).__name__
    return describe(error)


def _versions() -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for name in _VERSIONS:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)
