"""What keys do: go, hold, ask the engine, copy, leave."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from autotune import control
from autotune.run_directory import RunDirectory
from tests.tui import driving, stories
from tests.tui.driving import Driver, drive, shows, until
from tui import following
from tui.app import AutotuneApp
from tui.last_words import as_known, last_words
from tui.run_now import RunNow
from tui.screens.base import RunScreen
from tui.screens.search import PLOTS
from tui.widgets.picture import Picture
from tui.widgets.trial_table import TrialTable


@pytest.fixture
def running(tmp_path: Path) -> RunDirectory:
    return stories.make(tmp_path, "running")


def app_of(run: RunDirectory, *, owns_run: bool = False) -> AutotuneApp:
    return AutotuneApp(run, unix_time=driving.clock, owns_run=owns_run)


def asked(run: RunDirectory) -> list[tuple[str, str]]:
    return [(request.verb, request.text) for request in control.take(run.control)]


def table(app: AutotuneApp) -> TrialTable:
    return app.screen.query_one(TrialTable)


def front(app: AutotuneApp) -> RunScreen:
    assert app.front is not None
    return app.front


def toasts(app: AutotuneApp) -> list[str]:
    """What was told in the corner, the latest last; a picture may break it anywhere."""
    return [str(toast.message) for toast in app._notifications]


def end_engine(run: RunDirectory, *, exit_code: int = 130, form: str = "running") -> None:
    """The engine says how the run ended, and is gone."""
    from autotune.events import RunEnded

    ended = RunEnded(reason="stopped", exit_code=exit_code, cause="Stopped by SIGINT.")
    stories.append(run, [ended], first_seq=stories.num_events(form))  # type: ignore[arg-type]
    run.lease.unlink()


def test_going_to_screens_and_back(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("down", "enter")
        await until(pilot, lambda: front(app).NAME == "trial")
        assert app.chosen_trial == 2
        await shows(pilot, "4 trial #2")
        await pilot.press("n")
        await shows(pilot, "4 trial #3")
        await shows(pilot, "Out of memory of the host")
        await pilot.press("p", "right_square_bracket")
        await shows(pilot, "gradient_accumulation_steps    2")
        await pilot.press("escape")
        await until(pilot, lambda: front(app).NAME == "search")

    drive(app, (80, 24), body)


def test_the_table_filters_sorts_and_keeps_the_cursor(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("down", "down")
        assert table(app).rows.number == 1
        await pilot.press("S")
        assert table(app).rows.number == 1
        await shows(pilot, "samples/s↑")
        await pilot.press("slash", *"mbs>=64 q")
        assert front(app).NAME == "search"
        await shows(pilot, "▲ no trial matches /mbs>=64 q: all are shown")
        assert "· 10 trials ─" in driving.text(app)
        assert table(app).num_shown == 10
        await pilot.press("backspace", "backspace")
        await shows(pilot, "/mbs>=64 · 3 of 10")
        await pilot.press("enter", "s")
        await shows(pilot, "sort ± ↑")
        await pilot.press("escape")
        await shows(pilot, "sort ± ↑ · 10 trials")
        await pilot.press("slash", *"mbs=64")
        await shows(pilot, "/mbs=64 · 3 of 10")
        await pilot.press("slash", *">x", "enter")
        await shows(pilot, "✗ cannot be read: '64/>x' is nothing that mbs can be compared with")
        assert table(app).num_shown == 3, "the table stays as it was"
        await pilot.press("escape")
        await shows(pilot, "sort ± ↑ · 10 trials")
        assert "cannot be read" not in driving.text(app)

    drive(app, (100, 30), body)


def test_a_click_sorts_and_chooses(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.click("TableHead", offset=(2, 0))
        await shows(pilot, "sort # ↑")
        await pilot.click("TrialRows", offset=(10, 2))
        assert table(app).rows.number == 1
        await pilot.click("TrialRows", offset=(10, 2))
        await until(pilot, lambda: front(app).NAME == "trial")

    drive(app, (100, 24), body)


def test_a_wide_window_shows_the_trial_beside_the_table(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("down")
        await shows(pilot, "Measured 41.8 samples/s")
        await pilot.press("l")
        await shows(pilot, "trial 2 says hello")
        assert front(app).NAME == "search"

    drive(app, (140, 40), body)


def test_a_held_view_stands_still_and_counts(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("space")
        await shows(pilot, "HELD 0 new")
        end_engine(running)
        await shows(pilot, "HELD 1 new")
        assert "run ended" not in driving.text(app)
        await pilot.press("space")
        await shows(pilot, "run ended: stopped")
        assert "HELD" not in driving.text(app)

    drive(app, (80, 24), body)


def test_news_is_shown_by_itself(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        finished = stories.trials_from(len(stories.TRIALS), 1)[1:]
        stories.append(running, finished, first_seq=stories.num_events("running"))
        await shows(pilot, "✓ trial 9 measured: 25.0 samples/s")
        assert table(app).rows.number == 9

    drive(app, (80, 24), body)


def test_requests_to_the_engine(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("x")
        await shows(pilot, "Stop trial 9, 16×4, checkpointing every 2nd layer?")
        assert asked(running) == []
        await pilot.press("b")
        await pilot.press("x", "s")
        await until(pilot, lambda: any(running.control.iterdir()))
        assert asked(running) == [("stop_trial", "")]
        await pilot.press("P")
        assert asked(running) == [("hold", "")]
        await pilot.press("N", *"warm room", "enter")
        assert asked(running) == [("note", "warm room")]

    drive(app, (80, 24), body)


def test_nothing_is_asked_of_an_engine_that_is_not_there(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "failed")
    app = app_of(run)

    async def body(pilot: Driver) -> None:
        await pilot.press("x", "P")
        assert asked(run) == []
        await shows(pilot, "The engine is gone: it ended without a word.")
        await shows(pilot, "autotune tune --resume --name")
        await pilot.press("q")

    drive(app, (80, 24), body)
    assert app.return_value == 0


def test_leaving_a_run_that_goes_on_asks_what_should_become_of_it(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("q")
        await shows(pilot, "What should become of it?")
        await pilot.press("b")
        assert app.is_running
        await pilot.press("q", "d")

    drive(app, (80, 24), body)
    assert app.return_value == 0
    assert asked(running) == []


def test_a_stop_while_confirming_ends_the_measurement_and_says_so(tmp_path: Path) -> None:
    events = [*stories.searching(), *stories.running_trial("confirm")]
    run = stories.write(tmp_path, events, alive=True)

    async def body(pilot: Driver) -> None:
        await pilot.press("q")
        await shows(pilot, "Stop after this measurement: a run that goes on confirms anew")
        await pilot.press("f")
        await shows(pilot, "Stopping after this measurement. ^c stops now.")
        assert asked(run) == [("stop", "SIGINT")]

    drive(app_of(run), (80, 24), body)


def test_finishing_the_trial_waits_for_the_engine_and_takes_its_code(
    running: RunDirectory,
) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("q", "f")
        await until(pilot, lambda: any(running.control.iterdir()))
        assert asked(running) == [("stop", "SIGINT")]
        assert app.is_running
        await pilot.press("ctrl+c")
        assert asked(running) == [("stop_now", "SIGINT")]
        end_engine(running)
        await until(pilot, lambda: not app.is_running)

    drive(app, (80, 24), body)
    assert app.return_value == 130


@pytest.mark.parametrize(("owns_run", "code"), [(True, 5), (False, 0)])
def test_the_code_of_a_run_that_was_over_before(tmp_path: Path, owns_run: bool, code: int) -> None:
    run = stories.write(tmp_path, [*stories.searching(), *stories.gave_up()])
    app = app_of(run, owns_run=owns_run)

    async def body(pilot: Driver) -> None:
        await shows(pilot, "unconfirmed")
        await pilot.press("q")

    drive(app, (80, 24), body)
    assert app.return_value == code


def test_copying_asks_the_terminal_and_writes_a_file(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("down", "y")
        command = f"autotune trial {running.path} 2"
        assert app.clipboard == command
        assert (running.path / "last-copy.txt").read_text() == command + "\n"
        await shows(pilot, "last-copy.txt")
        await pilot.press("Y")
        await shows(pilot, "Copy what of trial 2?")
        await pilot.press("c")
        assert '"micro_batch_size": 32' in app.clipboard
        before = app.clipboard
        app.copy("x" * 100_000, "the log")
        assert app.clipboard == before
        assert len((running.path / "last-copy.txt").read_text()) == 100_001

    drive(app, (80, 24), body)


def test_help_and_palette_know_keys_and_trials(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        await pilot.press("question_mark")
        await shows(pilot, "Keys of 3 search")
        await pilot.press("escape")
        for typed, found in (("theme", "Theme: light or dark"), ("kind", "Picture"), ("stop", "x")):
            await pilot.press("ctrl+p", *typed)
            await shows(pilot, found)
            await pilot.press("escape")
        await pilot.press("ctrl+p", *"#3")
        await shows(pilot, "Open trial 3")
        told = [command.help for command in app.get_system_commands(app.screen)]
        assert "Open trial 0: ✓ baseline." in told
        assert "Open trial 3: ▲ out of memory." in told
        await pilot.press("enter")
        await until(pilot, lambda: front(app).NAME == "trial")
        assert app.chosen_trial == 3

    drive(app, (100, 30), body)


@pytest.mark.parametrize(
    ("key", "title"), [("question_mark", "Keys of 3 search"), ("q", "What should become of it?")]
)
def test_nothing_told_before_covers_a_box(running: RunDirectory, key: str, title: str) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        app.say("It is the first trial.")
        await shows(pilot, "It is the first trial.")
        await pilot.press(key)
        await shows(pilot, title)
        await until(pilot, lambda: "It is the first trial." not in driving.text(app))

    drive(app, (80, 24), body)


def test_pictures_take_turns_in_their_place(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        for words in ("★ best", "━ best rate by trial", "no ckpt", "trial 9 16×4"):
            await pilot.press("v")
            await shows(pilot, words)

    drive(app, (80, 24), body)


def test_nothing_is_drawn_while_speed_is_measured_on_the_same_processor(tmp_path: Path) -> None:
    events = [*stories.searching(), *stories.running_trial()]
    speed = stories.progress(stage="speed", step=1)
    run = stories.write(tmp_path, events, latest=speed, alive=True)
    app = app_of(run)

    async def body(pilot: Driver) -> None:
        await shows(pilot, "speed, 36.9 samples/s  (timed: the screen rests)")
        before = driving.text(app)
        further = stories.progress(stage="speed", step=7, samples_per_s=40.1)
        stories.show_progress(run, further, seq=len(events))
        await until(pilot, lambda: getattr(app.latest.view.progress, "step", 0) == 7)
        await pilot.pause(0.6)
        assert driving.text(app) == before
        await pilot.press("down")
        assert table(app).rows.number == 2

    drive(app, (80, 24), body)


def test_the_clock_moves_now_and_then_while_the_screen_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "TICK_S", 0.02)
    events = [*stories.searching(), *stories.running_trial("confirm")]
    run = stories.write(tmp_path, events, alive=True)
    now_unix_s = [stories.START_UNIX_S + 20.0]
    app = AutotuneApp(run, unix_time=lambda: now_unix_s[0])

    async def body(pilot: Driver) -> None:
        await shows(pilot, "00:20 of 01:00")
        now_unix_s[0] += 30.0
        await shows(pilot, "00:50 of 01:00")

    drive(app, (80, 24), body)


def test_the_theme_changes_by_a_key(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        assert app.current_theme.dark
        await pilot.press("T")
        assert not app.current_theme.dark

    drive(app, (80, 24), body)


def test_a_run_directory_that_is_gone_is_never_made_anew(tmp_path: Path) -> None:
    run = stories.make(tmp_path, "running")
    app = app_of(run)

    async def body(pilot: Driver) -> None:
        shutil.rmtree(run.path)
        # At once: the engine still counts as alive.
        await pilot.press("P")
        assert toasts(app)[-1] == "The run cannot be asked: its directory is gone."
        await pilot.press("y")
        assert app.clipboard == f"autotune trial {run.path} 9"
        assert toasts(app)[-1] == (
            "Copied the command. The run's last-copy.txt cannot be written: its directory is gone."
        )
        await until(pilot, lambda: not app.latest.is_alive)
        await shows(pilot, "✗ directory gone")
        await pilot.press("y", "N")
        assert toasts(app)[-1] == "No engine works on this run, and notes are written by it."
        assert not run.path.exists()
        await pilot.press("q")

    drive(app, (100, 30), body)


def test_a_killed_run_shows_no_trial_that_runs(tmp_path: Path) -> None:
    events = [*stories.searching(), *stories.running_trial()]
    run = stories.write(tmp_path, events, latest=stories.progress(stage="speed"))
    app = app_of(run)

    async def body(pilot: Driver) -> None:
        await shows(pilot, "⊘ lost")
        assert "▸ running" not in driving.text(app)
        await pilot.press("slash", *"state:lost", "enter")
        await until(pilot, lambda: table(app).num_shown == 1)
        await pilot.press("enter")
        await shows(pilot, "Lost: it was running when its engine ended.")
        await pilot.press("Y", "o")
        assert "lost, it was running when its engine ended" in app.clipboard
        await pilot.press("n")
        await shows(pilot, "It is the last trial.")

    drive(app, (140, 40), body)


def test_what_was_asked_of_one_run_is_not_asked_of_another(tmp_path: Path) -> None:
    one, other = (
        stories.write(tmp_path, stories.searching(), alive=True, name=name)
        for name in ("one", "other")
    )
    app = app_of(one, owns_run=True)

    async def body(pilot: Driver) -> None:
        await pilot.press("q", "f")
        assert asked(one) == [("stop", "SIGINT")]
        app.attach(other)
        await until(pilot, lambda: app.latest.is_read)
        await pilot.press("ctrl+c")
        await shows(pilot, "What should become of it?")
        assert asked(other) == []
        # It ends while the question stands there, and was watched.
        stories.append(other, stories.gave_up(), first_seq=len(stories.searching()))
        other.lease.unlink()
        await until(pilot, lambda: not app.latest.is_alive)
        await pilot.press("d")
        await until(pilot, lambda: not app.is_running)

    drive(app, (80, 24), body)
    assert app.return_value == 5


def test_the_code_of_a_command_is_that_of_its_own_run(tmp_path: Path) -> None:
    own = stories.write(tmp_path, stories.searching(), alive=True, name="own")
    other = stories.write(tmp_path, [*stories.searching(), *stories.gave_up()], name="other")
    app = app_of(own, owns_run=True)

    async def body(pilot: Driver) -> None:
        app.attach(other)
        await until(pilot, lambda: app.latest.is_read)
        await pilot.press("q")

    drive(app, (80, 24), body)
    assert app.return_value == 0, "its own run goes on"


def test_an_engine_that_never_said_a_word_is_no_success(tmp_path: Path) -> None:
    run = stories.write(tmp_path, [])
    run.engine_log.touch()
    os.utime(run.request, (0, 0))
    app = app_of(run, owns_run=True)

    async def body(pilot: Driver) -> None:
        await shows(pilot, "it ended before its first word")
        await pilot.press("q")

    drive(app, (80, 24), body)
    assert app.return_value == 1


def test_a_picture_has_the_rows_that_a_short_table_leaves(tmp_path: Path) -> None:
    app = app_of(stories.write(tmp_path, stories.searching(3)))

    async def body(pilot: Driver) -> None:
        await shows(pilot, "3 trials")
        await pilot.press("v")
        await shows(pilot, "─ speed against memory")
        await pilot.resize_terminal(140, 40)
        plot, pane = (app.screen.query_one(name, Picture) for name in ("#plot", "#events"))
        await until(pilot, lambda: (plot.picture, pane.picture) == (PLOTS[0], "events"))
        await until(pilot, lambda: app.screen.query_one("#trials").size.height == 7)
        await shows(pilot, "★ best")
        await shows(pilot, "─ events")
        left = app.screen.query_one("#left").size.height
        assert plot.size.height == left - 1 - 7 - pane.size.height
        assert plot.size.height > left // 2
        assert "No room" not in driving.text(app)

    drive(app, (80, 24), body)


def test_the_same_told_again_takes_the_place_of_the_former(running: RunDirectory) -> None:
    app = app_of(running)

    async def body(pilot: Driver) -> None:
        for told in ("one", "two", "two"):
            app.say(told)
            await pilot.pause()
        assert toasts(app) == ["one", "two"]
        app.say("one")
        app.say("one")
        await until(pilot, lambda: toasts(app) == ["two", "one"])

    drive(app, (80, 24), body)


def test_last_words_know_a_run_that_was_left_before_it_was_read(tmp_path: Path) -> None:
    run = stories.make(tmp_path / "autotune-runs", "running")
    lines = last_words(as_known(RunNow(directory=run)), 0)
    assert lines[0].startswith(f"Run {stories.NAME}: ▸ searching")
    assert lines[-1] == f"  The run goes on. Look again: autotune tui {run.path}"
    plain = last_words(as_known(RunNow(directory=run)), 0, ascii_only=True)
    assert "\n".join(plain).isascii()
    assert plain[0].startswith(f"Run {stories.NAME}: > searching")
    assert [len(line) for line in plain] == [len(line) for line in lines]
    assert as_known(RunNow()) == RunNow()
