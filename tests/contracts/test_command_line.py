"""The command line is a contract: a name that changes here changes for every user."""

from __future__ import annotations

import typer

from autotune.cli.app import app
from autotune.errors import ExitCode

WORKLOAD = {
    "--model",
    "--model-config",
    "--tokenizer",
    "--dataset",
    "--dataset-config",
    "--split",
    "--streaming",
    "--task",
    "--demo",
    "--trust-remote-code",
    "--text-column",
    "--text-pair-column",
    "--label-column",
    "--tokens-column",
    "--question-column",
    "--context-column",
    "--answers-column",
    "--source-column",
    "--target-column",
    "--max-length",
    "--packing",
    "--pad-token",
    "--precision",
    "--optim",
    "--learning-rate",
    "--lora-rank",
    "--lora-alpha",
    "--lora-dropout",
    "--lora-target-modules",
    "--micro-batch-size",
    "--training-seed",
}
JOB = WORKLOAD | {
    "--global-batch-size",
    "--memory-limit",
    "--processes",
    "--local-sgd",
    "--trials",
    "--budget",
    "--total-steps",
    "--sampler",
    "--driver",
    "--out",
    "--run-dir",
    "--name",
    "--resume",
    "--fresh",
    "--detach",
    "--force",
    "--storage",
    "--seed",
    "--display",
    "--json",
}
COMMANDS: dict[str, set[str]] = {
    "tune": JOB | {"--dry-run", "--tui"},
    "plan": JOB,
    "estimate": WORKLOAD
    | {
        "--device",
        "--device-memory",
        "--dtype",
        "--global-batch-size",
        "--processes",
        "--local-sgd",
        "--picture",
        "--fresh",
        "--json",
    },
    "probe": {"--processes", "--fresh", "--json"},
    "runs": {"--run-dir", "--json"},
    "show": {"RUN", "--run-dir", "--display", "--follow", "--json"},
    "export": {"RUN", "--run-dir", "--alternative", "--out", "--force", "--json"},
    "verify": {"RUN", "--run-dir", "--json"},
    "trial": {"RUN", "NUMBER", "--run-dir", "--json"},
    "tui": (JOB - {"--resume", "--fresh", "--detach", "--display", "--json"})
    | {"RUN", "--theme", "--ascii", "--no-mouse"},
    "doctor": {"--json"},
}


def test_commands_and_options_are_exactly_these() -> None:
    group = typer.main.get_command(app)
    commands = group.commands  # type: ignore[attr-defined]
    found = {
        name: {
            option if option.startswith("--") else parameter.metavar
            for parameter in command.params
            for option in parameter.opts
        }
        for name, command in commands.items()
    }
    assert found == COMMANDS
    assert {option for p in group.params for option in p.opts} == {
        "--version",
        "--install-completion",
        "--show-completion",
    }


def test_every_option_has_a_sentence_and_its_variable() -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert command.help.endswith("."), name
        for parameter in command.params:
            if parameter.param_type_name == "option":
                text = f"{name} {parameter.opts}"
                assert parameter.help.endswith("."), text
                expected = "AUTOTUNE_" + parameter.opts[0][2:].replace("-", "_").upper()
                assert parameter.envvar == expected, text


def test_exit_codes_are_exactly_these() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "INTERNAL": 1,
        "USAGE": 2,
        "DEVICE": 3,
        "INFEASIBLE": 4,
        "UNCONFIRMED": 5,
        "HANGUP": 129,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }


def test_help_tells_the_exit_codes_and_where_settings_come_from() -> None:
    text = " ".join((typer.main.get_command(app).epilog or "").split())
    for code in ExitCode:
        assert str(code.value) in text
    assert "autotune.toml" in text
    assert "AUTOTUNE_MEMORY_LIMIT" in text
