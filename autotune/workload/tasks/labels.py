"""Which classes a column holds, and which number each one gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from autotune.errors import WorkloadError
from autotune.workload.data import PEEK_ROWS

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from autotune.workload.data import AnyDataset

Value: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes in order: the number of a class is its place."""

    values: tuple[Value, ...]
    """As they stand in the rows."""
    names: tuple[str, ...]

    def numbers(self, labels: Sequence[object]) -> list[int]:
        """The number of the class of every label.

        Raises:
            WorkloadError: A label that is none of the classes.
        """
        ids: dict[object, int] = {value: number for number, value in enumerate(self.values)}
        unknown = next((label for label in labels if label not in ids), None)
        if unknown is not None:
            raise WorkloadError(
                f"The label {unknown!r} is none of the {len(ids)} classes "
                f"({', '.join(self.names[:5])}{', …' if len(ids) > 5 else ''}).",
                "Leave out rows without a class; in a stream, every class must occur in the first "
                f"{PEEK_ROWS} rows.",
            )
        return [ids[label] for label in labels]

    def configure(self, config: PretrainedConfig) -> None:
        """Writes number and names of the classes into a model's config."""
        config.id2label = dict(enumerate(self.names))
        config.label2id = {name: number for number, name in enumerate(self.names)}


def declared_names(dataset: AnyDataset, column: str) -> tuple[str, ...] | None:
    """The names of a `ClassLabel` column, or of a column of lists of them."""
    feature = (dataset.features or {}).get(column)
    feature = getattr(feature, "feature", feature)
    names = getattr(feature, "names", None)
    return tuple(names) if names else None


def classes_of(values: Iterable[object], names: tuple[str, ...] | None, column: str) -> Classes:
    """The classes among `values`.

    Args:
        values: Every label of the data, without nulls.
        names: Names that the dataset itself declares (`ClassLabel`); its values are then their
            numbers. None: the distinct values, sorted.
        column: For messages.

    Raises:
        WorkloadError: The values are no classes, or there is only one.
    """
    if names is not None:
        return Classes(values=tuple(range(len(names))), names=names)
    distinct = set()
    for value in values:
        if not isinstance(value, (str, int, float)):
            raise WorkloadError(
                f"The label column {column!r} holds {type(value).__name__} values, not classes.",
                "Name a column with one text or whole number a sample with --label-column.",
            )
        if isinstance(value, float) and not value.is_integer():
            raise WorkloadError(
                f"The label column {column!r} holds decimal numbers such as {value}; classes are "
                "whole numbers or texts.",
                "Name another column with --label-column; regression is not covered.",
            )
        distinct.add(value)
    if len({isinstance(value, str) for value in distinct}) > 1:
        raise WorkloadError(
            f"The label column {column!r} mixes texts and numbers.",
            "Write every class the same way.",
        )
    if len(distinct) < 2:
        only = next(iter(distinct), None)
        raise WorkloadError(
            f"The label column {column!r} holds one class only ({only!r}), so that there is "
            "nothing to learn.",
            "Name another column with --label-column, or give data with two classes.",
        )
    ordered = tuple(sorted(distinct))
    return Classes(values=ordered, names=tuple(str(value) for value in ordered))
