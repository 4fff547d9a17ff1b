"""Feeds a plain script the longest samples and counts what it holds, as trials do.

`feeding` is the hook of a measured script: it is entered in the child before the script runs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from pydantic import JsonValue

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch.utils.data import RandomSampler
    from transformers import HfArgumentParser

ROWS_VARIABLE = "AUTOTUNE_BENCHMARK_ROWS"
"""How many of the longest samples are fed over and over: the rows of one optimizer step."""


@contextmanager
def feeding() -> Iterator[dict[str, JsonValue]]:
    """Trains on the longest samples alone, and counts live bytes from training on.

    The longest come last in every optimizer step, where the gradients of the micro-batches before
    are alive: that is the worst case, and what a trial measures.

    Yields:
        `level_bytes`, the process once the script has imported what it needs; `peak_bytes` of live
        tensors, once the script has ended; `longest_tokens` of a sample that was fed.
    """
    from accelerate import Accelerator
    from accelerate.data_loader import SeedableRandomSampler
    from torch.utils.data import RandomSampler
    from transformers import HfArgumentParser

    from autotune.trial.device import resident_bytes
    from autotune.trial.readings.live_bytes import LiveBytes

    num_rows = int(os.environ[ROWS_VARIABLE])
    found: dict[str, JsonValue] = {}
    live = LiveBytes()
    make_parser, prepare_model = HfArgumentParser.__init__, Accelerator.prepare_model

    def parser_made(self: HfArgumentParser, *args: object, **kwargs: object) -> None:
        # Parsing arguments is the first thing that the script does after its imports.
        found["level_bytes"] = resident_bytes()
        make_parser(self, *args, **kwargs)

    def longest_last(self: RandomSampler) -> Iterator[int]:
        lengths = [len(tokens) for tokens in self.data_source["input_ids"]]  # type: ignore[index]
        order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)[:num_rows]
        found["longest_tokens"] = lengths[order[0]]
        return itertools.cycle(reversed(order))

    with ExitStack() as stack:

        def model_prepared(
            self: Accelerator, model: torch.nn.Module, *args: object, **kwargs: object
        ) -> torch.nn.Module:
            prepared: torch.nn.Module = prepare_model(self, model, *args, **kwargs)
            live.add(prepared.parameters())
            live.add(prepared.buffers())
            stack.enter_context(live)
            return prepared

        stack.enter_context(patch.object(HfArgumentParser, "__init__", parser_made))
        stack.enter_context(patch.object(RandomSampler, "__iter__", longest_last))
        stack.enter_context(patch.object(SeedableRandomSampler, "__iter__", longest_last))
        stack.enter_context(patch.object(Accelerator, "prepare_model", model_prepared))
        yield found
    found["peak_bytes"] = live.peak_bytes
