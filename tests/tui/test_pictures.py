"""Pictures in characters: they fit, and every point is where it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.folding import fold
from autotune.view import RunView
from tests.testing import runs
from tests.tui import answers, stories
from tui.pictures import best_so_far, heat_map, legend, memory_speed
from tui.pictures.axes import ticks
from tui.pictures.bars import bar, sparkline

GIB = stories.GIB


@pytest.fixture(scope="module")
def view() -> RunView:
    return fold(stories.records(stories.searching()))


def plain(lines: list[object]) -> list[str]:
    return [getattr(line, "plain", "") for line in lines]


@pytest.mark.parametrize(("width", "height"), [(78, 10), (98, 8), (58, 6), (136, 14)])
def test_pictures_are_no_larger_than_their_place(view: RunView, width: int, height: int) -> None:
    for draw in (memory_speed.draw, best_so_far.draw, heat_map.draw):
        for known in (view, RunView()):
            lines = plain([*draw(known, width, height)])
            assert 0 < len(lines) <= height
            assert max(map(len, lines)) <= width


def test_the_front_is_what_nothing_beats_in_both(view: RunView) -> None:
    measured = memory_speed.points(view)
    assert [point.number for point in memory_speed.front(measured)] == [0, 1, 2]


def test_speed_against_memory_names_every_trial(view: RunView) -> None:
    lines = plain([*memory_speed.draw(view, 98, 10)])
    text = "\n".join(lines)
    for point in ("★2", "●1", "●0", "○4", "○5", "▲3"):
        assert point in text, point
    row = {
        point: next(i for i, line in enumerate(lines) if point in line) for point in ("★2", "●0")
    }
    assert row["★2"] < row["●0"]
    assert lines[row["★2"]].index("★2") > lines[row["●0"]].index("●0")
    assert "1 GiB" in text
    assert "limit" in text


def test_best_so_far_rises_and_counts_trials_without_gain(view: RunView) -> None:
    assert best_so_far.rates(view) == [25.0, 40.2, *[41.8] * 7]
    spark, note = best_so_far.one_line(view, 60)
    assert spark == "▁▇███████"
    assert note == "  no gain for 6 trials"
    assert best_so_far.one_line(RunView(), 60) == ("", "nothing measured yet")
    assert plain([*best_so_far.draw(view, 78, 10)])[-1] == (
        "━ best rate by trial, samples/s  ╌ baseline  +67 % vs baseline"
    )


def cells(view: RunView) -> dict[tuple[str, str], str]:
    """The text of every square by row and column."""
    head, *rows = plain([*heat_map.draw(view, 98, 10)])
    sizes = head.split()[1:]
    found = {}
    for row in rows:
        name, rest = row[:11].strip(), row[11:]
        if not name.startswith(("no ckpt", "ckpt")):
            break
        for place, size in enumerate(sizes):
            found[name, size] = rest[9 * place : 9 * place + 9].strip()
    return found


def test_the_heat_map_tells_measured_predicted_and_unknown_apart(view: RunView) -> None:
    plain_map = cells(view)
    assert plain_map["no ckpt", "32"] == "★41.8"
    assert plain_map["no ckpt", "64"] == "▲"
    assert plain_map["ckpt every", "64"] == "30.9"
    assert plain_map["ckpt every", "32"] == ""
    assert "· fit unknown before a trial" in plain([*heat_map.draw(view, 98, 10)])[-1]
    assert view.space is not None
    predicted = tuple(
        dict(candidate) | {"predicted": {"total_bytes": 3 * GIB}}
        for candidate in view.space.candidates
    )
    told = replace(view, space=replace(view.space, candidates=predicted), trials=view.trials[:1])
    with_predictions = cells(told)
    assert with_predictions["no ckpt", "8"] == "25.0"
    assert with_predictions["no ckpt", "16"] == "(3.00 G)"
    told_below = "  ".join(plain([*heat_map.draw(told, 98, 10)])[-2:])
    assert "(…) predicted peak" in told_below
    assert not any(character.isdigit() for character in "".join(heat_map._legend(told, {})))


def test_round_ticks() -> None:
    assert ticks(0.9, 4.2, 4) == [1.0, 2.0, 3.0, 4.0]
    assert ticks(0.0, 23.0, 5) == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert ticks(1.0, 1.0, 5) == []


def test_bars_and_sparklines() -> None:
    assert bar(0.5, 4) == "██░░"
    assert bar(0.53, 4) == "██▏░"
    assert bar(1.7, 3) == "███"
    assert bar(-1, 2) == "░░"
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([1, 2, 3], 2) == "▁█"
    assert sparkline([]) == ""


def test_every_picture_shows_what_was_confirmed_and_marks_it(view: RunView) -> None:
    memory = runs.measured(39.9, 2 * GIB).memory
    again = replace(answers.confirmed(), number=1, samples_per_s=39.9, memory=memory)
    told = replace(view, confirmed=again)
    assert cells(told)["no ckpt", "16"] == "★39.9◆"
    assert cells(told)["no ckpt", "8"] == "25.0◆"
    assert cells(told)["no ckpt", "32"] == "41.8"
    drawn = plain([*memory_speed.draw(told, 98, 12)])
    text = "\n".join(drawn)
    for point in ("★1", "◆0", "●2", "○4"):
        assert point in text, point
    assert "◆ confirmed" in drawn[-1] + drawn[-2]
    assert best_so_far.rates(told)[1] == 40.2, "steps of one phase"
    assert plain([*best_so_far.draw(told, 98, 10)])[-1].endswith("+67 % vs baseline ◆ confirmed")


@pytest.mark.parametrize("width", [40, 58, 76, 78, 98, 138])
def test_no_meaning_in_a_legend_is_cut(view: RunView, width: int) -> None:
    told = replace(view, confirmed=answers.confirmed(), foreseen=runs.foreseen())
    whole = {
        *(f"{sign} {meaning}" for sign, meaning in memory_speed.SIGNS.items()),
        *heat_map._legend(told, {runs.BEST: GIB}),
        *best_so_far._legend(told),
        "samples/s",
    }
    for draw in (memory_speed.draw, best_so_far.draw, heat_map.draw):
        lines = plain([*draw(told, width, 12)])
        assert max(map(len, lines)) <= width
        words = "  ".join(lines[-2:])
        assert any(part in words for part in whole), words
        last = lines[-1].split("  ")[-1]
        assert any(part.endswith(last) for part in whole), last


def test_a_legend_goes_on_in_the_next_row_and_leaves_out_whole_parts() -> None:
    parts = ["★ best", "○ measured", "▲ out of memory"]
    assert legend.packed(parts, 40, 1) == ["★ best  ○ measured  ▲ out of memory"]
    assert legend.packed(parts, 20, 2) == ["★ best  ○ measured", "▲ out of memory"]
    assert legend.packed(parts, 20, 1) == ["★ best  ○ measured"]
    assert legend.packed(["a sentence longer than a row"], 14, 3) == [
        "a sentence",
        "longer than a",
        "row",
    ]
    assert legend.packed(parts, 3, 2) == []
