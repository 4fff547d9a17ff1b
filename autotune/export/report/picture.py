"""`report.svg`: speed against memory, one mark a trial (child process only)."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl

from autotune.export.bundle import Bundle
from autotune.export.document import Answer, read
from autotune.outcome import OutOfMemory
from autotune.units import format_bytes
from autotune.view import TrialView

GIB = 1024**3
BLUE, ORANGE, GREY, RED = "#0072b2", "#d55e00", "#777777", "#b3261e"
"""Told apart by colour-blind readers; every mark differs in shape too."""


def searched(bundle: Bundle) -> list[TrialView]:
    """The trials that are drawn: confirmations repeat configurations that are there already."""
    return [trial for trial in bundle.trials if not trial.is_repeat]


def draw(bundle: Bundle) -> str:
    """The picture as SVG text, the same for the same run."""
    mpl.use("Agg")
    from matplotlib import pyplot

    answer = read(bundle.document).recommendation
    limit = answer.memory_limit_bytes / GIB
    options = {"svg.hashsalt": "autotune", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(options):
        figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        for trial in searched(bundle):
            if trial.measured is not None:
                axes.plot(
                    trial.measured.memory.total_bytes / GIB,
                    trial.measured.samples_per_s,
                    marker="o",
                    color=BLUE,
                    markersize=5,
                    linestyle="",
                    gid=f"trial-{trial.number}",
                )
            elif isinstance(trial.outcome, OutOfMemory):
                # Without a speed these stand at the bottom, at what they needed at least.
                needed = trial.outcome.needed_at_least_bytes
                axes.plot(
                    max(needed / GIB if needed else limit, limit),
                    0.0,
                    marker="^",
                    color=RED,
                    markersize=7,
                    linestyle="",
                    clip_on=False,
                    gid=f"trial-{trial.number}",
                )
        _mark(axes, answer)
        axes.axvline(limit, color=GREY, linestyle="--", linewidth=1)
        axes.text(
            limit,
            0.99,
            f" limit {format_bytes(answer.memory_limit_bytes)}",
            transform=axes.get_xaxis_transform(),
            va="top",
            color=GREY,
        )
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0, right=max(axes.get_xlim()[1], limit * 1.2))
        axes.set_xlabel("peak memory of the training process, GiB")
        axes.set_ylabel("samples per second")
        title = f"{bundle.run}: speed against memory"
        # A dollar in a name begins no formula.
        axes.set_title(title, loc="left", fontsize=10, parse_math=False)
        _legend(axes, bundle)
        axes.spines[["top", "right"]].set_visible(False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return buffer.getvalue()


def _mark(axes: mpl.axes.Axes, answer: Answer) -> None:
    """Marks recommendation and baseline with the readings that were confirmed."""
    marks = [(answer.configuration, answer.measured, "*", 15, "recommended")]
    baseline = answer.baseline
    if baseline.measured is not None and baseline.configuration != answer.configuration:
        marks.append((baseline.configuration, baseline.measured, "s", 8, "baseline"))
    for configuration, measured, marker, size, name in marks:
        x, y = measured.memory.total_bytes / GIB, measured.samples_per_s
        axes.plot(
            x, y, marker=marker, markersize=size, color=ORANGE, linestyle="", label=name, gid=name
        )
        # Below the mark there is always room: the axis begins at nothing.
        axes.annotate(
            f"{name}\n{configuration}",
            (x, y),
            textcoords="offset points",
            xytext=(0, -10),
            ha="center",
            va="top",
        )


def _legend(axes: mpl.axes.Axes, bundle: Bundle) -> None:
    from matplotlib.lines import Line2D

    kinds = [("o", BLUE, "measured"), ("*", ORANGE, "recommended")]
    if bundle.baseline != bundle.configuration:
        kinds.append(("s", ORANGE, "baseline"))
    if any(isinstance(trial.outcome, OutOfMemory) for trial in searched(bundle)):
        kinds.append(("^", RED, "out of memory, no speed"))
    axes.legend(
        handles=[
            Line2D([], [], marker=marker, color=color, linestyle="", label=label)
            for marker, color, label in kinds
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=len(kinds),
        frameon=False,
    )


def verify(path: Path, bundle: Bundle) -> str:
    """Parses the picture and looks for the mark of every trial.

    Raises:
        ValueError: It is not SVG, or a mark is missing.
    """
    try:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    except ElementTree.ParseError as error:
        raise ValueError(f"it is not XML: {error}") from error
    if root.tag != "{http://www.w3.org/2000/svg}svg":
        raise ValueError("it is not an SVG picture")
    marks = {element.get("id") for element in root.iter()}
    drawn = [t for t in searched(bundle) if t.measured or isinstance(t.outcome, OutOfMemory)]
    for mark in ["recommended", *(f"trial-{trial.number}" for trial in drawn)]:
        if mark not in marks:
            raise ValueError(f"the mark {mark} is missing")
    return "an XML parser, every mark looked up"
