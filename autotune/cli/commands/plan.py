"""`autotune plan`: what would be tried, what is ruled out and why. No trial is run."""

from __future__ import annotations

import typer

from autotune.cli import options, summary
from autotune.cli.job import build_request
from autotune.cli.nodes import in_our_words
from autotune.configuration import Checkpointing, Configuration
from autotune.display import output, wording
from autotune.errors import ExitCode
from autotune.events import Document
from autotune.units import counted, format_bytes
from probes.memory import read_num_cores
from probes.ranks.room import check_room


def run(context: typer.Context, chosen: options.Plan) -> int:
    """Runs the command."""
    with in_our_words():
        check_room(chosen.processes, read_num_cores())
    request = build_request(context, chosen)
    from autotune import planning

    output.talk("Probing the machine, loading model and data, checking loss and checkpointing …")
    document = planning.plan(request)
    if chosen.json:
        output.document(document)
    else:
        output.data(_text(document, asks_for_local_sgd=request.local_sgd.isdigit()))
    return ExitCode.OK


def _text(document: Document, *, asks_for_local_sgd: bool) -> str:
    candidates = [
        Configuration.from_json(candidate["configuration"])
        for candidate in _objects(document["candidates"])
        if isinstance(candidate["configuration"], dict)
    ]
    rows = [
        ("work", wording.workload(_object(document["workload"]))),
        ("machine", wording.machine(_object(document["machine"]))),
        (
            "memory",
            f"limit {_bytes(document['memory_limit_bytes'])} "
            f"({output.one_line(str(document['limit_source']))}), "
            f"{_bytes(document['usable_bytes'])} usable",
        ),
        ("parity", output.one_line(str(document["parity"] or "not checked"))),
        ("baseline", summary.spelled_out(Configuration.from_json(_object(document["baseline"])))),
    ]
    averaging = _averaging(document.get("local_sgd_steps"), is_asked=asks_for_local_sgd)
    if averaging:
        rows.append(("averaging", averaging))
    lines = [f"{name:<10}{text}" for name, text in rows]
    lines += [
        "",
        f"{counted(len(candidates), 'configuration')} to choose from",
        *_by_form(candidates),
    ]
    lines += summary.section(
        "Ruled out",
        [f"{out['what']}: {out['reason']}" for out in _objects(document["ruled_out"])],
    )
    lines += summary.section(
        "Warnings",
        [f"{w['cause']} {w['remedy'] or ''}" for w in _objects(document["warnings"])],
        bullet="▲ ",
    )
    return "\n".join(lines)


def _by_form(candidates: list[Configuration]) -> list[str]:
    """One line a number of ranks and checkpointing form: micro-batch size × accumulation steps."""
    forms: dict[tuple[int, Checkpointing], list[str]] = {}
    for candidate in candidates:
        product = f"{candidate.micro_batch_size}×{candidate.accumulation_steps}"
        forms.setdefault((candidate.world_size, candidate.checkpointing), []).append(product)
    has_ranks = any(world_size > 1 for world_size, _ in forms)
    rows = [
        (*((_ranks(world_size),) if has_ranks else ()), str(form), "  ".join(products))
        for (world_size, form), products in forms.items()
    ]
    return summary.indented(summary.table([], rows))


def _ranks(number: int) -> str:
    return f"{number} ranks" if number > 1 else "1 rank"


def _averaging(steps: object, *, is_asked: bool) -> str | None:
    """Which numbers of local SGD steps may be chosen, in words; None where there are none."""
    if not isinstance(steps, list) or not steps:
        return None
    *others, last = map(str, steps)
    listed = f"{', '.join(others)} or {last}" if others else last
    if is_asked:
        return f"local SGD every {listed} optimizer steps, as asked"
    return f"in every step (DDP), or local SGD every {listed}: the most promising is tried"


def _object(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Document]:
    return [_object(item) for item in value] if isinstance(value, list) else []


def _bytes(value: object) -> str:
    return format_bytes(value) if isinstance(value, int) else "unknown"
