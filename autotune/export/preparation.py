"""What model, tokenizer and data turned out to need, so that scripts hold that and nothing else.

Only the child process looks, through the loader's own functions; scripts are rendered from the
plain answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.export.bundle import Bundle

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from autotune.workload.data import AnyDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What the loader did with this model and this data beyond the task's own recipe."""

    column_names: tuple[str, ...] | None = None
    """Columns of a stream that does not tell them; None where the dataset does."""
    drops_blank_rows: bool = False
    drops_short_rows: bool = False
    """Rows of fewer than two tokens, which teach a causal language model nothing."""
    has_class_names: bool = False
    """The dataset declares the names of its classes; else they are its distinct labels."""
    labels_are_numbers: bool = False
    """The tags of the rows are the numbers of their classes already."""
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
    from autotune.workload.model import load_config
    from autotune.workload.tokenizer import load_tokenizer

    spec = bundle.workload
    config = load_config(spec)
    tokenizer = load_tokenizer(spec, [])
    raw = open_dataset(spec, scratch)
    names = None if raw.column_names is not None else tuple(column_names(raw))
    notes: list[str] = []
    filled = drop_blank(raw, spec.columns, spec, notes)
    feature = (raw.features or {}).get(spec.columns.label or "")
    inner = getattr(feature, "feature", feature)
    can_pad = tokenizer.pad_token is not None
    return Preparation(
        column_names=names,
        drops_blank_rows=spec.streaming or bool(notes),
        drops_short_rows=spec.task == "causal-lm"
        and not spec.packing
        and (spec.streaming or _num_rows(filled) != bundle.facts.num_rows),
        has_class_names=getattr(inner, "names", None) is not None,
        pad_token=_pad_token(bundle, tokenizer),
        can_pad=can_pad,
        sets_pad_token_id=can_pad
        and (getattr(config, "pad_token_id", None) is None or spec.pad_token is not None),
        appends_end_token=spec.packing and _appends_end_token(tokenizer),
        float32_option=_float32_option(config),
        has_other_problem_type=getattr(config, "problem_type", None)
        not in (None, "single_label_classification"),
        has_other_head_size=_has_other_head_size(bundle, config, filled),
    )


def _num_rows(dataset: AnyDataset) -> int | None:
    return len(dataset) if hasattr(dataset, "__len__") else None


def _pad_token(bundle: Bundle, tokenizer: PreTrainedTokenizerBase) -> str | None:
    from transformers import AutoTokenizer

    spec = bundle.workload
    if tokenizer.pad_token is None:
        return None
    own = AutoTokenizer.from_pretrained(
        tokenizer.name_or_path, trust_remote_code=spec.trust_remote_code
    )
    if own.pad_token == tokenizer.pad_token:
        return None
    is_end = tokenizer.pad_token == tokenizer.eos_token
    return "tokenizer.eos_token" if is_end else f'"{tokenizer.pad_token}"'


def _appends_end_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    ids = tokenizer("text")["input_ids"]
    closes = bool(ids) and ids[-1] in set(tokenizer.all_special_ids)
    return tokenizer.eos_token_id is not None and not closes


def _float32_option(config: PretrainedConfig) -> str | None:
    # The argument was called torch_dtype before configs had a field `dtype`.
    name = "dtype" if hasattr(config, "dtype") else "torch_dtype"
    stated = getattr(config, name, None)
    return None if stated is None or str(stated).endswith("float32") else name


def _has_other_head_size(bundle: Bundle, config: PretrainedConfig, dataset: AnyDataset) -> bool:
    """Whether the checkpoint has a head for this task with another number of classes."""
    endings = {
        "sequence-classification": "ForSequenceClassification",
        "token-classification": "ForTokenClassification",
    }
    ending = endings.get(bundle.workload.task)
    architectures = getattr(config, "architectures", None) or []
    if ending is None or not any(name.endswith(ending) for name in architectures):
        return False
    from autotune.workload.tasks import recipe_class

    recipe = recipe_class(bundle.workload.task)(
        columns=bundle.workload.columns, tokenizer=None, packing=False
    )
    before = config.num_labels
    recipe.learn_labels(dataset)
    recipe.configure(config)
    return bool(config.num_labels != before)
