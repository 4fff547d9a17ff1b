"""In ASCII as well, what stands beside one another can be told apart, and keeps its width."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest
from rich.cells import cell_len

from autotune.display import wording
from tui import bindings, words
from tui.answer.pages import OFFERED, TAKEN
from tui.ascii import to_ascii
from tui.pictures import best_so_far, heat_map, memory_speed
from tui.pictures.bars import bar, sparkline
from tui.trials import columns
from tui.trials.readings import CONFIRMED
from tui.widgets.rows import MARKS
from tui.widgets.rule import ruled
from tui.widgets.trial_table import POINTER

BESIDE_ONE_ANOTHER: dict[str, Iterable[str]] = {
    "states of a trial, and nothing": {*wording.GLYPHS.values(), columns.NOTHING, POINTER, "…"},
    "states of a run": {*words.STATE_GLYPHS.values()},
    "lines of the checks": {glyph for glyph, _ in MARKS.values()},
    "speed against memory": {*memory_speed.SIGNS, "─", "│"},
    "best so far": {best_so_far.BEST, best_so_far.BASELINE, "─", "│"},
    "heat map": {"★", CONFIRMED, heat_map.UNTRIED, *wording.GLYPHS.values()},
    "offers": {TAKEN, OFFERED, "★"},
    "order": {columns.ASCENDING, columns.DESCENDING},
    "a bar and its rest": {"█", "░", "▒"},
    "a sparkline": {*sparkline([1, 2, 3, 4, 5, 6, 7, 8])},
    "a text and its cut end": {"…", "·", "–"},
}
"""Signs that a legend or a column holds together."""


@pytest.mark.parametrize("place", BESIDE_ONE_ANOTHER)
def test_signs_of_one_place_stay_apart(place: str) -> None:
    signs = sorted(set(BESIDE_ONE_ANOTHER[place]))
    assert len(signs) > 1
    for one, other in combinations(signs, 2):
        assert to_ascii(one) != to_ascii(other), (place, one, other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    ±0.0 %", "    +-0.0%"),
        ("12.4 GB/s ±0.8 %  n=3", "12.4 GB/s +-0.8%  n=3"),
        ("samples/s↓     ±     peak", "samples/s_    +-     peak"),
        ("median, ± half the IQR", "median, +-half the IQR"),
        ("8 → 32", "8-> 32"),
        ("16×4 ckpt", "16x4 ckpt"),
        ("goes on with every fini…", "goes on with every fini~"),
        ("−3.8 % speed", "-3.8 % speed"),
        ("  🔎 theme", "  /  theme"),
        ("plain", "plain"),
    ],
)
def test_a_text_reads_well_and_is_as_wide_as_before(text: str, expected: str) -> None:
    found = to_ascii(text)
    assert found.isascii()
    assert len(found) == cell_len(text)
    assert found == expected


def test_whatever_else_there_is_becomes_ascii_of_the_same_width() -> None:
    for text in (bar(0.53, 8), ruled("trials", "a note", 40).plain, "⠿⠀▛┏ é", "模型"):
        found = to_ascii(text)
        assert found.isascii(), text
    assert len(to_ascii("模型")) == 4


def test_keys_are_spelled_out_and_none_looks_like_another() -> None:
    table = bindings.spelled_out(bindings.TABLE)
    assert all(key.shown.isascii() for key in table)
    known = {key.id: key.shown for key in table}
    assert known["setup.fill"] == known["search.open"] == "enter"
    assert known["hold_view"] == "space"
    assert (known["search.down"], known["search.up"]) == ("down", "up")
    with bindings.in_force(table):
        for name in bindings.SCREEN_TITLES:
            shown = [key.shown for key in bindings.live_on(name)]
            assert len(shown) == len(set(shown)), name
