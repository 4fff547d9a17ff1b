"""Which rows of a live data set are the longest."""

from __future__ import annotations

import datasets
import numpy
import pytest
import torch

from autotune.errors import WorkloadError
from autotune.workload.live import rows
from tests.testing import live


def test_tokens_of_a_map_style_data_set() -> None:
    data = live.Tokens(16)
    found = rows.look_at(data, range(16))
    assert (found.num_rows, found.tokens_max, found.tokens_median) == (16, 16, 6)
    assert found.note is None
    assert [len(row["input_ids"]) for row in found.longest(3)] == [16, 16, 12]  # type: ignore[arg-type]
    assert found.typical(2) == [data[0], data[1]]


def test_the_order_is_that_of_the_sampler() -> None:
    data = live.Tokens(8)
    found = rows.look_at(data, [5, 2, 7, 0, 1, 3, 4, 6])
    assert found.typical(3) == [data[5], data[2], data[7]]
    assert found.typical(9)[8] == data[5], "it starts over where there are fewer"


def test_columns_of_tokens_are_read_without_making_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = datasets.Dataset.from_list([{"input_ids": [1] * n, "other": "x"} for n in (2, 9, 4)])
    monkeypatch.setattr(rows, "row_size", lambda row: pytest.fail("a row was made"))
    assert rows.look_at(data, range(3)).sizes == [2, 9, 4]


def test_rows_that_are_made_on_the_fly_are_looked_at_one_by_one() -> None:
    data = datasets.Dataset.from_list([{"input_ids": [0], "text": "a" * n} for n in (2, 9, 4)])
    data.set_transform(lambda batch: {"input_ids": [list(text) for text in batch["text"]]})
    assert rows.look_at(data, range(3)).sizes == [2, 9, 4]


def test_a_slow_data_set_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SCAN_S", -1.0)
    found = rows.look_at(live.Tokens(16), range(16))
    assert len(found.sizes) == 1
    assert "longest of 1 rows, out of 16" in (found.note or "")


def test_a_stream_is_known_by_its_first_rows() -> None:
    found = rows.look_at(live.TokenStream(16), None)
    assert (found.num_rows, found.tokens_max) == (None, 16)
    assert "stream" in (found.note or "")
    assert len(found.longest(1)[0]["input_ids"]) == 16  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [[], None])
def test_data_without_rows_is_an_error(order: list[int] | None) -> None:
    with pytest.raises(WorkloadError, match="no row"):
        rows.look_at(live.Tokens(0) if order is not None else live.TokenStream(0), order)


@pytest.mark.parametrize(
    ("row", "size"),
    [
        ({"input_ids": [1, 2, 3], "more": [0] * 50}, 3),
        ({"input_ids": torch.zeros(7)}, 7),
        ({"pixels": numpy.zeros((3, 4, 4)), "label": 1}, 49),
        ({"text": "four", "label": 0}, 5),
        ((torch.zeros(2, 3), 1), 7),
        ([[1, 2], [3]], 3),
        ({"nested": {"a": "xy"}}, 2),
        ("text", 4),
    ],
)
def test_sizes_of_rows(row: object, size: int) -> None:
    assert rows.row_size(row) == size


def test_tokens_of_a_batch() -> None:
    batch = live.pad([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])
    assert rows.count_tokens(batch) == 4
    del batch["attention_mask"]
    assert rows.count_tokens(batch) == 6
    assert rows.count_tokens({"pixels": torch.zeros(2, 2)}) == 0


def test_the_order_that_a_loader_draws() -> None:
    data = live.Tokens(6)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=[5, 4, 3, 2, 1, 0])
    assert list(rows.order_of(loader, data) or ()) == [5, 4, 3, 2, 1, 0]
    assert (
        rows.order_of(torch.utils.data.DataLoader(live.TokenStream()), live.TokenStream()) is None
    )


@pytest.mark.parametrize("is_table", [True, False])
def test_a_text_and_its_target_may_be_longest_in_two_rows(is_table: bool) -> None:
    lengths = [(5, 5), (9, 1), (1, 8), (5, 4)]
    data = [{"input_ids": [1] * text, "labels": [1] * target} for text, target in lengths]
    found = rows.look_at(datasets.Dataset.from_list(data) if is_table else data, range(4))
    assert [found.places[0], *found.sizes] == [0, 5, 9, 1, 5]  # type: ignore[index]
    assert [len(row["labels"]) for row in found.longest(2)] == [1, 8]  # type: ignore[arg-type]
    assert [len(row["labels"]) for row in found.longest(1)] == [5]  # type: ignore[arg-type]
