from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import options, settings
from autotune.cli.declare import settings as declared_settings
from autotune.cli.settings import Setting
from autotune.errors import UsageError

KNOWN = {
    "memory-limit": Setting(type=str),
    "trials": Setting(type=int),
    "learning-rate": Setting(type=float),
    "json": Setting(type=bool),
    "dataset": Setting(type=str, path="path or name"),
    "out": Setting(type=str, path="path"),
}


def _write(directory: Path, text: str, name: str = "autotune.toml") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path


def test_the_nearest_file_upwards_is_found(tmp_path: Path) -> None:
    far = _write(tmp_path, "trials = 3")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert settings.find_file(inner) == far
    near = _write(tmp_path / "a", "[tool.autotune]\ntrials = 4\n", "pyproject.toml")
    assert settings.find_file(inner) == near


def test_a_project_file_without_our_table_is_passed_over(tmp_path: Path) -> None:
    far = _write(tmp_path, "trials = 3")
    _write(tmp_path / "a", "[tool.other]\nx = 1\n", "pyproject.toml")
    _write(tmp_path / "a" / "b", "this is no toml", "pyproject.toml")
    assert settings.find_file(tmp_path / "a" / "b") == far


def test_values_keep_their_types(tmp_path: Path) -> None:
    path = _write(tmp_path, 'memory-limit = "6GiB"\ntrials = 3\nlearning_rate = 1\njson = true\n')
    assert settings.load(path, KNOWN).values == {
        "memory-limit": "6GiB",
        "trials": 3,
        "learning-rate": 1.0,
        "json": True,
    }


def test_a_plain_number_is_a_size_too(tmp_path: Path) -> None:
    path = _write(tmp_path, "memory-limit = 4000000000\n")
    assert settings.load(path, KNOWN).values == {"memory-limit": "4000000000"}


def test_paths_in_a_file_start_at_the_file(tmp_path: Path) -> None:
    data = _write(tmp_path, "text\nhello\n", "data.csv")
    path = _write(tmp_path, 'dataset = "data.csv"\nout = "results"\n')
    assert settings.load(path, KNOWN).values == {
        "dataset": str(data),
        "out": str(tmp_path / "results"),
    }


def test_a_name_that_is_no_path_stays_a_name(tmp_path: Path) -> None:
    path = _write(tmp_path, 'dataset = "somebody/reviews"\n')
    assert settings.load(path, KNOWN).values == {"dataset": "somebody/reviews"}


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("memory-limt = '6GiB'", "memory-limt", "Did you mean 'memory-limit'?"),
        ("colour = 'red'", "'colour'", "an option of `autotune tune --help`"),
        ("trials = '3'", "where a whole number is needed", "Change the line"),
        ("trials = true", "where a whole number is needed", "Change the line"),
        ("trials = 2.5", "where a whole number is needed", "Change the line"),
        ("json = 1", "where true or false is needed", "Change the line"),
        ("dataset = ['a']", "where text is needed", "Change the line"),
        ("trials = ", "cannot be read", "Mend or remove"),
    ],
)
def test_what_cannot_work_is_named(tmp_path: Path, text: str, cause: str, remedy: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        settings.load(path, KNOWN)
    assert cause in caught.value.cause
    assert str(path) in caught.value.cause
    assert remedy in (caught.value.remedy or "")


def test_every_option_may_be_set_and_arguments_may_not() -> None:
    known = declared_settings(options.ALL)
    assert known["memory-limit"] == Setting(type=str)
    assert known["learning-rate"] == Setting(type=float)
    assert known["model"] == Setting(type=str, path="path or name")
    assert known["run-dir"] == Setting(type=str, path="path")
    assert known["streaming"] == Setting(type=bool)
    assert "run" not in known
    assert "number" not in known


def test_keys_of_the_terminal_ui_are_passed_on_by_what_they_do(tmp_path: Path) -> None:
    text = 'trials = 3\n[keys]\nhelp = "f1,h"\ngo.setup = "u"\n"search.sort" = "o"\n'
    found = settings.load(_write(tmp_path, text), KNOWN)
    assert found.values == {"trials": 3}
    assert found.keys == {"help": "f1,h", "go.setup": "u", "search.sort": "o"}
    project = _write(tmp_path, '[tool.autotune.keys]\nhelp = "h"\n', "pyproject.toml")
    assert settings.load(project, KNOWN).keys == {"help": "h"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keys = 3", "sets keys, which is a table"),
        ("[keys]\nhelp = 3", "gives help the key 3, where text is needed"),
        ('[keys]\ngo.setup = ""', "gives go.setup the key '', where text is needed"),
    ],
)
def test_keys_that_are_no_text_are_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        settings.load(_write(tmp_path, text), KNOWN)
    assert caught.value.remedy


def test_a_mark_of_the_byte_order_is_no_setting(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.autotune]\ntrials = 3\n", encoding="utf-8-sig")
    assert settings.find_file(tmp_path) == path
    assert settings.load(path, KNOWN).values == {"trials": 3}
    own = tmp_path / "autotune.toml"
    own.write_text("trials = 4\n", encoding="utf-8-sig")
    assert settings.load(own, KNOWN).values == {"trials": 4}


def test_a_home_that_is_not_known_is_left_to_whoever_reads_the_option(tmp_path: Path) -> None:
    path = _write(tmp_path, "out = '~nobody-of-that-name/out'")
    assert settings.load(path, KNOWN).values == {"out": "~nobody-of-that-name/out"}
