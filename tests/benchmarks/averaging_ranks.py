"""One rank of the benchmark of averaging: stock and fused take turns on the same model.

Started by PyTorch's launcher with a model's name, a number of rounds and a file, which the first
rank leaves the times of the slowest rank in.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch.nn import Module

from autotune import FusedLocalSGD
from autotune.runtime.averaging import ParameterAverage
from autotune.runtime.plain import find_ddp
from tests.benchmarks.jobs import minilm

NUM_WARMUP_ROUNDS = 2


def gpt2() -> Module:
    """A small language model over bytes, of 0.83 million parameters in 52 tensors."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 256, "n_positions": 64, "n_embd": 128, "n_layer": 4, "n_head": 4}
    model: Module = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    return model


def sentence_encoder() -> Module:
    """MiniLM, of 22.7 million parameters."""
    from transformers import AutoModel

    model: Module = AutoModel.from_pretrained(minilm())
    return model


MODELS: dict[str, Callable[[], Module]] = {"gpt2": gpt2, "minilm": sentence_encoder}


def main(name: str, num_rounds: int, out: Path) -> None:
    """Times both in turn, the first one changing from round to round."""
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(MODELS[name]())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stock = LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=1)
        fused = FusedLocalSGD(accelerator=accelerator, model=model, local_sgd_steps=1)
    sides = {"stock": stock._sync_and_avg_model_params, "fused": fused.average}
    times_s: dict[str, list[float]] = {"stock": [], "fused": []}
    for number in range(NUM_WARMUP_ROUNDS + num_rounds):
        for side in sorted(sides, reverse=number % 2 == 0):
            dist.barrier()
            start_s = time.perf_counter()
            sides[side]()
            slowest_s = torch.tensor(time.perf_counter() - start_s, dtype=torch.float64)
            dist.all_reduce(slowest_s, dist.ReduceOp.MAX)
            if number >= NUM_WARMUP_ROUNDS:
                times_s[side].append(float(slowest_s))
    if dist.get_rank() == 0:
        average = ParameterAverage(find_ddp(model))
        found = {
            "times_s": times_s,
            "num_bytes": average.num_bytes,
            "num_messages": average.num_collectives,
            "num_tensors": len([*model.parameters()]),
        }
        out.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    accelerator.end_training()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
