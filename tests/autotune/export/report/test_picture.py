"""The picture marks every trial, the answer, the baseline and the limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.export.report import picture
from tests.autotune.export.bundles import bundle

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> str:
    return picture.draw(bundle())


def mark_x(root: ElementTree.Element, name: str) -> float:
    """Where a mark stands, from the left."""
    group = next(element for element in root.iter(f"{SVG}g") if element.get("id") == name)
    use = next(group.iter(f"{SVG}use"))
    return float(use.attrib["x"])


def test_the_same_run_makes_the_same_picture(drawn: str) -> None:
    assert picture.draw(bundle()) == drawn


def test_marks_stand_at_their_memory(drawn: str) -> None:
    root = ElementTree.fromstring(drawn)
    best, before, too_large = (
        mark_x(root, name) for name in ("recommended", "baseline", "trial-2")
    )
    # 2, 3 and at least 5 GiB: distances are in proportion.
    assert (too_large - best) / (before - best) == pytest.approx(3.0, rel=1e-3)
    assert mark_x(root, "trial-1") == pytest.approx(best)


def test_words_are_text(drawn: str) -> None:
    words = [element.text for element in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    for word in ("samples per second", "baseline", "out of memory, no speed"):
        assert word in words
    assert any(word is not None and "limit" in word for word in words)


def test_a_damaged_picture_is_found(drawn: str, tmp_path: Path) -> None:
    path = tmp_path / "report.svg"
    path.write_text(drawn)
    assert picture.verify(path, bundle()) == "an XML parser, every mark looked up"
    for text, message in (
        (drawn[:-20], "not XML"),
        ("<html/>", "not an SVG picture"),
        (drawn.replace('id="trial-1"', 'id="else"'), "trial-1 is missing"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            picture.verify(path, bundle())


def test_a_name_is_no_formula() -> None:
    root = ElementTree.fromstring(picture.draw(replace(bundle(), run="a$_$b")))
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert "a$_$b: speed against memory" in words
