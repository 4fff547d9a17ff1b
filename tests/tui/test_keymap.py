"""Keys of a settings file: what is refused; those in force are shown and do what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import UsageError
from tests.tui import driving, stories
from tests.tui.driving import Driver, shows
from tui import bindings, launch
from tui.answer import files
from tui.app import AutotuneApp
from tui.keymap import KeyMap


def keymap(**keys: str) -> KeyMap:
    return KeyMap(source="autotune.toml", keys={id.replace("__", "."): n for id, n in keys.items()})


@pytest.mark.parametrize(
    ("keys", "says", "remedy"),
    [
        ({"search__sortt": "o"}, "a key to 'search.sortt', which is nothing", "'search.sort'"),
        ({"fly": "o"}, "a key to 'fly', which is nothing", "KEYS.md"),
        ({"search__sort": "nokey"}, "gives search.sort the key 'nokey', which is none", "f2"),
        ({"search__sort": ""}, "gives search.sort the key '', which is none", "f2"),
        ({"search__sort": "o, "}, "gives search.sort the key '', which is none", "f2"),
        # `x` holds on every screen, and so on that of the search as well.
        (
            {"search__sort": "x"},
            "the key 'x' with two meanings: stop_trial and search.sort",
            "Give",
        ),
        ({"search__sort": "/"}, "'/' with two meanings: search.filter and search.sort", "Give"),
        ({"quit": "y"}, "the key 'y' with two meanings: quit and setup.copy", "Give"),
        ({"search__sort": "o,o"}, "the key 'o' with two meanings", "Give"),
        ({"palette": "p"}, "gives palette the key 'p', and it has to work while a field", "f2"),
    ],
)
def test_impossible_keys_are_refused(keys: dict[str, str], says: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        keymap(**keys).table()
    assert str(caught.value.cause).startswith("autotune.toml ")
    assert remedy in (caught.value.remedy or "")


def test_two_keys_may_change_places() -> None:
    table = {key.id: key for key in keymap(search__sort="/", search__filter="s,f3").table()}
    assert (table["search.sort"].keys, table["search.sort"].shown) == ("slash", "/")
    assert (table["search.filter"].keys, table["search.filter"].shown) == ("s,f3", "s")


def test_keys_cross_a_process_border_or_say_what_is_wrong() -> None:
    text = json.dumps({"source": "autotune.toml", "keys": {"help": "h"}})
    assert KeyMap.from_json(text) == keymap(help="h")
    for wrong in ("", "[]", '{"keys": []}', '{"source": "x", "keys": 3}'):
        with pytest.raises(UsageError, match="--keymap takes"):
            KeyMap.from_json(wrong)


def test_other_keys_are_shown_and_work_and_the_usual_ones_do_not(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "running")
    table = keymap(search__sort="o", help="f2,h", go__trial="z", export__write="u").table()

    async def body(pilot: Driver) -> None:
        assert driving.rows(pilot.app)[-1].startswith(" F2 Help")
        assert "o Sort" in driving.rows(pilot.app)[-1]
        await pilot.press("s")
        assert "sort samples/s" in driving.text(pilot.app)
        await pilot.press("o")
        await shows(pilot, "sort ± ↑")
        await pilot.press("h")
        await shows(pilot, "Keys of 3 search")
        assert "  o     Sort the trials by the next column." in driving.text(pilot.app)
        await pilot.press("escape", "4")
        assert driving.rows(pilot.app)[0].startswith(" autotune  3 search")
        await pilot.press("z")
        await shows(pilot, "4 trial #")

    with bindings.in_force(table):
        driving.drive(AutotuneApp(run, unix_time=driving.clock), (100, 30), body)
        assert "u writes it" in files.preview(files.foreseen()[0])[0]
    assert "w writes it" in files.preview(files.foreseen()[0])[0]


def test_keys_that_cannot_hold_do_not_hide_a_run_that_was_just_started(tmp_path: Path) -> None:
    wrong = keymap(search__sort="x")
    with pytest.raises(UsageError, match="two meanings"):
        launch._keys(launch.Options(keymap=wrong))
    table, problem = launch._keys(launch.Options(keymap=wrong, owns_run=True))
    assert table == bindings.TABLE
    assert problem.endswith("Give one of them another key in the same table. The usual keys hold.")
    app = AutotuneApp(
        stories.make(tmp_path, "running"), unix_time=driving.clock, owns_run=True, problem=problem
    )

    async def body(pilot: Driver) -> None:
        await shows(pilot, "The usual keys hold.")

    driving.drive(app, (100, 30), body)
