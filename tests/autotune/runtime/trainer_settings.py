"""What local SGD refuses, sets and tells under a real Trainer, as two ranks find it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from accelerate import DistributedType
from torch.utils.data import IterableDataset
from transformers import Trainer

from autotune import LocalSGDCallback, Recommendation
from autotune.errors import UsageError
from autotune.runtime.callback import attached_to
from tests.autotune.runtime.fits import HERE, gpt2, made
from tests.autotune.runtime.ranks import Facts
from tests.testing import live
from tests.testing.recommendations import configuration, document


class Stream(IterableDataset[dict[str, list[int]]]):
    """Rows of one length, which can be joined to one batch and sent out from the first rank."""

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        return iter([{"input_ids": row} for row in live.Tokens(lengths=(8,)).rows])


def refused(what: Any) -> str:
    try:
        what()
    except UsageError as error:
        return f"{error.cause} | {error.remedy}"
    return "nothing was refused"


def refusals() -> Facts:
    found: Facts = {}
    fit = made("refused", LocalSGDCallback(4), max_steps=2)
    state = fit.trainer.accelerator.state
    plain = state.distributed_type
    # When training begins, the Trainer has prepared its model for what it is under.
    callback = attached_to(fit.trainer)
    assert callback is not None
    for kind in ("FSDP", "DEEPSPEED"):
        state.distributed_type = DistributedType(kind)
        found[f"{kind} at the beginning"] = refused(
            lambda: callback.on_train_begin(fit.trainer.args, fit.trainer.state, None)
        )
        found[f"{kind} at attach"] = refused(lambda: LocalSGDCallback().attach(fit.trainer))
    state.distributed_type = plain
    state._mixed_precision = "fp16"
    found["fp16"] = refused(lambda: fit.trainer.train())
    state._mixed_precision = "no"
    lost = made("lost", max_steps=2)
    lost.trainer.add_callback(LocalSGDCallback(4))
    found["not attached"] = refused(lambda: lost.trainer.train())
    return found


def settings() -> Facts:
    found: Facts = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit = made(
            "settings",
            LocalSGDCallback(4),
            max_steps=2,
            average_tokens_across_devices=True,
            include_num_input_tokens_seen=True,
            logging_strategy="steps",
            logging_steps=2,
        )
        found["averages_tokens"] = fit.trainer.args.average_tokens_across_devices
        fit.train().train()
    found["told"] = [str(w.message) for w in told if str(w.message).startswith("autotune")]
    callback = attached_to(fit.trainer)
    assert callback is not None
    callback.detach()
    found["averages_tokens_later"] = fit.trainer.args.average_tokens_across_devices
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        streamed = Trainer(
            model=gpt2(),
            args=live.arguments(HERE / "stream", max_steps=2, ddp_backend="gloo"),
            train_dataset=Stream(),
            data_collator=live.pad,
        )
        streamed.state.global_step = 1
        LocalSGDCallback(4).attach(streamed)
        streamed.train()
    found["told_of_stream"] = [
        str(w.message) for w in told if str(w.message).startswith("autotune")
    ]
    return found


def applied() -> Facts:
    """A recommendation in force."""
    wanted = replace(configuration(2, 2, world_size=2), local_sgd_steps=3)
    found = Recommendation.of(document(chosen=wanted, baseline=configuration(2, 1, world_size=2)))
    fit = made("applied", max_steps=4, per_device_train_batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.apply(fit.trainer)
    facts: Facts = {"local": fit.train().facts()}
    callback = attached_to(fit.trainer)
    facts["steps"] = callback.local_sgd_steps if callback is not None else None
    counter = live.BatchCounter(fit.trainer.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = replace(wanted, local_sgd_steps=1)
        Recommendation.of(document(chosen=plain)).apply(fit.trainer)
    facts["is_attached_later"] = attached_to(fit.trainer) is not None
    fit.watch.at_step_begin.clear()
    facts["plain"] = fit.train().facts()
    facts["rows"] = counter.rows
    return facts
