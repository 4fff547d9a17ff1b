"""The call on every rank of a torchrun job, with real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.library import ranks

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


def torchrun(script: str, directory: Path, *, num: int = 2) -> subprocess.CompletedProcess[str]:
    """Runs a script on so many ranks; what each prints goes to a file of its own."""
    path = directory / "train.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(num), str(path)),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


_SAY = """
import os
def say(*words):
    with open(f"rank{os.environ['RANK']}.txt", "a") as file:
        print(*words, file=file)
"""


def said(directory: Path, num: int = 2) -> list[str]:
    return [(directory / f"rank{rank}.txt").read_text() for rank in range(num)]


def test_every_rank_gets_the_answer_or_the_error_of_the_first(tmp_path: Path) -> None:
    ended = torchrun(
        _SAY
        + """
from datetime import timedelta
import time
import torch.distributed as dist
from autotune.errors import AutotuneError, NothingFeasible
from autotune.library.ranks import num_ranks, on_first_rank

# The group's own patience is shorter than the trials take: it must not be used meanwhile.
dist.init_process_group("gloo", timeout=timedelta(seconds=4))

def answer():
    say("asked")
    time.sleep(6)
    return {"answer": 42}

say(num_ranks(), on_first_rank(answer, time_limit_s=60))
dist.barrier()
for error in (
    NothingFeasible("Nothing fits.", "Buy more."), KeyboardInterrupt(), AutotuneError("Broken.")
):
    def ask():
        raise error
    try:
        on_first_rank(ask, time_limit_s=60)
    except BaseException as raised:
        say(type(raised).__name__, *raised.args)
    dist.barrier()
dist.destroy_process_group()
""",
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    found = [
        "2 {'answer': 42}",
        "NothingFeasible Nothing fits.",
        "KeyboardInterrupt",
        "AutotuneError Broken.",
    ]
    first, second = (text.splitlines() for text in said(tmp_path))
    assert first == ["asked", *found]
    assert second == found


def test_a_first_rank_that_takes_too_long_or_dies_is_noticed(tmp_path: Path) -> None:
    start_s = time.monotonic()
    torchrun(
        _SAY
        + """
import time
import torch.distributed as dist
from autotune.library.ranks import on_first_rank
dist.init_process_group("gloo")

def die():
    time.sleep(3)
    os._exit(0)

for ask, time_limit_s in ((lambda: time.sleep(6) or {}, 2), (die, 200)):
    try:
        on_first_rank(ask, time_limit_s=time_limit_s)
    except BaseException as error:
        say(type(error).__name__, *error.args)
""",
        tmp_path,
    )
    late, gone = (tmp_path / "rank1.txt").read_text().splitlines()
    assert "AutotuneError Rank 0 gave no answer within 2 s." in late
    assert "AutotuneError Rank 0, which was tuning for all ranks, is gone" in gone
    assert time.monotonic() - start_s < 120


@pytest.mark.slow
def test_a_job_of_two_ranks_is_tuned_once_for_both(tmp_path: Path) -> None:
    ended = torchrun(
        _SAY
        + """
from pathlib import Path
import autotune
from tests.testing import live
# Checkpointed in the reentrant way, a block that is used twice trains on one process alone.
reentrant = {live.CHECKPOINTING: True, f"{live.CHECKPOINTING}_kwargs": {"use_reentrant": True}}
trainer = live.trainer(Path.cwd(), model=live.used_twice(), ddp_backend="gloo", **reentrant)
found = autotune.tune(trainer, budget=autotune.Budget(trials=1, seconds=240), local_sgd="off",
                      display="none")
found.apply(trainer)
counter = live.BatchCounter(trainer.model)
trainer.args.max_steps = 2
trainer.train()
say(found.configuration.world_size, found.configuration.global_batch_size, sum(counter.rows))
say(any("exchanging gradients comes to" in text for text in found.evidence.recommendation.reasons))
say(found.configuration.checkpointing.is_on)
again = live.trainer(Path("again"), model=live.used_twice(), max_steps=2, **reentrant)
try:
    again.train()
except RuntimeError as error:
    say("mark a variable ready only once" in str(error))
""",
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    first, second = said(tmp_path)
    assert first == second
    # Two ranks, each with 4 rows of the global batch of 8, for 2 steps.
    assert first.splitlines()[0] == "2 8 8"
    # The trials ran on two ranks as well.
    assert first.splitlines()[1] == "True"
    # They checkpoint as the job does, but in a way that its ranks can follow.
    assert first.splitlines()[2:] == ["True", "True"]
    assert len(list((tmp_path / "autotune-runs").iterdir())) == 1


def test_ranks_that_are_not_connected_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.num_ranks() == 1
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="one of 4 ranks that are not connected"):
        ranks.num_ranks()
