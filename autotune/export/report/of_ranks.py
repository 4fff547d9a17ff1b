"""What `report.md` says of several ranks: how they start, exchange and learn, and what is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.configuration import Configuration
from autotune.export import launch
from autotune.export.bundle import Bundle
from autotune.export.document import Answer, Efficiency, RecommendationDocument, read
from autotune.export.installed import Installed
from autotune.export.scripts.python_source import literal
from autotune.export.settings import rank_fields
from autotune.units import format_bytes, format_rate, format_seconds
from autotune.view import TrialView

SAME = Efficiency(value=1.0, interval=(1.0, 1.0), basis="not needed")
"""What as many samples a step teach, however many ranks exchange their gradients."""


def concerns(bundle: Bundle) -> bool:
    """Whether several ranks are part of the answer, or of what it is compared with."""
    return max(bundle.configuration.world_size, bundle.baseline.world_size) > 1


def starting(bundle: Bundle, scripts: Sequence[str]) -> list[str]:
    """The lines that tell how scripts are started."""
    lines = []
    blocks = [launch.commands(bundle, script) for script in scripts]
    if bundle.num_nodes > 1:
        lines += ["One line on each node, the first one on that with rank 0:", ""]
    else:
        blocks = [tuple(command for block in blocks for command in block)]
    for block in blocks:
        lines += ["```console", *block, "```", ""]
    slurm = launch.slurm(bundle, scripts[0])
    if slurm is not None:
        lines += ["Under Slurm, on whatever nodes it allots:", "", "```console", slurm, "```", ""]
    if bundle.launch_environment:
        place = "In this directory; the" if bundle.has_scripts else "The"
        lines += [f"{place} variables are those that the trials ran under.", ""]
    if bundle.has_cpu_ranks:
        lines += [
            "`accelerate launch` starts a single process on CPUs, however many its settings ask "
            "for, unless it is given an mpirun host file: use torchrun.",
            "",
        ]
    return lines


def speed_and_learning(bundle: Bundle, efficiency: Efficiency | None) -> str:
    """Samples per second, what each of them teaches, and the product, apart from each other.

    Args:
        bundle: What was chosen.
        efficiency: Of the chosen configuration; None where nobody said.
    """
    if not concerns(bundle):
        return ""
    document = read(bundle.document)
    head = ["| | configuration | samples/s | sample efficiency | product |"]
    rows = [*head, "| --- | --- | ---: | ---: | ---: |", *_rows(bundle, document, efficiency)]
    text = (
        "## Speed and learning\n\n"
        "How many samples pass in a second, how much each teaches against the baseline's, and both "
        "multiplied: the useful samples per second, by which configurations are compared.\n\n"
    )
    return text + "\n".join(rows) + _sentence(bundle, document.recommendation, efficiency)


def _is_alone(configuration: Configuration) -> bool:
    return configuration.world_size == 1


def _exchanges_gradients(configuration: Configuration) -> bool:
    return configuration.world_size > 1 and configuration.local_sgd_steps == 1


def _averages(configuration: Configuration) -> bool:
    return configuration.local_sgd_steps > 1


_KINDS = (
    ("one process", _is_alone),
    ("exchanging gradients", _exchanges_gradients),
    ("local SGD", _averages),
)
"""What the chosen configuration is compared with beside the baseline: name and recognition."""


def _rows(
    bundle: Bundle, document: RecommendationDocument, efficiency: Efficiency | None
) -> Iterator[str]:
    answer = document.recommendation
    told = {trial.configuration: trial.sample_efficiency for trial in document.trials}
    chosen = next(
        c for c in (answer, *answer.alternatives) if c.configuration == bundle.configuration
    )
    yield _row("chosen", bundle.configuration, chosen.measured.samples_per_s, efficiency)
    shown = {bundle.configuration}
    baseline = answer.baseline
    if baseline.measured is not None and baseline.configuration not in shown:
        rate = baseline.measured.samples_per_s
        yield _row("baseline", baseline.configuration, rate, SAME)
        shown.add(baseline.configuration)
    for name, is_kind in _KINDS:
        found = [
            (trial.measured.samples_per_s, trial.configuration)
            for trial in bundle.trials
            if trial.measured is not None
            and is_kind(trial.configuration)
            and trial.configuration.global_batch_size == bundle.baseline.global_batch_size
        ]
        if found and not any(is_kind(configuration) for configuration in shown):
            rate, configuration = max(found, key=lambda pair: pair[0])
            learned = told.get(configuration) or (None if _averages(configuration) else SAME)
            yield _row(f"best of {name}", configuration, rate, learned)


def _row(
    name: str, configuration: Configuration, samples_per_s: float, efficiency: Efficiency | None
) -> str:
    cells = [name, str(configuration), format_rate(samples_per_s)]
    if efficiency is None:
        cells += ["–", "–"]
    elif efficiency.basis == "not needed":
        cells += ["1", format_rate(samples_per_s)]
    else:
        low, high = efficiency.interval
        cells += [
            f"{efficiency.value:.2f} ({low:.2f} to {high:.2f}), {efficiency.basis}",
            f"{format_rate(samples_per_s * efficiency.value)} "
            f"({format_rate(samples_per_s * low)} to {format_rate(samples_per_s * high)})",
        ]
    return f"| {' | '.join(cells)} |"


def _sentence(bundle: Bundle, answer: Answer, efficiency: Efficiency | None) -> str:
    is_answer = answer.configuration == bundle.configuration
    if efficiency is None or answer.speedup is None or not is_answer:
        return ""
    if answer.configuration == answer.baseline.configuration:
        return ""
    speedup = answer.speedup.value
    text = f"\n\nIt passes {speedup:.2f} times as many samples in a second as the baseline"
    if efficiency.basis == "not needed":
        return f"{text}, and each teaches as much."
    return (
        f"{text}, each teaches {efficiency.value:.2f} of what it teaches there "
        f"({efficiency.basis}), and so it learns {speedup * efficiency.value:.2f} times as fast."
    )


def exchange(bundle: Bundle) -> str:
    """What the ranks exchange and what that costs, where it was measured."""
    trial = _exchange(bundle)
    if trial is None or trial.measured is None or trial.measured.exchange is None:
        return ""
    found = trial.measured.exchange
    collectives = f"{found.num_collectives_per_step:g}"
    if found.collectives:
        collectives += f" ({', '.join(found.collectives)})"
    rows = [
        ("a step without any exchange", _milliseconds(found.compute_s)),
        ("a step that exchanges gradients", _milliseconds(found.ddp_step_s)),
        ("of which the exchange adds", _milliseconds(found.exposed_s)),
        ("one averaging of the parameters", _milliseconds(found.averaging_s)),
        ("bytes of one averaging", format_bytes(found.averaging_bytes)),
        ("further collectives in a step", collectives),
    ]
    return "\n".join(
        [
            "## Exchange between the ranks",
            "",
            f"Measured in trial {trial.number}, {trial.configuration}, on "
            f"{trial.configuration.world_size} ranks; the slowest one's times.",
            "",
            "| | |",
            "| --- | ---: |",
            *(f"| {name} | {value} |" for name, value in rows),
        ]
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else format_seconds(seconds)


def _exchange(bundle: Bundle) -> TrialView | None:
    """Of the last trial that differs from the chosen configuration by its averaging alone."""
    if not bundle.has_ranks:
        return None
    plain = replace(bundle.configuration, local_sgd_steps=1)
    found = [
        trial
        for trial in bundle.trials
        if trial.measured is not None
        and trial.measured.exchange is not None
        and replace(trial.configuration, local_sgd_steps=1) == plain
    ]
    return found[-1] if found else None


_REASONS = {
    "average_tokens_across_devices": "counting the tokens of all ranks makes them wait for each "
    "other in every optimizer step; so each rank weighs by its own",
    "ddp_find_unused_parameters": "some parameter gets no gradient, and the ranks would wait for "
    "it",
    "accelerator_config": "every rank reads the stream and takes its own rows, instead of waiting "
    "for batches from rank 0",
}


def settings(bundle: Bundle, installed: Installed) -> str:
    """What is set beside the knobs, why, and what no field can say."""
    if not bundle.has_ranks:
        return ""
    lines = [
        f"- `{name}={literal(value)}`: {_REASONS[name]}."
        for name, value in rank_fields(bundle, installed).items()
    ]
    if bundle.uses_local_sgd:
        lines += [*[""] * bool(lines), *_local_sgd(bundle)]
    return "\n".join(["## Settings for several ranks", "", *lines]) if lines else ""


def _local_sgd(bundle: Bundle) -> list[str]:
    steps = bundle.configuration.local_sgd_steps
    return [
        f"Under local SGD every rank trains by itself, and parameters are averaged after every "
        f"{steps} *optimizer* steps. `TrainingArguments` has no field for that: beside the files "
        "of arguments, a script of your own needs, before `trainer.train()`,",
        "",
        "```python",
        "from autotune import LocalSGDCallback",
        "",
        f"LocalSGDCallback(local_sgd_steps={steps}).attach(trainer)",
        "```",
        "",
        "It also averages before every evaluation, save and stop. Losses are not to be rescaled. "
        "`max_grad_norm` acts on each rank's own gradients, which are larger than their mean, so "
        "that the same limit clips more.",
        "",
        "`accelerator.py` averages by Accelerate's own `LocalSGD`: one message for each tensor, "
        "frozen ones too, and at the end of its block also after an exception. The trials averaged "
        "only what is trained, in a few large messages, as `autotune.FusedLocalSGD` does, which "
        "takes the same arguments.",
    ]
