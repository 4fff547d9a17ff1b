"""`report.md`: the answer, what it rests on, what it does not cover, and how to use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from autotune import sureness
from autotune.configuration import Configuration
from autotune.export import launch
from autotune.export.bundle import Bundle
from autotune.export.document import (
    MEASURED_APART,
    Alternative,
    Answer,
    Efficiency,
    Readings,
    RecommendationDocument,
    are_measured_apart,
    device_name,
    is_of_search_alone,
    read,
)
from autotune.export.installed import Installed
from autotune.export.report import of_ranks
from autotune.export.running.ranks import RanksHere
from autotune.outcome import Failed, Measured, OutOfMemory, Stopped, TimedOut
from autotune.units import counted, format_bytes, format_change, format_rate, format_seconds
from autotune.view import TrialView, trials_and_repeats

DASH = "–"
"""Shown where there is no reading."""

_PREDICTED = 7
"""Place of the column of predicted peaks, where there is one."""
_PICTURE = "report.svg"
_LAST = "recommendation.json"
FILES = (
    ("training_arguments.json", "the changed fields, for `HfArgumentParser.parse_json_file`"),
    ("training_arguments.yaml", "the same, for `HfArgumentParser.parse_yaml_file`"),
    ("train.args", "the same as flags; `HfArgumentParser` reads it beside a `train.py`"),
    ("trainer.py", "the whole job with Trainer"),
    ("accelerator.py", "the whole job as an Accelerate loop"),
    ("accelerate.yaml", "launch settings for `accelerate launch --config_file`"),
    (_LAST, "this answer as data; `autotune.load` reads it"),
)


def provenance(bundle: Bundle, installed: Installed) -> tuple[str, ...]:
    """Where a file comes from, in lines for its comments."""
    versions = ", ".join(f"{name} {version}" for name, version in installed.versions)
    return (
        f"autotune run {bundle.run}: {bundle.configuration}",
        f"Measured on {device_name(bundle.document)} with {versions}; see report.md.",
    )


def render(bundle: Bundle, installed: Installed, here: RanksHere) -> str:
    """The whole report.

    Args:
        bundle: What it tells.
        installed: The libraries that the files are for.
        here: On how many ranks the scripts are tried before the files are put in place.
    """
    document = read(bundle.document)
    answer = document.recommendation
    efficiency = _efficiency(bundle, answer)
    sections = [
        f"# {bundle.facts.name}: {bundle.configuration}",
        _answer(bundle, answer),
        f"![Speed against memory]({_PICTURE})",
        _reasons(bundle, answer),
        of_ranks.speed_and_learning(bundle, efficiency),
        _use(bundle, here),
        of_ranks.settings(bundle, installed),
        _evidence(bundle, document, installed),
        of_ranks.exchange(bundle),
        _trials(bundle),
        _alternatives(document),
        _list(
            "Also consider (not tested)",
            [item.removeprefix("untested: ") for item in answer.also_consider],
        ),
        _list("Not covered by this evidence", answer.not_covered),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _answer(bundle: Bundle, answer: Answer) -> str:
    chosen = _chosen(bundle, answer)
    lines = ["## Answer", ""]
    if chosen is not answer:
        lines += [
            f"These files hold the alternative **{bundle.configuration}**; recommended is "
            f"{answer.configuration}.",
            "",
        ]
    elif answer.configuration == answer.baseline.configuration:
        lines += [f"Keep **{bundle.configuration}**, the baseline.", ""]
    elif answer.speedup is not None:
        low, high = answer.speedup.ci95
        doubt = sureness.doubt(answer.speedup.ci95)
        lines += [
            f"Train with **{bundle.configuration}**: {format_change(answer.speedup.value)} speed "
            f"against the baseline (95 %: {format_change(low)} to {format_change(high)})"
            f"{f', {doubt}' if doubt else ''}.",
            "",
        ]
    lines += [_line(row) for row in _table(bundle)]
    if bundle.evaluation_batch_size is not None:
        lines += [
            "",
            "Beside these settings, the files set `per_device_eval_batch_size="
            f"{bundle.evaluation_batch_size}`, which touches evaluation only.",
        ]
    if are_measured_apart(read(bundle.document), bundle.configuration):
        lines += ["", MEASURED_APART]
    limit = format_bytes(answer.memory_limit_bytes)
    lines += ["", f"The limit is {limit} for everything that the training process occupies."]
    if bundle.repair_loss:
        ranks = ", and by the number of ranks" if bundle.has_ranks else ""
        lines += [
            "",
            "The loss of this model ignores the count that Trainer hands it, so that Trainer as it "
            f"stands multiplies loss and gradients by the accumulation steps{ranks}. The trials "
            "set `trainer.model_accepts_loss_kwargs = False`, which mends that, and so do "
            "`recommendation.apply(trainer)` and exported scripts; a script of your own needs the "
            "same line.",
        ]
    return "\n".join(lines)


def _table(bundle: Bundle) -> list[tuple[str, str, str]]:
    """Knobs and readings of the chosen configuration beside those of the baseline."""
    answer = read(bundle.document).recommendation
    return [
        ("", "chosen", "baseline"),
        ("---", "---:", "---:"),
        *_knobs(bundle.configuration, answer.baseline.configuration),
        *_readings(_chosen(bundle, answer).measured, answer.baseline.measured),
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _chosen(bundle: Bundle, answer: Answer) -> Answer | Alternative:
    if answer.configuration == bundle.configuration:
        return answer
    for alternative in answer.alternatives:
        if alternative.configuration == bundle.configuration:
            return alternative
    raise ValueError(f"the document does not know the configuration {bundle.configuration}")


def _knobs(chosen: Configuration, baseline: Configuration) -> list[tuple[str, str, str]]:
    rows = [
        ("micro-batch size", str(chosen.micro_batch_size), str(baseline.micro_batch_size)),
        ("accumulation steps", str(chosen.accumulation_steps), str(baseline.accumulation_steps)),
        ("global batch size", str(chosen.global_batch_size), str(baseline.global_batch_size)),
        ("checkpointing", _checkpointing(chosen), _checkpointing(baseline)),
    ]
    if max(chosen.world_size, baseline.world_size) > 1:
        rows.append(("ranks", str(chosen.world_size), str(baseline.world_size)))
        rows.append(("local SGD steps", str(chosen.local_sgd_steps), str(baseline.local_sgd_steps)))
    return rows


def _checkpointing(configuration: Configuration) -> str:
    checkpointing = configuration.checkpointing
    return str(checkpointing).removeprefix("checkpointing ") if checkpointing.is_on else "none"


def _readings(chosen: Readings, baseline: Readings | None) -> list[tuple[str, str, str]]:
    def low_high(readings: Readings) -> str:
        low, high = readings.samples_per_s_ci95
        return f"{format_rate(low)} to {format_rate(high)}"

    columns: list[tuple[str, Callable[[Readings], str]]] = [
        ("samples per second", lambda r: format_rate(r.samples_per_s)),
        ("95 % interval", low_high),
    ]
    if chosen.tokens_per_s:
        columns.append(("tokens per second", lambda r: format_rate(r.tokens_per_s)))
    columns.append(("optimizer step", lambda r: format_seconds(r.step_s)))
    columns.append(("peak memory", lambda r: format_bytes(r.memory.total_bytes)))
    return [
        (name, show(chosen), show(baseline) if baseline is not None else DASH)
        for name, show in columns
    ]


def _efficiency(bundle: Bundle, answer: Answer) -> Efficiency | None:
    """Sample efficiency of the chosen configuration; None where nobody said."""
    chosen = _chosen(bundle, answer)
    configuration = chosen.configuration
    is_same = (
        configuration.local_sgd_steps == 1
        and configuration.global_batch_size == answer.baseline.configuration.global_batch_size
    )
    return of_ranks.SAME if is_same else chosen.sample_efficiency


def _reasons(bundle: Bundle, answer: Answer) -> str:
    efficiency = answer.sample_efficiency
    text = _list("Why", answer.reasons)
    if bundle.configuration != answer.configuration:
        of = (
            f"## Why\n\nOf the recommended {answer.configuration}, not of {bundle.configuration}:\n"
        )
        text = text.replace("## Why\n", of, 1)
    if efficiency.basis == "not needed" or of_ranks.concerns(bundle):
        return text
    low, high = efficiency.interval
    return (
        f"{text}\n\nSample efficiency against the baseline: {efficiency.value:.2f} "
        f"({low:.2f} to {high:.2f}), {efficiency.basis}."
    )


def _use(bundle: Bundle, here: RanksHere) -> str:
    if not bundle.has_scripts:
        return _use_in_own_script(bundle)
    scripts = ("trainer.py", "accelerator.py")
    lines = ["## Use it", "", *of_ranks.starting(bundle, scripts), *_file_table(FILES)]
    lines += [
        "",
        "Every file was read back through its consumer before it was put here, and the scripts ran "
        f"for {here.steps}.",
    ]
    return "\n".join(lines)


def _use_in_own_script(bundle: Bundle) -> str:
    lines = [
        "## Use it",
        "",
        "```python",
        f"recommendation = autotune.load({_LAST!r})",
        "recommendation.apply(trainer)",
        "trainer.train()",
        "```",
        "",
    ]
    if bundle.has_ranks:
        lines += ["Start it as the trials were, with the name of your script:", ""]
        lines += of_ranks.starting(bundle, ("train.py",))
    elif bundle.launch_environment:
        variables = launch.environment(bundle)
        lines += [f"The trials ran under `{variables}`; start your script under the same.", ""]
    lines += _file_table([row for row in FILES if not row[0].endswith(".py")])
    lines += ["", "Every file was read back through its consumer before it was put here."]
    return "\n".join(lines)


def _file_table(files: Sequence[tuple[str, str]]) -> list[str]:
    return [
        "| file | what it is |",
        "| --- | --- |",
        *(f"| [{name}]({name}) | {what} |" for name, what in files),
    ]


def _evidence(bundle: Bundle, document: RecommendationDocument, installed: Installed) -> str:
    facts = bundle.facts
    rows = "a stream" if facts.num_rows is None else counted(facts.num_rows, "row")
    lengths = (
        f", {facts.tokens_median} tokens in the median, {facts.tokens_max} at most"
        if facts.tokens_median is not None and facts.tokens_max is not None
        else ""
    )
    method = next((t.measured.memory.method for t in bundle.trials if t.measured is not None), None)
    items = [
        f"Model: {facts.model_class}, {facts.num_parameters:,} parameters, "
        f"{facts.num_trainable_parameters:,} of them trained, {facts.precision}, {facts.optim}.",
        f"Data: {rows}{lengths}.",
        f"Machine: {device_name(bundle.document)}.",
        f"Loop: {'Trainer' if bundle.driver == 'trainer' else 'Accelerate'}.",
        f"Cost: {trials_and_repeats(document.cost.trials, document.cost.repeats)} in "
        f"{format_seconds(document.cost.wall_s)}.",
    ]
    if method is not None:
        items.append(f"Memory: {method}.")
    versions = dict(facts.versions) | dict(installed.versions)
    items.append("Versions: " + ", ".join(f"{n} {v}" for n, v in sorted(versions.items())) + ".")
    told = set(document.recommendation.reasons)
    return _list("Evidence", (*items, *(note for note in facts.notes if note not in told)))


def _trials(bundle: Bundle) -> str:
    if not bundle.trials:
        return ""
    head = ["#", "purpose", "configuration", "outcome", "samples/s", "95 %", "peak memory", "note"]
    align = ["---:", "---", "---", "---", "---:", "---:", "---:", "---"]
    said = "Every number in this table was measured."
    if _has_predictions(bundle):
        head.insert(_PREDICTED, "predicted peak")
        align.insert(_PREDICTED, "---:")
        said = (
            "Every number in this table was measured, but for the predicted peak: that was "
            "reckoned before the trial ran, from one step traced on tensors without data."
        )
    table = "\n".join(_line(row) for row in [head, align, *_trial_rows(bundle)])
    return f"## Trials\n\n{said}\n\n{table}"


def _has_predictions(bundle: Bundle) -> bool:
    return any(trial.predicted_bytes is not None for trial in bundle.trials)


def _trial_rows(bundle: Bundle) -> list[list[str]]:
    rows = [_trial(trial) for trial in bundle.trials]
    if _has_predictions(bundle):
        for row, trial in zip(rows, bundle.trials, strict=True):
            need = trial.predicted_bytes
            row.insert(_PREDICTED, DASH if need is None else format_bytes(need))
    return rows


def _trial(trial: TrialView) -> list[str]:
    samples = interval = memory = DASH
    note = ""
    match trial.outcome:
        case Measured() as measured:
            samples = format_rate(measured.samples_per_s)
            low, high = measured.samples_per_s_ci95
            interval = f"{format_rate(low)} to {format_rate(high)}"
            memory = format_bytes(measured.memory.total_bytes)
        case OutOfMemory() as outcome:
            note = outcome.cause
            if outcome.needed_at_least_bytes is not None:
                note += f" (at least {format_bytes(outcome.needed_at_least_bytes)})"
        case Failed() | TimedOut() | Stopped() as ended:
            note = ended.cause
        case None:
            note = "still running"
    return [
        str(trial.number),
        trial.purpose + (f" on {_cell(trial.origin.host)}" if trial.origin is not None else ""),
        str(trial.configuration),
        trial.state.replace("_", " "),
        samples,
        interval,
        memory,
        _cell(note),
    ]


def _alternatives(document: RecommendationDocument) -> str:
    answer = document.recommendation
    if not answer.alternatives:
        return ""
    lines = ["## Alternatives", "", "| | configuration | samples/s | peak memory |"]
    lines.append("| --- | --- | ---: | ---: |")
    is_apart = False
    for alternative in answer.alternatives:
        measured = alternative.measured
        once = ", once" if is_of_search_alone(document, alternative.configuration) else ""
        is_apart = is_apart or bool(once)
        lines.append(
            f"| {alternative.kind} | {alternative.configuration} | "
            f"{format_rate(measured.samples_per_s)}{once} | "
            f"{format_bytes(measured.memory.total_bytes)} |"
        )
    if is_apart:
        lines += [
            "",
            "A rate with “once” was measured in the search alone and does not compare with what "
            "was confirmed.",
        ]
    return "\n".join(lines)


def _list(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    return "\n".join([f"## {title}", "", *(f"- {item}" for item in items)])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def verify(path: Path, bundle: Bundle) -> str:
    """Looks for every file that the report links to, every number of the run and every command.

    Raises:
        ValueError: A linked file, a line with readings or a command is missing, or torchrun does
            not understand a command.
    """
    text = path.read_text(encoding="utf-8")
    # What a trial failed with may look like a link, and is none.
    names = [_PICTURE, *(name for name, _ in FILES)]
    linked = [name for name in names if f"]({name})" in text]
    for name in linked:
        if not (path.parent / name).is_file():
            raise ValueError(f"it links to {name}, which is not there")
    lines = set(text.splitlines())
    for row in (*_table(bundle), *_trial_rows(bundle)):
        if _line(row) not in lines:
            raise ValueError(f"it does not hold the line {_line(row)!r}")
    for script in ("trainer.py", "accelerator.py") if bundle.has_scripts else ():
        launch.verify(bundle, script)
        for command in launch.commands(bundle, script):
            if command not in lines:
                raise ValueError(f"it does not hold the command {command!r}")
    return "every link followed, every reading looked up"
