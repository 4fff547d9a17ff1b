"""An estimate in words: the table, the memory by kind, and every layer with where it comes from."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.cli import summary
from autotune.configuration import Checkpointing
from autotune.display.output import one_line
from autotune.display.report import Block, Cell, cells
from autotune.events import Document
from autotune.units import counted, format_bytes

_KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "temporary")


def blocks(document: Document) -> list[Block]:
    """The answer, block by block."""
    forms = _objects(document["forms"])
    shown = _shown(forms)
    return [
        _head(document),
        _table(forms, shown),
        _by_kind(forms),
        _layers(shown, _object(document["device"])),
        *_notes(document, forms),
    ]


def plain(parts: Sequence[Block]) -> str:
    """The blocks as plain text."""
    lines: list[str] = []
    for part in parts:
        lines += [""] if lines else []
        lines += [part.title] if part.title else []
        rows = [[cell.text for cell in row] for row in part.rows]
        if rows:
            lines += summary.table(part.head, rows, right=part.right)
        lines += [line.text for line in part.lines]
    return "\n".join(lines)


def form_of(form: Document) -> Checkpointing:
    """The checkpointing form that a part of the document is about."""
    return Checkpointing(**_object(form["checkpointing"]))  # type: ignore[arg-type]


def _shown(forms: Sequence[Document]) -> Document:
    """The form whose layers are told: the least recomputation that fits, else the leanest."""
    fitting = [form for form in forms if form["largest_micro_batch_size"]]
    return fitting[0] if fitting else min(forms, key=lambda form: _total(form))


def _total(form: Document) -> int:
    return _number(_object(form["at"])["total_bytes"])


def _head(document: Document) -> Block:
    work, device = _object(document["workload"]), _object(document["device"])
    trained = _number(work["num_trainable_parameters"])
    parameters = f"{_count(_number(work['num_parameters']))} parameters in {work['weights_dtype']}"
    if trained != work["num_parameters"]:
        parameters += f", {_count(trained)} trained"
    tokens = work["sequence_length"]
    samples = f"{work['samples']} samples" + (f" of {tokens} tokens" if tokens else "")
    if work["is_padded"]:
        samples += ", padded"
    kernels = work["attention"]
    rows = [
        ("job", f"{one_line(str(work['model_class']))}, {work['task']}, {parameters}"),
        ("step", f"{_computation(work)}, {work['optimizer']}, {samples}"),
        (
            "device",
            f"{one_line(str(device['name']))}: {_bytes(device['total_bytes'])} "
            f"({one_line(str(device['total_from']))}), {_bytes(device['usable_bytes'])} to fill",
        ),
    ]
    if isinstance(kernels, list) and kernels:
        rows.insert(2, ("attention", ", ".join(map(str, kernels))))
    if _number(device["processes"]) > 1:
        where = "on one machine" if device["kind"] == "cpu" else "one device each"
        rows.append(("processes", f"{device['processes']}, {where}"))
    if document["global_batch_size"]:
        rows.append(
            (
                "batch",
                f"{counted(_number(document['global_batch_size']), 'sample')} per optimizer step",
            )
        )
    return Block(rows=tuple((Cell(name, "dim"), Cell(text)) for name, text in rows))


def _computation(work: Document) -> str:
    """The number format of the computation: without autocast, that of the weights."""
    precision, weights = str(work["precision"]), str(work["weights_dtype"])
    if precision != "fp32" or weights.startswith("float32"):
        return precision
    return f"{weights.partition(' ')[0]} without autocast"


def _table(forms: Sequence[Document], shown: Document) -> Block:
    sizes = [_number(entry["micro_batch_size"]) for entry in _objects(forms[0]["entries"])]
    rows = []
    for number, size in enumerate(sizes):
        entries = (_objects(form["entries"])[number] for form in forms)
        rows.append((Cell(str(size)), *map(_cell, entries)))
    largest = [form["largest_micro_batch_size"] for form in forms]
    rows.append(
        (
            Cell("largest", "strong"),
            *(Cell(str(size) if size else "none", "strong") for size in largest),
        )
    )
    return Block(
        title="What fits: micro-batch size × checkpointing",
        head=("", *map(_short, forms)),
        rows=tuple(rows),
        right=tuple(range(1, len(forms) + 1)),
    )


def _cell(entry: Document) -> Cell:
    # A lower bound stands where the tensors alone were too many to go on.
    bound = "" if entry["reserved_bytes"] is not None else "> "
    if entry["fits"]:
        return Cell(f"✓ {_bytes(entry['total_bytes'])}", "good")
    return Cell(f"✗ {bound}{_bytes(entry['total_bytes'])}", "bad")


def _short(form: Document) -> str:
    """The form, under a heading that says that it is one of checkpointing."""
    found = form_of(form)
    return str(found).removeprefix("checkpointing ") if found.is_on else "none"


def _by_kind(forms: Sequence[Document]) -> Block:
    rows = []
    for form in forms:
        at = _object(form["at"])
        kinds = _object(at["by_kind"])
        rows.append(
            cells(
                (
                    f"{_short(form)} at {at['micro_batch_size']}",
                    *(_bytes(kinds.get(kind, 0)) for kind in _KINDS),
                )
            )
        )
    return Block(
        title="Tensors at the peak: checkpointing × kind",
        head=("", *_KINDS),
        rows=tuple(rows),
        right=tuple(range(1, len(_KINDS) + 1)),
    )


def _layers(form: Document, device: Document) -> Block:
    at = _object(form["at"])
    peak = _object(at["peak"])
    layers = _objects(at["layers"])
    rows = [
        cells(
            (str(layer["name"]), _bytes(layer["bytes"]), str(layer["basis"]), str(layer["source"]))
        )
        for layer in layers
    ]
    rows.append(
        (
            Cell("in all", "strong"),
            Cell(_bytes(at["total_bytes"]), "strong"),
            Cell(""),
            Cell(f"of {_bytes(device['usable_bytes'])} to fill"),
        )
    )
    module = one_line(str(peak["module"])) or "the whole model"
    return Block(
        title=f"What it consists of at {at['micro_batch_size']}, {form_of(form)}",
        rows=tuple(rows),
        right=(1,),
        lines=(Cell(f"The peak stands in {peak['phase']}, {module}.", "dim"),),
    )


def _notes(document: Document, forms: Sequence[Document]) -> list[Block]:
    why = []
    for form in forms:
        refused = next((e for e in _objects(form["entries"]) if not e["fits"]), None)
        if refused is not None:
            why.append(
                f"{form_of(form)} at {refused['micro_batch_size']}: {one_line(str(refused['why']))}"
            )
    untraced = [
        f"{one['what']} could not be traced: {one['reason']}"
        for one in _objects(document["untraced"])
    ]
    notes = document["notes"] if isinstance(document["notes"], list) else []
    return [
        Block(
            title=title, lines=tuple(Cell(f"{summary.INDENT}- {one_line(str(t))}") for t in texts)
        )
        for title, texts in (
            ("Why not more", why),
            ("Not covered", untraced),
            ("To know", [str(note) for note in notes]),
        )
        if texts
    ]


def _object(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Document]:
    return [_object(item) for item in value] if isinstance(value, list) else []


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _count(number: int) -> str:
    """A number of parameters, as models are called by: `8.03 B`, `41.9 M`."""
    for factor, unit in ((10**9, "B"), (10**6, "M")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return str(number)


def _bytes(value: object) -> str:
    return format_bytes(value) if isinstance(value, int | float) else "unknown"
