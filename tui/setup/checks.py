"""What is known of a job before it starts, line by line; every line is right, doubtful or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.configuration import Checkpointing, Configuration
from autotune.display import wording
from autotune.display.output import one_line
from autotune.events import Document
from autotune.units import counted, format_bytes
from tui.setup.fields import BY_NAME
from tui.setup.form import Fault, JobForm

Mark: TypeAlias = Literal["ok", "note", "wrong", "asking", "open", "none"]
"""open: nobody has asked yet. none: left out, which is neither good nor bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the checks."""

    mark: Mark
    what: str
    """What was looked at, in a word or two."""
    text: str
    field: str | None = None
    """The field it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the files of a job told at once."""

    columns: tuple[str, ...] = ()
    """Columns of the data; none where finding them out means loading it."""
    task: str = ""
    """What the model would learn."""
    chosen: Mapping[str, str]
    """The columns that would be read, by field."""
    architecture: str = ""
    faults: tuple[Fault, ...] = ()
    """Everything that is wrong, what others follow from first."""

    @classmethod
    def read(cls, document: Document, form: JobForm, error: tuple[str, str | None] | None) -> Look:
        """Reads what `autotune.cli.look` printed for a form."""
        chosen = document.get("chosen")
        told = _objects(document.get("errors"))
        wrong = [(str(one.get("cause")), _text(one.get("remedy"))) for one in told]
        if not wrong and error is not None:
            wrong = [error]
        return cls(
            columns=tuple(map(str, _list(document.get("columns")))),
            task=str(document.get("task") or ""),
            chosen={
                f"{name}_column": str(value)
                for name, value in (chosen if isinstance(chosen, dict) else {}).items()
            },
            architecture=str(document.get("architecture") or ""),
            faults=tuple(form.fault(*one) for one in wrong),
        )


def of_fault(fault: Fault) -> Check:
    """An error, at the field it belongs to."""
    remedy = f" {fault.remedy}" if fault.remedy else ""
    text = one_line(f"{fault.cause}{remedy}")
    return Check(mark="wrong", what=_place(fault), text=text, field=fault.field)


def places(faults: Sequence[Fault]) -> str:
    """Where something is wrong, as the checks call it; empty where nothing is."""
    labels = dict.fromkeys(map(_place, faults))
    return f" at {', '.join(labels)}" if labels else ""


def _place(fault: Fault) -> str:
    return BY_NAME[fault.field].label if fault.field else "job"


def of_look(look: Look, form: JobForm) -> Iterator[Check]:
    """What the files told."""
    if form.is_demo:
        yield Check(mark="ok", what="job", text="the built-in demo, a small language model")
    elif look.architecture and all(fault.field != "model" for fault in look.faults):
        yield Check(mark="ok", what="model", text=one_line(look.architecture), field="model")
    if look.columns:
        names = ", ".join(look.columns[:8]) + (", …" if len(look.columns) > 8 else "")
        yield Check(mark="ok", what="dataset", text=f"columns {one_line(names)}", field="dataset")
    yield from map(of_fault, look.faults)
    if look.task and not form.is_demo and not look.faults:
        read = ", ".join(
            f"{BY_NAME[name].label} from {value!r}"
            for name, value in look.chosen.items()
            if name in BY_NAME
        )
        text = f"{look.task}{f', {read}' if read else ''}"
        yield Check(mark="ok", what="task", text=one_line(text), field="task")


def of_plan(plan: Document) -> Iterator[Check]:
    """What loading the job and planning the search told."""
    facts = plan.get("workload")
    if isinstance(facts, dict) and facts:
        yield Check(mark="ok", what="workload", text=wording.workload(facts))
        for note in _list(facts.get("notes")):
            yield Check(mark="note", what="workload", text=one_line(str(note)))
    candidates = _objects(plan.get("candidates"))
    yield Check(mark="ok", what="space", text=space(candidates))
    yield Check(mark="ok", what="memory", text=memory(plan))
    yield fit(candidates, plan.get("usable_bytes"))
    parity = plan.get("parity")
    if parity:
        # The plan tells it in a sentence only.
        is_fine = str(parity).startswith("Loss parity holds")
        mark: Mark = "ok" if is_fine else "note"
        yield Check(mark=mark, what="same loss", text=one_line(str(parity)))
    for warning in _objects(plan.get("warnings")):
        text = f"{warning.get('cause')} {warning.get('remedy') or ''}"
        yield Check(mark="note", what="machine", text=one_line(text))
    for out in _objects(plan.get("ruled_out")):
        text = f"{out.get('what')}: {out.get('reason')}"
        yield Check(mark="none", what="left out", text=one_line(text))


def space(candidates: Sequence[Document]) -> str:
    """How many configurations there are to choose from, and along which knobs."""
    configurations = [c for c in map(_configuration, candidates) if c is not None]
    parts = [f"{counted(len(candidates), 'configuration')} to choose from"]
    sizes = sorted({c.micro_batch_size for c in configurations})
    if sizes:
        parts.append(f"micro-batch {', '.join(map(str, _thinned(sizes)))}")
    forms: list[Checkpointing] = list(dict.fromkeys(c.checkpointing for c in configurations))
    if len(forms) > 1:
        parts.append(f"{len(forms)} forms of checkpointing")
    averaging = sorted({c.local_sgd_steps for c in configurations if c.local_sgd_steps > 1})
    if averaging:
        parts.append(f"local SGD {', '.join(map(str, _thinned(averaging)))}")
    return "; ".join(parts)


def memory(plan: Document) -> str:
    """The limit, who sets it, and what of it may be used."""
    limit, usable = plan.get("memory_limit_bytes"), plan.get("usable_bytes")
    if not isinstance(limit, int) or not isinstance(usable, int):
        return "unknown"
    source = one_line(str(plan.get("limit_source")))
    return f"limit {format_bytes(limit)} ({source}), {format_bytes(usable)} usable"


def fit(candidates: Sequence[Document], usable: object) -> Check:
    """How many candidates are predicted to fit, where anything predicts it."""
    needs = [predicted_bytes(candidate.get("predicted")) for candidate in candidates]
    known = [need for need in needs if need is not None]
    if not known or not isinstance(usable, int):
        return Check(mark="open", what="fit", text="unknown before a trial")
    fitting = sum(need <= usable for need in known)
    mark: Mark = "ok" if fitting else "wrong"
    return Check(
        mark=mark, what="fit", text=f"{fitting} of {len(known)} are predicted to fit (not measured)"
    )


def predicted_bytes(predicted: object) -> int | None:
    """The whole memory that a prediction names, wherever it stands in there."""
    if not isinstance(predicted, dict):
        return None
    own = predicted.get("total_bytes")
    if isinstance(own, int):
        return own
    return next(
        (found for part in predicted.values() if (found := predicted_bytes(part)) is not None), None
    )


def steps(plan: Document | None, form: JobForm) -> Iterator[tuple[str, str]]:
    """What will happen, in order: a word for each step, and what it does."""
    budget, trials = form["budget"] or "10m", form["trials"] or "40"
    baseline = _configuration(plan or {}, "baseline")
    yield "probe", "memory, bandwidth and arithmetic rate of this machine; kept for later runs"
    yield "check", "the same rows whole and split must train the same"
    yield "baseline", f"{baseline}, what you have now" if baseline else "what you have now"
    num = len(_list((plan or {}).get("candidates")))
    of = f" of {counted(num, 'configuration')}" if num else ""
    plural = "trial" if trials.strip() == "1" else "trials"
    yield "search", f"at most {trials} {plural}{of} within {budget}"
    yield "confirm", "best and baseline again, interleaved, in fresh processes"
    yield "export", f"files to {form['out'] or 'out in the run directory'}, each read back"


def _configuration(document: Document, key: str = "configuration") -> Configuration | None:
    found = document.get(key)
    if not isinstance(found, dict):
        return None
    try:
        return Configuration.from_json(found)
    except ValueError:
        return None


def _thinned(numbers: Sequence[int], most: int = 7) -> list[str]:
    if len(numbers) <= most:
        return [str(number) for number in numbers]
    return [*map(str, numbers[: most - 2]), "…", str(numbers[-1])]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _objects(value: object) -> list[Document]:
    return [item for item in _list(value) if isinstance(item, dict)]
