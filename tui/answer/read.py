"""The recommendation of a run as the screen takes it: the answer and what may be had instead."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from autotune.configuration import Configuration
from autotune.events import Document
from autotune.export.document import Answer, Readings, RecommendationDocument, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One configuration that may be taken: the recommended one, or an alternative to it."""

    kind: str | None
    """The kind of alternative, as `autotune export --alternative` takes it; None for the answer."""
    configuration: Configuration
    measured: Readings
    reason: str = ""

    @property
    def title(self) -> str:
        """What it is, in two or three words."""
        return self.kind or "recommended"


def answer_of(document: Document | None) -> Answer | str | None:
    """The answer in a recommendation.

    Returns:
        The answer; a sentence where it cannot be read; None where there is none.
    """
    if document is None:
        return None
    try:
        return whole(document).recommendation
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        return f"The recommendation cannot be read ({place}: {fault['msg']})."


def whole(document: Document) -> RecommendationDocument:
    """The document, checked.

    Raises:
        pydantic.ValidationError: A field is missing or of another kind.
    """
    return read(document)


def offers(answer: Answer) -> tuple[Offer, ...]:
    """What may be taken, the recommended one first."""
    return (
        Offer(kind=None, configuration=answer.configuration, measured=answer.measured),
        *(
            Offer(
                kind=other.kind,
                configuration=other.configuration,
                measured=other.measured,
                reason=str((other.model_extra or {}).get("reason") or ""),
            )
            for other in answer.alternatives
        ),
    )
