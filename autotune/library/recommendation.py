"""What a library call returns: the answer of a run, and the ways to put it in force."""

from __future__ import annotations

import copy
import json
import os
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from autotune.configuration import Configuration
from autotune.errors import ExportError, JournalError, UsageError
from autotune.events import Document
from autotune.export import document as documents
from autotune.export.document import RecommendationDocument
from autotune.library import html
from autotune.library.checks import path_of
from autotune.library.words import in_library_words
from autotune.run_directory import RunDirectory
from autotune.units import format_bytes, format_change, format_rate

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.nn import Module
    from transformers import Trainer, TrainingArguments

    from autotune.runtime.fused import FusedLocalSGD


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A configuration that was proven on this machine, with its evidence.

    Example:
        >>> recommendation = autotune.load(path_to_recommendation)
        >>> recommendation.configuration.micro_batch_size
        16
        >>> print(recommendation.summary)
        16×1: +50 % samples/s against 8×2 (95 %: +45 % to +55 %), peak 1.00 GiB of 4.00 GiB
    """

    document: Document
    """The public document, as `recommendation.json` holds it."""
    configuration: Configuration
    """The one that the methods put in force: the recommended one, or an alternative."""
    run: Path | None = field(default=None, compare=False)
    """The run's directory, where it is at hand."""
    _arguments: TrainingArguments | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Recommendation {self.summary}>"

    @classmethod
    def of(
        cls,
        document: Document,
        *,
        run: Path | None = None,
        arguments: TrainingArguments | None = None,
    ) -> Recommendation:
        """The recommendation that a public document holds.

        Args:
            document: As `recommendation.json` holds it.
            run: Directory of the run.
            arguments: The job's own arguments, which `training_arguments` starts from.

        Raises:
            JournalError: The document is not of the public shape.

        Example:
            >>> autotune.Recommendation.of(recommendation.document) == recommendation
            True
        """
        try:
            read = documents.read(document)
        except ValidationError as error:
            fault = error.errors()[0]
            raise JournalError(
                f"This is no recommendation: {'.'.join(map(str, fault['loc']))}: {fault['msg']}.",
                "Give a recommendation.json that autotune wrote.",
            ) from error
        return cls(
            document=document,
            configuration=read.recommendation.configuration,
            run=run,
            _arguments=arguments,
        )

    @property
    def evidence(self) -> RecommendationDocument:
        """The document with its fields as attributes.

        Example:
            >>> recommendation.evidence.recommendation.speedup.value
            1.5
        """
        return documents.read(self.document)

    @property
    def baseline(self) -> Configuration:
        """The configuration that the job came with.

        Example:
            >>> recommendation.baseline.accumulation_steps
            2
        """
        return self.evidence.recommendation.baseline.configuration

    @property
    def _repairs_loss(self) -> bool:
        job = self.evidence.workload
        return job is not None and job.loss_repair

    @property
    def _precision(self) -> str:
        job = self.evidence.workload
        return job.precision if job is not None else "fp32"

    @property
    def is_change(self) -> bool:
        """Whether there is anything to change.

        Example:
            >>> recommendation.is_change
            True
        """
        return self.configuration != self.baseline

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this configuration, in whole sentences.

        Example:
            >>> recommendation.reasons[0]
            'It is faster.'
        """
        return self.evidence.recommendation.reasons

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The kinds of alternatives that `alternative` takes.

        Example:
            >>> recommendation.alternatives
            ('least memory',)
        """
        return tuple(other.kind for other in self.evidence.recommendation.alternatives)

    @property
    def summary(self) -> str:
        """The answer in one line.

        Example:
            >>> recommendation.alternative("least memory").summary
            '4×4: 120 samples/s, peak 512 MiB of 4.00 GiB'
        """
        answer = self.evidence.recommendation
        readings = next(
            (c for c in (answer, *answer.alternatives) if c.configuration == self.configuration),
            answer,
        ).measured
        memory = (
            f"peak {format_bytes(readings.memory.total_bytes)} of "
            f"{format_bytes(answer.memory_limit_bytes)}"
        )
        if not self.is_change:
            told = (
                "nothing proved better than what you have"
                if any(trial.purpose == "search" for trial in self.evidence.trials)
                else "nothing but what you have was tried"
            )
            return (
                f"{self.configuration}: {told}, "
                f"{format_rate(readings.samples_per_s)} samples/s, {memory}"
            )
        if self.configuration == answer.configuration and answer.speedup is not None:
            low, high = answer.speedup.ci95
            return (
                f"{self.configuration}: {format_change(answer.speedup.value)} samples/s against "
                f"{self.baseline} (95 %: {format_change(low)} to {format_change(high)}), {memory}"
            )
        return f"{self.configuration}: {format_rate(readings.samples_per_s)} samples/s, {memory}"

    def alternative(self, kind: str) -> Recommendation:
        """The same evidence with another of its configurations in force.

        Args:
            kind: One of `alternatives`.

        Raises:
            UsageError: There is no such alternative.

        Example:
            >>> recommendation.alternative("least memory").configuration.micro_batch_size
            4
        """
        for other in self.evidence.recommendation.alternatives:
            if other.kind == kind:
                return replace(self, configuration=other.configuration)
        known = ", ".join(repr(name) for name in self.alternatives) or "none"
        raise UsageError(f"There is no alternative {kind!r}.", f"There are: {known}.")

    def apply(self, trainer: Trainer) -> None:
        """Puts the configuration in force on a Trainer, for its next `train()`.

        Sets its arguments and what it fixed when it was made, switches checkpointing on or off on
        the model, attaches a `LocalSGDCallback` where ranks are to average and takes off one where
        they are not, and mends the loss where it would be multiplied by the accumulation steps.
        Counts of steps are made anew where the global batch size changes; what is changed beside
        the knobs is told by a warning.

        Args:
            trainer: Changed in place.

        Raises:
            UsageError: It trains right now, trains on another global batch size than the job
                that was tuned, or the configuration cannot hold on it.

        Example:
            >>> recommendation.apply(trainer)
            >>> trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps
            (16, 1)
        """
        from autotune.library.apply import apply

        job = self.evidence.workload
        apply(
            trainer,
            self.configuration,
            repair_loss=self._repairs_loss,
            baseline=self.baseline,
            find_unused=job is not None and job.has_unused_parameters,
        )

    def training_arguments(
        self, arguments: TrainingArguments | None = None, **changes: object
    ) -> TrainingArguments:
        """Arguments with the configuration in force.

        Args:
            arguments: What to start from, left as it is; None is those of the job that was tuned,
                or the defaults where it had none.
            **changes: Further fields of TrainingArguments, such as `output_dir`.

        Raises:
            UsageError: There is no such field.

        Example:
            >>> arguments = recommendation.training_arguments(output_dir="out")
            >>> arguments.per_device_train_batch_size, arguments.output_dir
            (16, 'out')
        """
        from autotune.library.apply import remade

        if self._repairs_loss and self.configuration.accumulation_steps > 1:
            warnings.warn(
                "autotune: with these arguments alone, this model's loss is multiplied by the "
                "accumulation steps; use recommendation.apply(trainer), or set "
                "trainer.model_accepts_loss_kwargs = False.",
                stacklevel=2,
            )
        return remade(
            arguments or self._arguments,
            self.configuration,
            precision=self._precision,
            changes=changes,
        )

    def accelerator(self, **options: object) -> Accelerator:
        """An Accelerator with the configuration's accumulation and the job's precision.

        Micro-batch size and checkpointing are set where data loader and model are made. Where
        several ranks train on CPUs, Accelerate is told so; it would take each for one alone.

        Args:
            **options: Further arguments of `Accelerator`, which win over ours.

        Example:
            >>> recommendation.accelerator(cpu=True).gradient_accumulation_steps
            1
        """
        import torch
        from accelerate import Accelerator

        values: dict[str, object] = {
            "gradient_accumulation_steps": self.configuration.accumulation_steps,
            "mixed_precision": "no" if self._precision == "fp32" else self._precision,
        }
        if self.configuration.world_size > 1 and not torch.accelerator.is_available():
            values["cpu"] = True
        values |= options
        return Accelerator(**values)

    def local_sgd(self, accelerator: Accelerator, model: Module) -> FusedLocalSGD:
        """The block in which ranks train by themselves and average, if the configuration says so.

        Its unit are optimizer steps: call `step()` of what it yields after each of them, and not
        after every micro-batch. With plain data parallel training it does nothing.

        Args:
            accelerator: Of the job.
            model: As `accelerator.prepare` returned it.

        Raises:
            UsageError: Ranks cannot train by themselves; see `FusedLocalSGD`.

        Example:
            >>> accelerator = recommendation.accelerator(cpu=True)
            >>> model = accelerator.prepare(trainer.model)
            >>> with recommendation.local_sgd(accelerator, model) as local_sgd:
            ...     for batch in trainer.get_train_dataloader():
            ...         with accelerator.accumulate(model):
            ...             accelerator.backward(model(**batch).loss)
            ...             if accelerator.sync_gradients:
            ...                 local_sgd.step()
        """
        from autotune.runtime.fused import FusedLocalSGD

        steps = self.configuration.local_sgd_steps
        return FusedLocalSGD(accelerator, model, local_sgd_steps=steps, enabled=steps > 1)

    def export(self, directory: str | PathLike[str], *, force: bool = False) -> tuple[Path, ...]:
        """Writes every file, each read back by its consumer before it is put in place.

        Args:
            directory: Where they go; made if it is not there.
            force: Replace files of another content.

        Returns:
            Where the files are.

        Raises:
            ExportError: The run is not at hand, the directory holds something else, or a consumer
                does not accept its file.

        Example:
            >>> recommendation.export("out")
            Traceback (most recent call last):
            ...
            autotune.errors.ExportError: The run 'sample' is not at hand. Export it where it is: ...
        """
        from autotune.delivery import export_run

        place = path_of("directory", directory)
        if self.run is None:
            name = self.evidence.run
            words = ["autotune", "export", name, "--out", str(place)]
            raise ExportError(
                f"The run {name!r} is not at hand.",
                f"Export it where it is: {shlex.join(words)}.",
            )
        kinds = [
            other.kind
            for other in self.evidence.recommendation.alternatives
            if other.configuration == self.configuration
        ]
        is_recommended = self.configuration == self.evidence.recommendation.configuration
        with in_library_words():
            files = export_run(
                RunDirectory(self.run),
                place,
                alternative=None if is_recommended else kinds[0],
                force=force,
            )
        return tuple(place / file.name for file in files)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes `recommendation.json`, which `autotune.load` reads.

        Raises:
            UsageError: It cannot be written there.

        Example:
            >>> recommendation.save("recommendation.json")
            >>> autotune.load("recommendation.json") == recommendation
            True
        """
        place = path_of("path", path)
        try:
            place.write_text(documents.as_json(self.document), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{place} cannot be written: {error.strerror}.", "Choose another file."
            ) from error

    def __str__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        return html.table(self.evidence, self.configuration, self.summary)


def load(path: str | PathLike[str]) -> Recommendation:
    """Reads a `recommendation.json`.

    Args:
        path: The file, or a directory of exported files.

    Raises:
        UsageError: There is no such file.
        JournalError: It is no recommendation.

    Example:
        >>> autotune.load(path_to_recommendation).configuration.global_batch_size
        16
    """
    place = path_of("path", path).absolute()
    if os.path.isdir(place):
        place = place / "recommendation.json"
    try:
        document = json.loads(place.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{place} cannot be read: {error.strerror}.", "Give a recommendation.json."
        ) from error
    except ValueError as error:
        raise JournalError(f"{place} is not JSON: {error}.", "Export the run again.") from error
    if not isinstance(document, Mapping):
        raise JournalError(f"{place} holds no recommendation.", "Export the run again.")
    run = place.absolute().parent.parent
    is_its_run = os.path.isfile(run / "request.json") and run.name == document.get("run")
    return Recommendation.of(copy.copy(dict(document)), run=run if is_its_run else None)
