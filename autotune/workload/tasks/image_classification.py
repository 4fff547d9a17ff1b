"""One class an image: known well enough to be estimated, on images that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from autotune.errors import WorkloadError
from autotune.workload.loaded import Collator
from autotune.workload.tasks.recipe import Recipe, Samples, Tokenised

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ImageClassification(Recipe):
    """One class an image; images are brought by live objects only."""

    auto_model = "AutoModelForImageClassification"
    usual_max_length = 0

    def tokenise(self, rows: Samples, max_length: int) -> Tokenised:
        """Refuses: images are no tokens."""
        _refuse()

    def collator(self, model: PreTrainedModel) -> Collator:
        """Refuses, as above."""
        _refuse()


def _refuse() -> NoReturn:
    raise WorkloadError(
        "Images cannot be read from a dataset that is only named.",
        "Call autotune.tune(trainer) in the script that reads them.",
    )
