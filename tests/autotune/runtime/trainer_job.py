"""What two ranks find of local SGD under a real Trainer; `test_trainer.py` reads it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import TrainerCallback

from autotune import LocalSGDCallback
from autotune.errors import AutotuneError
from autotune.runtime.averaging import ParameterAverage
from autotune.runtime.plain import find_ddp
from probes.lifetime import end_at_once
from tests.autotune.runtime.fits import AVERAGED, HERE, gpt2, made, note_averagings
from tests.autotune.runtime.ranks import Facts, difference, flat, write_facts
from tests.autotune.runtime.trainer_settings import applied, refusals, settings
from tests.testing import live


class EveryStep(LocalSGDCallback):
    """Averages after every step, which users get plain data parallel training for."""

    _fewest_steps: ClassVar[int] = 1


class Asking(TrainerCallback):  # type: ignore[misc]
    """Asks for things in the midst of a training, and was added after ours."""

    def __init__(self, *, save_at: int, stop_at: int) -> None:
        self.save_at, self.stop_at = save_at, stop_at

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        control.should_save |= state.global_step == self.save_at
        control.should_training_stop |= state.global_step == self.stop_at


class Failing(TrainerCallback):  # type: ignore[misc]
    """Has an accident once."""

    def __init__(self, at: int) -> None:
        self.at: int | None = at

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if state.global_step == self.at:
            self.at = None
            raise ZeroDivisionError("an accident")


def by_hand(batches: Sequence[Mapping[str, torch.Tensor]], every: int) -> torch.Tensor:
    """Training on the same batches with nothing of ours, of DDP, or of the Trainer."""
    model = gpt2().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number, batch in enumerate(batches, start=1):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % every == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
    return flat([*model.parameters()])


def parity() -> Facts:
    plain = made("plain", max_steps=20).train()
    every = made("every", EveryStep(1), max_steps=20).train()
    fourth = made("fourth", LocalSGDCallback(4), max_steps=20).train()
    return {
        "every_step_to_ddp": difference(every.weights, plain.weights),
        "every_step_averaged": every.averaged,
        "every_fourth_to_hand": difference(
            fourth.weights, by_hand(fourth.collator.batches[:20], 4)
        ),
        "every_fourth_to_ddp": difference(fourth.weights, plain.weights),
        "fourth": fourth.facts(),
    }


def evaluating_and_saving() -> Facts:
    fit = made(
        "saving",
        LocalSGDCallback(4),
        max_steps=10,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=5,
    ).train()
    return {
        **fit.facts(),
        "at_evaluate": fit.watch.at_evaluate,
        "at_save": fit.watch.at_save,
        "saved_error": fit.watch.saved_error,
    }


def by_epoch() -> Facts:
    fit = made(
        "epochs",
        LocalSGDCallback(5),
        max_steps=-1,
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
    ).train()
    found = {**fit.facts(), "at_evaluate": fit.watch.at_evaluate, "at_save": fit.watch.at_save}
    if dist.get_rank() == 0:
        best = fit.trainer.state.best_model_checkpoint
        saved = load_file(Path(best) / "model.safetensors")
        now = dict(fit.trainer.model.named_parameters())
        found["best_error"] = max(
            difference(tensor, now[name]) for name, tensor in saved.items() if name in now
        )
    return found


def asked_by_later_callbacks() -> Facts:
    fit = made("asking", LocalSGDCallback(4), max_steps=12)
    fit.trainer.add_callback(Asking(save_at=6, stop_at=9))
    fit.train()
    return {**fit.facts(), "at_save": fit.watch.at_save, "saved_error": fit.watch.saved_error}


def resumed() -> Facts:
    changes: dict[str, Any] = {"max_steps": 10, "save_strategy": "steps", "save_steps": 6}
    whole = made("resumed", LocalSGDCallback(4), momentum=0.0, **changes).train()
    weights = whole.weights
    again = made("resumed", LocalSGDCallback(4), momentum=0.0, **changes)
    again.train(resume_from_checkpoint=str(HERE / "resumed" / "out" / "checkpoint-6"))
    return {
        "whole": whole.averaged,
        "again": again.averaged,
        "difference": difference(weights, again.weights),
    }


def accumulation() -> Facts:
    fit = made("accumulating", LocalSGDCallback(2), max_steps=6, gradient_accumulation_steps=3)
    return fit.train().facts()


def first_steps_in_data_parallel() -> Facts:
    fit = made("post-local", LocalSGDCallback(3, ddp_steps=4), max_steps=9)
    found: Facts = {"once": fit.train().facts()}
    fit.watch.at_step_begin.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found["twice"] = fit.train().facts()
    found["told"] = [str(w.message) for w in told if str(w.message).startswith("autotune")]
    return found


def quadratic_rule() -> Facts:
    callback = LocalSGDCallback(2, qsr_alpha=0.1)
    fit = made("qsr", callback, max_steps=12, lr_scheduler_type="linear", warmup_steps=3)
    return fit.train().facts()


def variants() -> Facts:
    """Weights after the same training with what must not change it."""
    weights = made("variant", LocalSGDCallback(4)).train().weights
    found: Facts = {}
    for use_reentrant in (True, False):
        changes: dict[str, Any] = {
            live.CHECKPOINTING: True,
            f"{live.CHECKPOINTING}_kwargs": {"use_reentrant": use_reentrant},
        }
        fit = made("checkpointing", LocalSGDCallback(4), **changes).train()
        name = "reentrant" if use_reentrant else "not reentrant"
        found[name] = {**fit.facts(), "difference": difference(fit.weights, weights)}
    fit = made("bf16", LocalSGDCallback(4), bf16=True).train()
    found["bf16"] = {**fit.facts(), "difference": difference(fit.weights, weights)}
    return found


class Tiny(torch.nn.Module):
    """Compiles in a moment."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(live.VOCABULARY, live.VOCABULARY)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        logits = self.table(input_ids)
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def compiled() -> Facts:
    changes: dict[str, Any] = {"learning_rate": 5.0, "train_dataset": live.Tokens(lengths=(8,))}
    weights = made("plain", LocalSGDCallback(4), model=Tiny(), **changes).train().weights
    changes |= {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    fit = made("compiled", LocalSGDCallback(4), model=Tiny(), **changes).train()
    return {
        **fit.facts(),
        "difference": difference(fit.weights, weights),
        "wrapped": type(fit.trainer.model_wrapped).__name__,
    }


def adapters() -> Facts:
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    base = gpt2()
    packed = torch.zeros(9, dtype=torch.uint8)
    base.register_parameter("packed", torch.nn.Parameter(packed, requires_grad=False))
    model = get_peft_model(base, config)
    fit = made("lora", LocalSGDCallback(3), model=model, max_steps=5, learning_rate=1.0).train()
    average = ParameterAverage(find_ddp(fit.trainer.model_wrapped))
    adapters = [p for p in model.parameters() if p.requires_grad]
    # Some versions of the model have a number or two among their buffers.
    numbers = [b for b in model.buffers() if b.is_floating_point()]
    return {
        **fit.facts(),
        "num_bytes": average.num_bytes,
        "expected_bytes": sum(4 * tensor.numel() for tensor in [*adapters, *numbers]),
        "all_bytes": sum(4 * p.numel() for p in model.parameters()),
        "num_collectives": average.num_collectives,
    }


def trained_again() -> Facts:
    fit = made("again", LocalSGDCallback(3), max_steps=4)
    runs = []
    for _ in range(2):
        fit.train()
        runs.append(fit.facts())
    return {"runs": runs}


def trained_after_an_accident() -> Facts:
    fit = made("accident", LocalSGDCallback(4), max_steps=5)
    fit.trainer.add_callback(Failing(at=3))
    with contextlib.suppress(ZeroDivisionError):
        fit.train()
    found: Facts = {"averaged": [*AVERAGED], "spread": fit.spread, "flag": fit.exchanges_again}
    fit.watch.at_step_begin.clear()
    found["later"] = fit.train().facts()
    return found


def batch_size_found() -> Facts:
    """The Trainer starts over where memory ran out, and wraps what it trains again."""
    model = gpt2()
    original = model.forward

    def forward(*args: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        if input_ids.shape[0] > 2:
            raise RuntimeError("CUDA out of memory.")
        return original(*args, input_ids=input_ids, **kwargs)

    model.forward = forward
    fit = made(
        "found",
        LocalSGDCallback(3),
        model=model,
        max_steps=4,
        auto_find_batch_size=True,
        per_device_train_batch_size=3,
    ).train()
    return {**fit.facts(), "micro_batch_size": fit.trainer._train_batch_size}


def one_rank_saves() -> Facts:
    """The last thing that is done: a callback that asks on one rank only parts the ranks."""
    fit = made("parted", LocalSGDCallback(4), max_steps=8)
    # It exchanges values of its own in every step.
    fit.trainer.remove_callback(fit.watch)
    if dist.get_rank() == 0:
        fit.trainer.add_callback(Asking(save_at=3, stop_at=-1))
    try:
        fit.train()
    except AutotuneError as error:
        return {"told": str(error)}
    return {"told": "nothing"}


def main() -> None:
    note_averagings()
    checks = {
        "parity": parity,
        "saving": evaluating_and_saving,
        "epochs": by_epoch,
        "asking": asked_by_later_callbacks,
        "resumed": resumed,
        "accumulation": accumulation,
        "post_local": first_steps_in_data_parallel,
        "qsr": quadratic_rule,
        "variants": variants,
        "compiled": compiled,
        "adapters": adapters,
        "again": trained_again,
        "accident": trained_after_an_accident,
        "found": batch_size_found,
        "refusals": refusals,
        "settings": settings,
        "applied": applied,
        "parted": one_rank_saves,
    }
    write_facts({name: check() for name, check in checks.items()})
    end_at_once(0)


if __name__ == "__main__":
    main()
