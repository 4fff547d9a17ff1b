"""What an estimate costs: an 8-billion-parameter config on two cores, first and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from pydantic import JsonValue

from autotune.configuration import NO_CHECKPOINTING
from autotune.cost.memory.outside import Target
from autotune.errors import AutotuneError
from autotune.estimating.ask import EstimateRequest, estimate
from autotune.workload.spec import Lora, WorkloadSpec
from tests.benchmarks.harness import Context, Reading, Report, Row, say

ONE_FORM_S, TABLE_S, AGAIN_S = 10.0, 40.0, 1.0
HOST_BYTES = 2**30
NUM_REPEATS = 5

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Llama 3 8B, as its config.json has it."""
_SMALL = {"num_hidden_layers": 2, "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024}
"""What a smoke run changes of it."""


def run(context: Context) -> Report:
    """Times one form, the whole table, and the kept answer; reads the memory of every process."""
    config = context.directory / "llama-8b.json"
    config.write_text(json.dumps(LLAMA_8B | (_SMALL if context.quick else {})))
    rows = [_one_form(config, context)]
    details: dict[str, JsonValue] = {}
    for name, options in (
        ("full training", ()),
        ("LoRA 16", ("--lora-rank", "16")),
    ):
        rows += _table(name, config, options, context, details)
    return Report(rows=tuple(rows), details=details)


def _one_form(config: Path, context: Context) -> Row:
    """Micro-batch × one checkpointing form, in this process with its child."""
    say("estimates one checkpointing form")
    request = EstimateRequest(
        spec=WorkloadSpec(
            task="causal-lm",
            model_config=str(config),
            precision="bf16",
            max_length=2048,
            lora=Lora(rank=16),
        ),
        target=Target(
            name="80 GiB", kind="cuda", architecture="sm_90", total_bytes=80 * 2**30, total_from="–"
        ),
        forms=(NO_CHECKPOINTING,),
    )
    samples = []
    for _ in range(1 if context.quick else 3):
        start_s = time.perf_counter()
        answer = estimate(request, fresh=True)
        samples.append(time.perf_counter() - start_s)
        if answer["untraced"]:
            raise AutotuneError(f"The form could not be traced: {answer['untraced']}")
    reading = Reading.of_samples(samples, "s")
    return Row(
        what="8 B config, LoRA 16, micro-batch × one checkpointing form",
        reading=reading,
        target=f"at most {ONE_FORM_S:g} s",
        verdict="passed" if reading.value <= ONE_FORM_S else "failed",
    )


def _table(
    name: str,
    config: Path,
    options: tuple[str, ...],
    context: Context,
    details: dict[str, JsonValue],
) -> list[Row]:
    """The whole table by the command line, then the same call again."""
    say(f"estimates the whole table: {name}")
    cache = context.directory / f"estimates-{len(options)}"
    words = (
        *("--model-config", str(config), "--task", "causal-lm", "--max-length", "2048"),
        *("--precision", "bf16", "--device-memory", "141GiB", "--json", *options),
    )
    first = _Call(words, cache)
    again = [_Call(words, cache) for _ in range(NUM_REPEATS)]
    details[name] = json.loads(first.out)
    table = Reading.of_samples([first.wall_s], "s")
    kept = Reading.of_samples([call.wall_s for call in again], "s")
    host = Reading.of_samples([float(first.peak_bytes)], "bytes")
    document = json.loads(first.out)
    num_entries = sum(len(form["entries"]) for form in document["forms"])
    return [
        Row(
            what=f"8 B config, {name}: the whole table",
            reading=table,
            target=f"at most {TABLE_S:g} s",
            verdict="passed" if table.value <= TABLE_S else "failed",
            note=f"{num_entries} entries",
        ),
        Row(
            what=f"8 B config, {name}: host memory of all its processes",
            reading=host,
            target="at most 1 GiB",
            verdict="passed" if host.value <= HOST_BYTES else "failed",
        ),
        Row(
            what=f"8 B config, {name}: the same call again",
            reading=kept,
            target=f"below {AGAIN_S:g} s",
            verdict="passed" if kept.value < AGAIN_S else "failed",
        ),
    ]


class _Call:
    """One call of the command, and what it took."""

    def __init__(self, words: tuple[str, ...], cache: Path) -> None:
        start_s = time.perf_counter()
        # A process of its own waits for the command and watches what it takes.
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, json.dumps(words)],
            env={**os.environ, "AUTOTUNE_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.wall_s = time.perf_counter() - start_s
        if done.returncode not in (0, 4):
            raise AutotuneError(f"The estimate failed: {done.stderr[-500:]}")
        *rest, last = done.stdout.splitlines()
        self.out = "\n".join(rest)
        self.peak_bytes = int(last)


_MEASURE = """
import contextlib, json, psutil, subprocess, sys, threading, time
command = [sys.executable, "-m", "autotune", "estimate", *json.loads(sys.argv[1])]
process = subprocess.Popen(command, stdout=subprocess.PIPE)
peak = 0
def bytes_of(one):
    # What processes share counts once, where the system tells.
    full = one.memory_full_info()
    return getattr(full, "pss", full.rss)
def watch():
    global peak
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            here = psutil.Process(process.pid)
            peak = max(peak, sum(map(bytes_of, [here, *here.children(recursive=True)])))
        time.sleep(0.2)
watcher = threading.Thread(target=watch)
watcher.start()
out, _ = process.communicate()
watcher.join()
sys.stdout.write(out.decode())
print(peak)
sys.exit(process.returncode)
"""
