"""The picture of an estimate: need against micro-batch size, and what the need consists of."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from autotune.configuration import Checkpointing
from autotune.errors import ExportError
from autotune.export.report.picture import BLUE, GIB, GREY, ORANGE, RED
from autotune.run_directory import write_atomically
from autotune.units import format_bytes

if TYPE_CHECKING:
    import matplotlib as mpl

    from autotune.events import Document

GREEN, PURPLE, YELLOW, BLACK = "#009e73", "#cc79a7", "#e69f00", "#222222"
_FORMS = ((BLUE, "o"), (GREEN, "s"), (PURPLE, "D"), (ORANGE, "^"))
_KINDS = (
    ("weights", BLUE),
    ("gradients", GREEN),
    ("optimizer", PURPLE),
    ("activations", ORANGE),
    ("logits", YELLOW),
    ("temporary", RED),
    ("beside tensors", GREY),
)


def write(path: Path, document: Document) -> None:
    """Draws the picture into a file, and reads it back.

    Raises:
        ExportError: The file cannot be written, or does not hold what was drawn.
    """
    try:
        write_atomically(path, draw(document))
    except OSError as error:
        raise ExportError(
            f"The picture {path} cannot be written: {error.strerror}.", "Name another file."
        ) from error
    verify(path, document)


def draw(document: Document) -> str:
    """The picture as SVG text, the same for the same document."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    device, forms = _object(document["device"]), _objects(document["forms"])
    usable = _number(device["usable_bytes"]) / GIB
    options = {
        "svg.hashsalt": "autotune",
        "svg.fonttype": "none",
        "font.size": 9,
        # Names may hold dollar signs.
        "text.parse_math": False,
    }
    with mpl.rc_context(options):
        figure, (needs, parts) = pyplot.subplots(
            ncols=2, figsize=(10, 4.5), layout="constrained", width_ratios=(3, 2)
        )
        _draw_needs(needs, forms, usable)
        _draw_parts(parts, forms, usable)
        name = _object(document["workload"])["name"]
        figure.suptitle(
            f"{name} on {device['name']}: {format_bytes(_number(device['usable_bytes']))} to fill",
            x=0.01,
            ha="left",
            fontsize=10,
            # A dollar in a name begins no formula.
            parse_math=False,
        )
        for axes in (needs, parts):
            axes.spines[["top", "right"]].set_visible(False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return buffer.getvalue()


def _draw_needs(axes: mpl.axes.Axes, forms: Sequence[Document], usable: float) -> None:
    """One line a checkpointing form; what does not fit is drawn hollow."""
    for number, form in enumerate(forms):
        color, marker = _FORMS[number % len(_FORMS)]
        entries = _objects(form["entries"])
        sizes = [_number(entry["micro_batch_size"]) for entry in entries]
        totals = [_number(entry["total_bytes"]) / GIB for entry in entries]
        axes.plot(sizes, totals, color=color, linewidth=1, label=_name(form), gid=f"form-{number}")
        for size, total, entry in zip(sizes, totals, entries, strict=True):
            axes.plot(
                size,
                total,
                marker=marker,
                markersize=5,
                color=color,
                markerfacecolor=color if entry["fits"] else "white",
                gid=f"form-{number}-{size}",
            )
    axes.axhline(usable, color=BLACK, linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0, top=usable * 1.6)
    axes.set_xlabel("micro-batch size (hollow: does not fit)")
    axes.set_ylabel("memory of the process, GiB")
    axes.legend(frameon=False, loc="upper left", fontsize=8)


def _draw_parts(axes: mpl.axes.Axes, forms: Sequence[Document], usable: float) -> None:
    """One bar a form at its largest micro-batch size, made of kinds."""
    bottoms = [0.0] * len(forms)
    for kind, color in _KINDS:
        heights = [_kind_bytes(form, kind) / GIB for form in forms]
        bars = axes.bar(range(len(forms)), heights, bottom=bottoms, color=color, label=kind)
        for number, bar in enumerate(bars):
            bar.set_gid(f"kind-{kind.replace(' ', '-')}-{number}")
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.axhline(usable, color=BLACK, linestyle="--", linewidth=1)
    labels = [f"{_short(form)}\nat {_at(form)['micro_batch_size']}" for form in forms]
    axes.set_xticks(range(len(forms)), labels, fontsize=7)
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _kind_bytes(form: Document, kind: str) -> int:
    at = _at(form)
    if kind != "beside tensors":
        return _number(_object(at["by_kind"]).get(kind, 0))
    return sum(
        _number(layer["bytes"]) for layer in _objects(at["layers"]) if layer["basis"] != "traced"
    )


def verify(path: Path, document: Document) -> None:
    """Parses the picture and looks for the mark of every entry.

    Raises:
        ExportError: It is not SVG, or a mark is missing.
    """
    try:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    except (OSError, ElementTree.ParseError) as error:
        raise ExportError(f"The picture {path} cannot be read back: {error}.") from error
    marks = {element.get("id") for element in root.iter()}
    for number, form in enumerate(_objects(document["forms"])):
        for entry in _objects(form["entries"]):
            mark = f"form-{number}-{entry['micro_batch_size']}"
            if mark not in marks:
                raise ExportError(f"The picture {path} lacks the mark {mark}.")


def _name(form: Document) -> str:
    return str(Checkpointing(**_object(form["checkpointing"])))  # type: ignore[arg-type]


def _short(form: Document) -> str:
    """The form in as little room as a bar has."""
    every = _object(form["checkpointing"])["every_n_layers"]
    return (
        "none"
        if every is None
        else _name(form).removeprefix("checkpointing ").replace(" ", "\n", 1)
    )


def _at(form: Document) -> Document:
    return _object(form["at"])


def _object(value: object) -> Document:
    return dict(value) if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Document]:
    return [_object(item) for item in value] if isinstance(value, list) else []


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
