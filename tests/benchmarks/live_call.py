"""A script of a user's that tunes a live Trainer, and watches itself while it does.

Started with the model's directory, the data, a directory for the run and a file for what was seen.
"""

from __future__ import annotations

import csv
import json
import sys
import threading
import time
from pathlib import Path

import psutil
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import autotune

LOOK_INTERVAL_S = 0.05
NUM_ROWS = 2000
STARTED = ("autotune.trial.worker", "autotune.trial.ranks.supervisor", "autotune.export.verify")
"""Modules of processes that start with PyTorch and Transformers, and load model and data."""


def trainer(model: str, data: Path, out: Path) -> Trainer:
    """MiniLM that learns to tell good reviews from bad ones."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    with data.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:NUM_ROWS]
    labels = sorted({row["label"] for row in rows})
    return Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(labels)),
        args=TrainingArguments(
            output_dir=str(out),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=3,
            report_to=[],
        ),
        train_dataset=[
            {**tokenizer(row["text"], truncation=True), "labels": labels.index(row["label"])}
            for row in rows
        ],
        data_collator=DataCollatorWithPadding(tokenizer),
    )


class Watch(threading.Thread):
    """Looks at this process's memory, and at the processes that are started for it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.started: set[int] = set()
        self.is_over = threading.Event()

    def run(self) -> None:
        own = psutil.Process()
        while not self.is_over.wait(LOOK_INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, own.memory_info().rss)
            for child in own.children(recursive=True):
                try:
                    words = child.cmdline()
                    # A fork of a worker bears its words; what is started anew has another parent.
                    is_fork = words == psutil.Process(child.ppid()).cmdline()
                except psutil.Error:
                    continue
                if not is_fork and any(word in STARTED for word in words):
                    self.started.add(child.pid)


def main(model: str, data: str, directory: str, out: str) -> None:
    """Tunes, and writes down what it took."""
    made = trainer(model, Path(data), Path(directory) / "output")
    # Weights are mapped from their file: those that nobody has read yet are not in memory, and
    # would count as ours once they are.
    for parameter in made.model.parameters():
        parameter.detach().sum()
    before_bytes = psutil.Process().memory_info().rss
    watch = Watch()
    watch.start()
    start_s = time.perf_counter()
    recommendation = autotune.tune(
        made,
        budget=autotune.Budget(trials=8, seconds=300.0),
        run_dir=directory,
        display="none",
    )
    wall_s = time.perf_counter() - start_s
    watch.is_over.set()
    watch.join()
    found = {
        "run": str(recommendation.run),
        "wall_s": wall_s,
        "before_bytes": before_bytes,
        "peak_bytes": watch.peak_bytes,
        "num_starts": len(watch.started),
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
