"""The predicted peak of a training step against what the real allocator of a CPU held.

Beside it stand what people use today: `accelerate estimate-memory`, which knows weights alone, and
a straight line through the measured peaks of two small micro-batches.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import torch
from pydantic import JsonValue

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.cost.memory.law import training_law
from probes.known import known_machine
from tests.benchmarks.harness import Context, Reading, Report, Row, Verdict, say
from tests.testing.memory_jobs import Job

FORMS = (
    NO_CHECKPOINTING,
    Checkpointing(every_n_layers=2),
    Checkpointing(every_n_layers=1),
)
ACCUMULATION_STEPS = (1, 4)
SIZES = (2, 4, 16)
LINE_SIZES = (2, 4)
"""Micro-batch sizes that the straight line goes through; it is held against the largest size."""
FULL_PRECISION_PERCENT = 0.1
BF16_PERCENT = 1.0
FAMILIES = ("GPT-2", "Llama with GQA", "BERT", "DistilBERT", "T5", "ViT")
WITHOUT_PADDING = ("ViT",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration of one job."""

    job: str
    precision: str
    form: str
    accumulation_steps: int
    micro_batch_size: int
    real_bytes: int
    predicted_bytes: int
    accelerate_bytes: int
    line_bytes: float | None
    """What the line through two peaks says; None at the sizes that it goes through or below."""

    @property
    def percent(self) -> float:
        """Error of the law."""
        return _percent(self.predicted_bytes, self.real_bytes)


def run(context: Context) -> Report:
    """Traces every job once, and trains every configuration of it for two steps.

    Nothing is timed: each core works on a job of its own.
    """
    cases: list[Case] = []
    untraced: list[str] = []
    jobs = list(_jobs(quick=context.quick))
    with ProcessPoolExecutor(
        known_machine().host.num_threads,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    ) as pool:
        results = pool.map(partial(_cases, quick=context.quick), jobs)
        for job, (found, reasons) in zip(jobs, results, strict=True):
            say(f"memory of {_name(job)}")
            cases += found
            untraced += reasons
    full = [c for c in cases if c.precision == "fp32"]
    half = [c for c in cases if c.precision == "bf16"]
    lines = [_percent(c.line_bytes, c.real_bytes) for c in cases if c.line_bytes is not None]
    experts = [c for c in cases if c.job.startswith("Mixtral")]
    return Report(
        rows=(
            _errors("predicted peak, fp32", full, FULL_PRECISION_PERCENT),
            _errors("predicted peak, bf16 autocast", half, BF16_PERCENT),
            Row(
                what="models that could not be traced",
                reading=Reading.of_samples([float(len(untraced))], "rows"),
                target="none of six families",
                verdict="passed" if not untraced else "failed",
                note="; ".join(untraced)
                or f"the mixture of experts was traced, in {len(experts)} configurations",
            ),
            Row(
                what="accelerate estimate-memory (training with Adam)",
                reading=Reading.of_samples(
                    [_percent(c.accelerate_bytes, c.real_bytes) for c in cases], "%"
                ),
                note="four times the weights, whatever the batch",
            ),
            Row(
                what=f"a line through the peaks at {LINE_SIZES[0]} and {LINE_SIZES[1]}, at "
                f"{SIZES[-1]}",
                reading=Reading.of_samples(lines, "%"),
            ),
        ),
        details={"cases": [_document(case) for case in cases]},
    )


def _jobs(*, quick: bool) -> Iterator[Job]:
    if quick:
        yield Job(family="GPT-2", dropout=True, padded=True)
        yield Job(family="GPT-2", precision="bf16")
        return
    for family, dropout, padded in product(FAMILIES, (False, True), (False, True)):
        if not (padded and family in WITHOUT_PADDING):
            yield Job(family=family, dropout=dropout, padded=padded)
    for family in ("GPT-2", "Llama with GQA"):
        yield Job(family=family, dropout=True, padded=True, lora=True)
    for family in FAMILIES:
        yield Job(family=family, dropout=True, precision="bf16")
    yield Job(family="Mixtral", padded=True)


def _cases(job: Job, *, quick: bool) -> tuple[list[Case], list[str]]:
    forms = FORMS[::2] if quick else FORMS
    accumulation = ACCUMULATION_STEPS[:1] if quick else ACCUMULATION_STEPS
    traced = job.trace(forms=forms, with_evaluation=False)
    accelerate_bytes = _accelerate_bytes(job)
    cases = []
    for step, accumulation_steps in product(traced.steps, accumulation):
        law = training_law(step, accumulation_steps)
        real = {
            size: job.peak_bytes(
                Configuration(
                    micro_batch_size=size,
                    accumulation_steps=accumulation_steps,
                    checkpointing=step.checkpointing,
                )
            )
            for size in SIZES
        }
        cases += [
            Case(
                job=_name(job),
                precision=job.precision,
                form=str(step.checkpointing),
                accumulation_steps=accumulation_steps,
                micro_batch_size=size,
                real_bytes=real_bytes,
                predicted_bytes=law.peak_bytes(size),
                accelerate_bytes=accelerate_bytes,
                line_bytes=_line(real, size) if size > max(LINE_SIZES) else None,
            )
            for size, real_bytes in real.items()
        ]
    return cases, [f"{_name(job)} with {u.what}: {u.reason}" for u in traced.untraced]


def _line(real: dict[int, int], size: int) -> float:
    low, high = LINE_SIZES
    rise = (real[high] - real[low]) / (high - low)
    return real[low] + rise * (size - low)


def _accelerate_bytes(job: Job) -> int:
    """What `accelerate estimate-memory` prints for training in full precision."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total_bytes, _ = calculate_maximum_sizes(job.load().model)
    return int(max(estimate_training_usage(total_bytes, "float32").values()))


def _errors(what: str, cases: Sequence[Case], most_percent: float) -> Row:
    errors = [case.percent for case in cases]
    if not errors:
        return Row(what=what, verdict="failed", note="nothing was traced")
    worst = max(errors, key=abs)
    verdict: Verdict = "passed" if abs(worst) <= most_percent else "failed"
    return Row(
        what=what,
        reading=Reading.of_samples(errors, "%"),
        target=f"within {most_percent:g} % everywhere",
        verdict=verdict,
        note=f"worst {worst:+.4f} %, lowest {min(errors):+.4f} %, median size of the error "
        f"{statistics.median(map(abs, errors)):.5f} %",
    )


def _name(job: Job) -> str:
    words = [job.family, job.precision]
    words += ["LoRA"] if job.lora else []
    words += ["dropout"] if job.dropout else []
    words += ["padded"] if job.padded else []
    return ", ".join(words)


def _percent(value: float, real_bytes: int) -> float:
    return 100 * (value / real_bytes - 1)


def _document(case: Case) -> JsonValue:
    document: dict[str, JsonValue] = asdict(case)
    return document
