"""Counts of steps when the global batch size changes, and what is told when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autotune.library.steps import differences, rescale
from tests.testing import live
from tests.testing.recommendations import configuration


def test_the_same_global_batch_size_leaves_every_count_alone(tmp_path: Path) -> None:
    arguments = live.arguments(tmp_path, max_steps=12, warmup_steps=3, eval_steps=4, save_steps=8)
    assert list(rescale(arguments, 8, 8)) == []
    assert (arguments.max_steps, arguments.warmup_steps) == (12, 3)


@pytest.mark.parametrize(
    ("after", "expected"),
    [(4, (24, 6, 8, 16)), (16, (6, 2, 2, 4)), (32, (3, 1, 1, 2)), (1, (96, 24, 32, 64))],
)
def test_counts_stand_for_the_same_number_of_rows(
    after: int, expected: tuple[int, ...], tmp_path: Path
) -> None:
    arguments = live.arguments(
        tmp_path,
        max_steps=12,
        warmup_steps=3,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=8,
        save_strategy="steps",
        logging_strategy="no",
    )
    told = list(rescale(arguments, 8, after))
    found = [
        getattr(arguments, n) for n in ("max_steps", "warmup_steps", "eval_steps", "save_steps")
    ]
    assert tuple(found) == expected
    assert any(text.startswith("max_steps is") for text in told)


def test_fractions_of_a_run_and_absent_counts_stay(tmp_path: Path) -> None:
    arguments = live.arguments(tmp_path, save_steps=0.25, max_steps=-1)
    told = list(rescale(arguments, 8, 4))
    assert arguments.save_steps == 0.25
    assert arguments.max_steps == -1
    assert not any("save_steps" in text or "max_steps" in text for text in told)


def test_saving_stays_a_multiple_of_evaluating(tmp_path: Path) -> None:
    arguments = live.arguments(
        tmp_path,
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=3,
        save_steps=9,
        load_best_model_at_end=True,
    )
    list(rescale(arguments, 8, 32))
    assert (arguments.eval_steps, arguments.save_steps) == (1, 2)
    assert arguments.save_steps % arguments.eval_steps == 0


def test_a_new_global_batch_size_is_told(tmp_path: Path) -> None:
    trainer = live.trainer(tmp_path)
    told = list(differences(trainer, configuration(2, 2), configuration(4, 4)))
    assert len(told) == 1
    assert "global batch size is 16 instead of 4" in told[0]


def test_a_schedule_of_the_users_own_is_told(tmp_path: Path) -> None:
    model = live.gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    trainer = live.trainer(tmp_path, model=model, options={"optimizers": (optimizer, schedule)})
    told = list(differences(trainer, configuration(2, 2), configuration(4, 4)))
    assert any("counts its own steps" in text for text in told)


@pytest.mark.parametrize(
    ("num_rows", "after", "says"),
    [
        (36, configuration(1, 4), None),
        # 2×2 drops the last row of 33 and steps 8 times; 1×4 keeps it for a ninth step.
        (33, configuration(1, 4), "9 optimizer steps instead of 8"),
        (33, configuration(4, 1), None),
    ],
)
def test_dropped_rows_change_the_steps_of_an_epoch(
    num_rows: int, after: object, says: str | None, tmp_path: Path
) -> None:
    trainer = live.trainer(tmp_path, train_dataset=live.Tokens(num_rows), dataloader_drop_last=True)
    told = list(differences(trainer, configuration(2, 2), after))  # type: ignore[arg-type]
    assert told == [] if says is None else says in told[0]
