"""What model, tokenizer and data turned out to need, so that scripts hold that and nothing else.

Only the child process looks, through the loader's own functions; scripts are rendered from the
plain answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.export.bundle import Bundle
from autotune.export.scripts.python_source import literal
from autotune.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What the loader did with this model and this data beyond the task's own recipe."""

    column_names: tuple[str, ...] | None = None
    """Columns of a stream that does not tell them; None where the dataset does."""
    drops_blank_rows: bool = False
    least_tokens: int | None = None
    """Rows of fewer tokens were left out; None where there were none."""
    has_class_names: bool = False
    """The dataset declares the names of its classes; else they are its distinct labels."""
    model_input_names: tuple[str, ...] | None = None
    """Fields that the tokenizer is to make, where the model does not take all that it would."""
    adds_prefix_space: bool = False
    """The tokenizer takes lists of words only with a space before each."""
    pad_token: str | None = None
    """Python that yields the padding token to set; None where the tokenizer has one."""
    can_pad: bool = True
    sets_pad_token_id: bool = False
    """The model's config names no padding token, or another one."""
    appends_end_token: bool = False
    """The tokenizer does not close a text with a special token, so that packing has to."""
    float32_option: str | None = None
    """Argument that asks for full precision where the checkpoint would load in another."""
    has_other_problem_type: bool = False
    has_other_head_size: bool = False


def look(bundle: Bundle, scratch: Path) -> Preparation:
    """Looks at model, tokenizer and data as the loader does.

    Raises:
        WorkloadError: One of them is gone, or has changed since.
    """
    from autotune.workload.data import column_names, drop_blank, open_dataset
    from autotune.workload.model import accepted, load_config
    from autotune.workload.tasks import recipe_class
    from autotune.workload.tasks.labels import declared_names
    from autotune.workload.tokenizer import load_tokenizer

    spec = bundle.spec
    config = load_config(spec)
    tokenizer = load_tokenizer(spec, [])
    own_tokenizer = _own_tokenizer(tokenizer, spec)
    raw = open_dataset(spec, scratch)
    notes: list[str] = []
    filled = drop_blank(raw, spec.columns, spec, notes)
    recipe = recipe_class(spec.task)(
        columns=spec.columns, tokenizer=tokenizer, packing=spec.packing
    )
    problem_type = getattr(config, "problem_type", None)
    before = config.num_labels
    recipe.learn_labels(filled)
    recipe.configure(config)
    model = _model_without_weights(recipe.auto_model, config, spec)
    taken = accepted(model, tokenizer.model_input_names)
    can_pad = tokenizer.pad_token is not None
    pad_token = None
    if tokenizer.pad_token != own_tokenizer.pad_token:
        is_end = tokenizer.pad_token == tokenizer.eos_token
        pad_token = "tokenizer.eos_token" if is_end else literal(tokenizer.pad_token)
    is_shorter = not spec.streaming and len(filled) != bundle.facts.num_rows
    return Preparation(
        column_names=None if raw.column_names is not None else tuple(column_names(raw)),
        drops_blank_rows=spec.streaming or bool(notes),
        least_tokens=recipe.least_tokens
        if not spec.packing and (is_shorter or (spec.streaming and recipe.least_tokens > 1))
        else None,
        has_class_names=declared_names(filled, spec.columns.label or "") is not None,
        model_input_names=tuple(taken) if taken != list(tokenizer.model_input_names) else None,
        adds_prefix_space=getattr(tokenizer, "add_prefix_space", None)
        != getattr(own_tokenizer, "add_prefix_space", None),
        pad_token=pad_token,
        can_pad=can_pad,
        sets_pad_token_id=can_pad
        and (getattr(config, "pad_token_id", None) is None or spec.pad_token is not None),
        appends_end_token=spec.packing and _appends_end_token(tokenizer),
        float32_option=_float32_option(config),
        has_other_problem_type=spec.task == "sequence-classification"
        and problem_type not in (None, "single_label_classification"),
        has_other_head_size=config.num_labels != before and _has_head(config, type(model)),
    )


def _own_tokenizer(
    tokenizer: PreTrainedTokenizerBase, spec: WorkloadSpec
) -> PreTrainedTokenizerBase:
    """The tokenizer as its files have it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        tokenizer.name_or_path, trust_remote_code=spec.trust_remote_code
    )


def _model_without_weights(
    auto_model: str, config: PretrainedConfig, spec: WorkloadSpec
) -> PreTrainedModel:
    import torch
    import transformers

    with torch.device("meta"):
        return getattr(transformers, auto_model).from_config(
            config, trust_remote_code=spec.trust_remote_code
        )


def _appends_end_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    closes = tokenizer("a")["input_ids"][-1:] != bare[-1:]
    return tokenizer.eos_token_id is not None and not closes


def _float32_option(config: PretrainedConfig) -> str | None:
    # The argument was called torch_dtype before configs had a field `dtype`.
    name = "dtype" if hasattr(config, "dtype") else "torch_dtype"
    stated = getattr(config, name, None)
    return None if stated is None or str(stated).endswith("float32") else name


def _has_head(config: PretrainedConfig, model_class: type) -> bool:
    """Whether the checkpoint was saved with a head of this kind."""
    return model_class.__name__ in (getattr(config, "architectures", None) or [])
