"""Reads the rows of a workload through `datasets`, and writes nothing beside the user's files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from autotune.errors import WorkloadError
from autotune.workload.columns import TASK_ROLES, Role
from autotune.workload.faults import explain
from autotune.workload.source import Source, source_of
from autotune.workload.spec import Columns, WorkloadSpec

if TYPE_CHECKING:
    import datasets

    AnyDataset: TypeAlias = datasets.Dataset | datasets.IterableDataset

PEEK_ROWS = 1000
"""Rows of a stream that are looked at where a map-style dataset is looked through."""


def open_dataset(spec: WorkloadSpec, scratch: Path) -> AnyDataset:
    """The raw rows of `spec`, as the user has them.

    What `datasets` makes of local files is kept below `scratch`; a dataset from the hub stays in
    the cache that the user has declared for it.

    Raises:
        WorkloadError: It is not there, cannot be read, or is empty.
    """
    source = source_of(spec)
    try:
        dataset = _load(source, spec, scratch)
        is_empty = next(iter(peek(dataset)), None) is None if spec.streaming else not len(dataset)
    except (WorkloadError, MemoryError):
        raise
    except Exception as error:
        raise explain(error, spec, source) from error
    if is_empty:
        raise WorkloadError(
            f"The dataset {spec.dataset} has no rows in split {spec.split!r}.",
            "Give a dataset with training samples.",
        )
    return dataset


def _load(source: Source, spec: WorkloadSpec, scratch: Path) -> AnyDataset:
    import datasets

    if source.kind == "load_from_disk":
        loaded = datasets.load_from_disk(source.path)
        if source.split is not None:
            if source.split not in loaded:
                raise WorkloadError(
                    f"The dataset {source.path} has no split {source.split!r}.",
                    f"Choose one with --split: {', '.join(loaded)}.",
                )
            loaded = loaded[source.split]
        return loaded.to_iterable_dataset() if spec.streaming else loaded
    place = None if source.is_hub else str(scratch / "datasets")
    return datasets.load_dataset(
        source.path, streaming=spec.streaming, cache_dir=place, **source.options
    )


def column_names(dataset: AnyDataset) -> list[str]:
    """The names of the columns; of a stream that does not know them, those of its first row."""
    return list(dataset.column_names or next(iter(dataset), ()))


def peek(dataset: datasets.IterableDataset) -> list[dict[str, object]]:
    """The first rows of a stream, never all of a long one."""
    return list(islice(dataset, PEEK_ROWS))


def drop_blank(
    dataset: AnyDataset, columns: Columns, spec: WorkloadSpec, notes: list[str]
) -> AnyDataset:
    """Leaves out the rows in which a column that the task reads is null or blank.

    Raises:
        WorkloadError: No row is left, or a column of texts holds something else.
    """
    names = []
    for role in TASK_ROLES[spec.task]:
        name = getattr(columns, role.field)
        if name is not None:
            names.append(name)
            if role.is_text:
                _check_texts(dataset, name, role)
    if spec.streaming:
        return dataset.filter(lambda row: not any(is_blank(row[name]) for name in names))
    blank = {
        name: {i for i, value in enumerate(dataset[name]) if is_blank(value)} for name in names
    }
    dropped = set().union(*blank.values())
    if not dropped:
        return dataset
    where = ", ".join(f"{len(rows)} in {name!r}" for name, rows in blank.items() if rows)
    if len(dropped) == len(dataset):
        raise WorkloadError(
            f"Every row of the dataset is null or blank in a column that is read ({where}).",
            "Name columns that are filled.",
        )
    notes.append(
        f"{len(dropped)} of {len(dataset)} rows are left out, since a column that is read is null "
        f"or blank there ({where})."
    )
    return dataset.select([i for i in range(len(dataset)) if i not in dropped])


def _check_texts(dataset: AnyDataset, name: str, role: Role) -> None:
    value = next((v for v in column_values(dataset, name) if v is not None), "")
    if not isinstance(value, str):
        raise WorkloadError(
            f"Column {name!r} is read as {role.meaning}, but holds {type(value).__name__} values.",
            f"Name a column of texts with {role.flag}.",
        )


def is_blank(value: object) -> bool:
    """Whether a value is missing, an empty list, or a text of white space only."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value == []


def column_values(dataset: AnyDataset, name: str) -> Iterator[object]:
    """The values of a column; of a stream, those of its first rows."""
    if hasattr(dataset, "__len__"):
        yield from dataset[name]
    else:
        yield from (row[name] for row in peek(dataset))
