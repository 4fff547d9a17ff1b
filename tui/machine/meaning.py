"""What follows from a reading for the job at hand: plain arithmetic, no measurement."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.display.quantities import quantity
from autotune.events import Document
from autotune.units import format_short_time
from autotune.view import RunView
from probes.link import Link
from probes.machine import Machine, Reading
from tui.machine.found import Found

ADAM_BYTES = 28
"""Bytes that one step of AdamW moves for a parameter in fp32: weight, gradient and two moments are
read, weight and moments are written."""
FLOP_PER_PARAMETER = 6
"""Floating point operations a parameter and token, forward and backward (Kaplan et al. 2020,
section 2.1: two forward, twice as many backward)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known of the job in figures; None where it is not."""

    num_parameters: int | None = None
    num_trainable: int | None = None
    tokens_per_sample: int | None = None
    global_batch_size: int | None = None

    @classmethod
    def of_run(cls, view: RunView) -> Job:
        """The job of a run, as far as it has been loaded."""
        facts = view.workload.facts if view.workload is not None else {}
        return cls.of_facts(facts, view.space.baseline if view.space is not None else {})

    @classmethod
    def of_facts(cls, facts: Document, baseline: Document) -> Job:
        """The job by the facts of its workload and by its baseline, in their JSON forms."""
        parameters = _int(facts.get("num_parameters"))
        trainable = _int(facts.get("num_trainable_parameters"))
        return cls(
            num_parameters=parameters,
            num_trainable=trainable if trainable is not None else parameters,
            tokens_per_sample=_int(facts.get("tokens_median")),
            global_batch_size=_int(baseline.get("global_batch_size")),
        )

    @property
    def gradient_bytes(self) -> int | None:
        """Bytes of all gradients in fp32."""
        return None if self.num_trainable is None else 4 * self.num_trainable


def of_reading(reading: Reading, found: Found, job: Job) -> str:
    """What a reading means for the job; its note where it means nothing in particular."""
    machine = found.machine
    float32 = next((r for r in found.readings if r.name == "matmul float32"), None)
    if reading.name == "memory bandwidth" and job.num_trainable and reading.value > 0:
        least_s = ADAM_BYTES * job.num_trainable / reading.value
        return f"a step of AdamW alone takes {format_short_time(least_s)} or more"
    if reading is float32 and reading.value > 0:
        return _arithmetic(reading, job) or _note(reading)
    is_rate = reading.name.startswith("matmul") and reading.value > 0
    if is_rate and float32 is not None and float32.value > 0:
        return _against_float32(reading, float32, machine)
    if reading.name.startswith("copy") and reading.value > 0:
        return f"1 GiB in {format_short_time(2**30 / reading.value)}"
    return _note(reading)


def _arithmetic(reading: Reading, job: Job) -> str:
    if not (job.num_parameters and job.tokens_per_sample and job.global_batch_size):
        return ""
    operations = (
        FLOP_PER_PARAMETER * job.num_parameters * job.tokens_per_sample * job.global_batch_size
    )
    return f"a global batch takes about {format_short_time(operations / reading.value)} or more"


def _against_float32(reading: Reading, float32: Reading, machine: Machine | None) -> str:
    ratio = reading.value / float32.value
    dtype = reading.name.removeprefix("matmul ")
    if machine is not None and machine.only_pretends(dtype):
        return f"only pretended: {1 / ratio:.0f} times slower than float32; not worth training in"
    return f"{ratio:.1f} times the rate of float32"


def of_link(link: Link, job: Job) -> str:
    """What the link means for the job; empty where nothing can be said."""
    if not link.sizes() or job.gradient_bytes is None:
        return ""
    took_s = link.all_reduce_s(job.gradient_bytes)
    guessed = " by extrapolation" if link.is_extrapolated(job.gradient_bytes) else ""
    size = quantity(Reading(name="", unit="bytes", value=float(job.gradient_bytes)))
    return (
        f"all gradients of this job ({size}) take {format_short_time(took_s)}{guessed}, once a step"
    )


def _note(reading: Reading) -> str:
    return reading.note or ""


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
