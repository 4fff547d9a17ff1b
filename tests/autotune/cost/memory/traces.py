"""Small steps written by hand, whose bytes can be reckoned in the head."""

from __future__ import annotations

from autotune.configuration import NO_CHECKPOINTING, Checkpointing
from autotune.cost.memory.trace import (
    Event,
    Kind,
    Phase,
    Size,
    StepTrace,
    TracedWorkload,
    TraceFacts,
    Untraced,
)

MIB = 2**20
EVERY_LAYER = Checkpointing(every_n_layers=1)


def event(
    storage: int,
    kind: Kind,
    phase: Phase,
    *,
    mib: float = 0.0,
    mib_per_sample: float = 0.0,
    is_free: bool = False,
    module: str = "",
) -> Event:
    return Event(
        storage=storage,
        is_free=is_free,
        size=Size(constant_bytes=mib * MIB, bytes_per_sample=mib_per_sample * MIB),
        phase=phase,
        kind=kind,
        module=module,
        operator="aten.mm",
    )


def step(
    checkpointing: Checkpointing = NO_CHECKPOINTING,
    *,
    weights_mib: float = 100.0,
    activations_mib: float = 10.0,
    logits_mib: float = 2.0,
) -> StepTrace:
    """Weights W, activations A a sample, logits L a sample; gradients W, optimizer state 2 W.

    The first micro-step peaks at its end with W + (A + L) b + W, later ones hold the optimizer's
    state and the gradients too, and a temporary part of W / 10.
    """

    def forward(first: int) -> tuple[Event, ...]:
        return (
            event(first, "activations", "forward", mib_per_sample=activations_mib, module="layer"),
            event(first + 1, "logits", "forward", mib_per_sample=logits_mib, module="head"),
        )

    def gone(first: int) -> tuple[Event, ...]:
        return (
            event(first + 1, "logits", "backward", mib_per_sample=logits_mib, is_free=True),
            event(
                first,
                "activations",
                "backward",
                mib_per_sample=activations_mib,
                is_free=True,
            ),
        )

    temporary = weights_mib / 10
    gradients = event(2, "gradients", "backward", mib=weights_mib, module="layer")
    gradients_gone = event(2, "gradients", "optimizer", mib=weights_mib, is_free=True)
    return StepTrace(
        checkpointing=checkpointing,
        setup=(event(0, "weights", "setup", mib=weights_mib),),
        window=(),
        first_micro_step=(*forward(10), gradients, *gone(10)),
        later_micro_step=(
            *forward(20),
            event(22, "temporary", "backward", mib=temporary, module="layer"),
            event(22, "temporary", "backward", mib=temporary, is_free=True),
            *gone(20),
        ),
        first_update=(
            event(3, "optimizer", "optimizer", mib=2 * weights_mib),
            gradients_gone,
        ),
        update=(gradients_gone,),
    )


def facts(*, precision: str = "fp32") -> TraceFacts:
    return TraceFacts(
        name="hand",
        model_class="HandForCausalLM",
        num_parameters=26_214_400,
        num_trainable_parameters=26_214_400,
        sequence_length=512,
        is_padded=False,
        batch=Size(constant_bytes=0.0, bytes_per_sample=8192.0),
        precision=precision,
        optimizer="adamw_torch_fused, fused",
        attention=("flash",),
        target="cuda",
        traced_sizes=(2, 4),
        seconds=0.1,
    )


def traced(*steps: StepTrace, untraced: tuple[Untraced, ...] = ()) -> TracedWorkload:
    """A workload of these steps; one without checkpointing and one of every layer by default."""
    return TracedWorkload(
        facts=facts(),
        steps=steps or (step(), step(EVERY_LAYER, activations_mib=1.0)),
        untraced=untraced,
    )
