"""What the installed libraries offer, as plain data: the border at which names are chosen.

Only the child process looks; everything that is rendered from the answer can be tried with the
answer of any other version.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.configuration import Checkpointing


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The features of transformers that decide how the files are written."""

    versions: tuple[tuple[str, str], ...]
    """Names and versions of the libraries that read the files."""
    argument_names: frozenset[str]
    """Fields of TrainingArguments."""
    default_optim: str
    """The optimizer of a TrainingArguments that names none."""
    model_switch: str
    """The method of a model that switches checkpointing on."""
    model_switch_options: frozenset[str]
    """Its parameters."""

    @property
    def checkpointing_argument(self) -> str:
        """The field of TrainingArguments that switches checkpointing on."""
        new = "activation_checkpointing"
        return new if new in self.argument_names else "gradient_checkpointing"

    def version(self, name: str) -> str:
        """The version of a library, or "unknown"."""
        return dict(self.versions).get(name, "unknown")


def checkpointing_options(checkpointing: Checkpointing) -> dict[str, object]:
    """Which layers, and where their inputs wait; what is the default is left out."""
    options: dict[str, object] = {}
    if checkpointing.every_n_layers not in (None, 1):
        options["every_n_layers"] = checkpointing.every_n_layers
    if checkpointing.offload:
        options["offload"] = True
    return options


def look() -> Installed:
    """Looks at the libraries of this process."""
    import inspect
    from dataclasses import fields
    from importlib.metadata import version

    from transformers import PreTrainedModel, TrainingArguments

    switch = next(
        name
        for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        if hasattr(PreTrainedModel, name)
    )
    known = {field.name: field for field in fields(TrainingArguments)}
    # Some versions choose the default when the class is made, others when it is used.
    default = known["optim"].default
    return Installed(
        versions=tuple((n, version(n)) for n in ("torch", "transformers", "accelerate")),
        argument_names=frozenset(known),
        default_optim=str(getattr(default, "value", default)),
        model_switch=switch,
        model_switch_options=frozenset(
            inspect.signature(getattr(PreTrainedModel, switch)).parameters
        ),
    )
