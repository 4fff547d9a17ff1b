"""Loads a declarative workload in a child process: model, data and training choices."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload import data
from autotune.workload import model as models
from autotune.workload.columns import choose
from autotune.workload.data import drop_blank, open_dataset
from autotune.workload.digest import workload_digest
from autotune.workload.facts import WorkloadFacts
from autotune.workload.loaded import TASK_LOSS_ITEMS, LoadedWorkload
from autotune.workload.lora import add_adapters, check_installed
from autotune.workload.options import hyperparameters_of, training_options
from autotune.workload.resolve import resolve_spec
from autotune.workload.rows import MapRows, Rows, StreamRows, field_lengths, row_tokens
from autotune.workload.spec import Capsule, Workload, WorkloadSpec
from autotune.workload.tasks import recipe_class
from autotune.workload.tasks.recipe import Recipe
from autotune.workload.tokenizer import load_tokenizer
from autotune.workload.translate import foreign_errors

if TYPE_CHECKING:
    import datasets

    from autotune.workload.data import AnyDataset


def load(
    workload: Workload, scratch: Path, working_directory: Path, *, trains_here: bool = True
) -> LoadedWorkload:
    """The workload, ready to be trained on; runs no forward or backward pass.

    Args:
        workload: What to load; it is resolved first.
        scratch: A directory of the run for prepared data. What stands there is used again.
        working_directory: What relative paths are relative to.
        trains_here: Whether this machine trains; a device that is not here may do more.

    Raises:
        UsageError: A choice that cannot be followed here, such as an unknown optimizer.
        WorkloadError: The model, the data or a column is missing or does not fit the task.
    """
    if isinstance(workload, Capsule):
        from autotune.workload.live.unpack import unpack

        be_quiet()
        return unpack(workload, scratch)
    spec = resolve_spec(workload, scratch, working_directory)
    if spec.lora is not None:
        check_installed()
    optim, arguments = training_options(spec, trains_here=trains_here)
    be_quiet()
    notes: list[str] = []
    digest = workload_digest(spec)

    raw = open_dataset(spec, scratch)
    names = data.column_names(raw)
    columns = choose(spec.columns, spec.task, names)
    raw = drop_blank(raw, columns, spec, notes)
    config = models.load_config(spec)
    if not trains_here:
        models.take_own_attention(config, notes)
    tokenizer = load_tokenizer(spec, notes)
    recipe = recipe_class(spec.task)(columns=columns, tokenizer=tokenizer, packing=spec.packing)
    recipe.learn_labels(raw)
    recipe.configure(config)
    _, weights_from = models.weights_dtype(spec, config)
    model = models.build_model(spec, config, recipe.auto_model, notes)
    models.check_vocabulary(model, tokenizer, spec.model or spec.model_config or "")
    if getattr(model.config, "pad_token_id", None) is None or spec.pad_token is not None:
        model.config.pad_token_id = tokenizer.pad_token_id

    tokenizer.model_input_names = models.accepted(model, tokenizer.model_input_names)
    max_length = models.chosen_max_length(
        spec, model, recipe.usual_max_length, tokenizer.model_max_length, notes
    )
    dataset, rows = _prepare(
        raw, names, recipe, max_length, spec, scratch / f"rows-{digest[:16]}.arrow", notes
    )
    collator = recipe.collator(model)
    if spec.lora is not None:
        model = add_adapters(model, spec.lora, recipe.peft_task)
    chosen = replace(spec, columns=columns, max_length=max_length, optim=optim)
    return LoadedWorkload(
        facts=WorkloadFacts(
            name=spec.name,
            task=spec.task,
            model_class=type(model).__name__,
            num_parameters=sum(p.numel() for p in model.parameters()),
            num_trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
            parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
            num_rows=rows.num_rows,
            tokens_median=rows.tokens_median,
            tokens_max=rows.tokens_max,
            precision=spec.precision,
            optim=optim,
            hyperparameters=hyperparameters_of(arguments),
            has_batch_norm=models.has_batch_norm(model),
            batch_dependent_loss=models.batch_dependent_loss(model),
            notes=tuple(notes),
            versions=versions(spec),
            weights_from=weights_from,
            digest=digest,
            chosen=chosen,
        ),
        model=model,
        train_dataset=dataset,
        data_collator=collator,
        processing_class=tokenizer,
        arguments=arguments,
        loss_items=TASK_LOSS_ITEMS[spec.task],
        longest_rows=rows.longest,
        typical_rows=rows.typical,
        count_tokens=recipe.count_tokens,
    )


def _prepare(
    raw: AnyDataset,
    names: list[str],
    recipe: Recipe,
    max_length: int,
    spec: WorkloadSpec,
    file: Path,
    notes: list[str],
) -> tuple[AnyDataset, Rows]:
    """The training samples, and the chooser among them."""
    options = {
        "batched": True,
        "remove_columns": names,
        "fn_kwargs": {"max_length": max_length},
    }
    with foreign_errors(
        "The data", doing="turned into tokens", remedy="Check the columns and --max-length."
    ):
        if spec.streaming:
            return _prepare_stream(raw.map(recipe.tokenise, **options), recipe, max_length, notes)
        dataset = raw.map(
            recipe.tokenise,
            cache_file_name=str(file),
            # Spares `datasets` the hashing of the tokenizer; the file name tells what it holds.
            new_fingerprint=file.stem,
            **options,
        )
    by_field = field_lengths(dataset, recipe.length_fields)
    lengths = [sum(row) for row in by_field]
    keep = [i for i, length in enumerate(lengths) if length >= recipe.least_tokens]
    if not keep:
        raise _no_samples(recipe, max_length)
    num_reaching = sum(max(row) >= max_length for row in by_field)
    if num_reaching and not recipe.packing:
        notes.append(
            f"{num_reaching} of {len(lengths)} rows reach the maximum length of {max_length} "
            "tokens; what is longer is cut."
        )
    if len(keep) < len(lengths):
        notes.append(
            f"{len(lengths) - len(keep)} of {len(lengths)} rows are left out, since they have "
            f"fewer than {recipe.least_tokens} tokens."
        )
        dataset, by_field = dataset.select(keep), [by_field[i] for i in keep]
    return dataset, MapRows(dataset=dataset, by_field=by_field, seed=spec.seed)


def _prepare_stream(
    stream: datasets.IterableDataset, recipe: Recipe, max_length: int, notes: list[str]
) -> tuple[datasets.IterableDataset, Rows]:
    if recipe.least_tokens > 1:
        stream = stream.filter(
            lambda row: row_tokens(row, recipe.length_fields) >= recipe.least_tokens
        )
    rows = StreamRows(dataset=stream, length_fields=recipe.length_fields)
    if not rows.tokens_max:
        raise _no_samples(recipe, max_length)
    notes.append(
        "The longest sample of a stream is not known: memory is measured with the longest of the "
        f"first {data.PEEK_ROWS} rows ({rows.tokens_max} tokens); later ones may have up to "
        f"{max_length} tokens."
    )
    return stream, rows


def _no_samples(recipe: Recipe, max_length: int) -> WorkloadError:
    if recipe.packing:
        return WorkloadError(
            f"The data is too short for a single block of {max_length} tokens.",
            "Give more data, or a smaller --max-length.",
        )
    return WorkloadError(
        "The data yields no training sample: every row is blank or too short.",
        "Give longer texts.",
    )


def versions(spec: WorkloadSpec) -> tuple[tuple[str, str], ...]:
    """Names and versions of the libraries that train."""
    names = ["accelerate", "datasets", "tokenizers", "torch", "transformers"]
    if spec.lora is not None:
        names.append("peft")
    return tuple((name, importlib.metadata.version(name)) for name in sorted(names))


def be_quiet() -> None:
    """Switches progress bars of the libraries off."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
