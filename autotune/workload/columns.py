"""Which columns a task needs, what they are usually called, and which ones a dataset has."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import WorkloadError
from autotune.workload.spec import Columns, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One thing that a task reads from a row."""

    field: str
    """The field of `Columns`."""
    meaning: str
    """In words, for messages."""
    usual: tuple[str, ...] = ()
    """Names that are tried in turn where the user named none."""
    is_required: bool = True
    is_text: bool = True
    """Whether its values are texts that go through the tokenizer as they are."""

    @property
    def flag(self) -> str:
        """The command line flag that names the column."""
        return f"--{self.field.replace('_', '-')}-column"


_TEXT = Role(
    field="text",
    meaning="the text of a sample",
    usual=("text", "sentence", "content", "review", "sentence1", "premise", "document"),
)
_TEXT_PAIR = Role(field="text_pair", meaning="the second text of a sample", is_required=False)

TASK_ROLES: Mapping[Task, tuple[Role, ...]] = {
    "causal-lm": (_TEXT,),
    "masked-lm": (_TEXT,),
    "sequence-classification": (
        _TEXT,
        _TEXT_PAIR,
        Role(
            field="label",
            meaning="the class of a sample",
            usual=("label", "labels", "class", "category", "target"),
            is_text=False,
        ),
    ),
    "token-classification": (
        Role(
            field="tokens",
            meaning="the words of a sample",
            usual=("tokens", "words"),
            is_text=False,
        ),
        Role(
            field="label",
            meaning="the tags of the words",
            usual=("ner_tags", "tags", "labels", "label", "pos_tags", "chunk_tags"),
            is_text=False,
        ),
    ),
    "question-answering": (
        Role(field="question", meaning="the question", usual=("question",)),
        Role(field="context", meaning="the text with the answer", usual=("context", "passage")),
        Role(field="answers", meaning="the answers", usual=("answers", "answer"), is_text=False),
    ),
    "seq2seq-lm": (
        Role(
            field="source",
            meaning="the text that is read",
            usual=("source", "input", "text", "document", "article", "src"),
        ),
        Role(
            field="target",
            meaning="the text that is written",
            usual=("target", "output", "summary", "highlights", "tgt"),
        ),
    ),
}

_MAY_REPRODUCE: tuple[Task, ...] = ("seq2seq-lm",)
"""Tasks in which a text may be learnt from itself, where both columns are named the same."""


def choose(columns: Columns, task: Task, available: Sequence[str]) -> Columns:
    """The columns that the task reads: those named, else those with the usual names.

    Columns that the task does not read come back as None.

    Raises:
        WorkloadError: A column that was named is not there or was named twice, or a needed one has
            no usual name.
    """
    found: dict[str, str] = {}
    taken: dict[str, Role] = {}
    for role in TASK_ROLES[task]:
        named = getattr(columns, role.field)
        if named in taken and task not in _MAY_REPRODUCE:
            raise _twice(named, taken[named], role, available)
        if named is not None:
            taken[named] = role
    for role in TASK_ROLES[task]:
        named = getattr(columns, role.field)
        if named is not None:
            if named not in available:
                raise _missing(named, role, available)
            found[role.field] = named
            continue
        there = [name for name in role.usual if name in available]
        usual = next((name for name in there if name not in taken), None)
        if usual is not None:
            found[role.field] = usual
        elif there:
            raise _twice(there[0], taken[there[0]], role, available)
        elif role.is_required:
            raise WorkloadError(
                f"The task {task} needs {role.meaning}, and no column has a usual name for it.",
                f"Name the column with {role.flag}. The dataset has: {_listed(available)}.",
            )
    return replace(Columns(), **found)


def check_named(columns: Columns, available: Sequence[str]) -> None:
    """Looks for the columns that were named, whatever the task reads of them.

    Raises:
        WorkloadError: One is not there.
    """
    for role in {role.field: role for roles in TASK_ROLES.values() for role in roles}.values():
        named = getattr(columns, role.field)
        if named is not None and named not in available:
            raise _missing(named, role, available)


def _twice(name: str, one: Role, other: Role, available: Sequence[str]) -> WorkloadError:
    return WorkloadError(
        f"The column {name!r} cannot be both {one.meaning} ({one.flag}) and {other.meaning} "
        f"({other.flag}).",
        f"Name two different columns. The dataset has: {_listed(available)}.",
    )


def _missing(name: str, role: Role, available: Sequence[str]) -> WorkloadError:
    near = difflib.get_close_matches(name.lower(), [a.lower() for a in available], n=1, cutoff=0.5)
    suggestion = next((a for a in available if near and a.lower() == near[0]), None)
    return WorkloadError(
        f"The dataset has no column {name!r} ({role.flag}).",
        (f"Did you mean {suggestion!r}? " if suggestion else "")
        + f"The dataset has: {_listed(available)}.",
    )


def _listed(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(names[:most]) or "no columns"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
