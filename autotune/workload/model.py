"""Builds the model of a workload, with trained or with random weights."""

from __future__ import annotations

import difflib
import inspect
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.workload.spec import ESTIMATED_TASKS, TASKS, WorkloadSpec
from autotune.workload.translate import foreign_errors

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel


_OWN_ATTENTION = (None, "eager", "sdpa")
"""Kinds of attention that torch itself computes, wherever it runs; None lets it choose."""
_POSITIONS = ("position_embeddings", "wpe", "embed_positions", "positions_embed")
"""How tables of positions are called."""
_AUTO_BY_DEFAULT = 'defaults to `"auto"`'
"""What is said of `dtype` where it goes by the config when it is left out."""


def load_config(spec: WorkloadSpec) -> PretrainedConfig:
    """The configuration of the model.

    Raises:
        WorkloadError: It is not there, or of an architecture that transformers does not know.
    """
    from transformers import AutoConfig

    source = spec.model or spec.model_config or ""
    _check_type(source)
    with foreign_errors(
        f"The model {source}",
        remedy="Mend its config, or give the config.json that `save_pretrained` wrote."
        if os.path.exists(source)
        else "Give a directory with a config.json, a hub id, or --model-config.",
    ):
        return AutoConfig.from_pretrained(source, trust_remote_code=spec.trust_remote_code)


def _check_type(source: str) -> None:
    """Raises where a config that is here is of no architecture that transformers knows.

    Raises:
        WorkloadError: That is so.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path = Path(source)
    file = path / "config.json" if os.path.isdir(path) else path
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return  # On the hub, or broken; either is told by whoever loads it.
    known = list(CONFIG_MAPPING.keys())
    if not isinstance(config, dict) or "auto_map" in config:
        return
    kind = config.get("model_type")
    if kind is None and not any(name in file.name for name in known):
        raise WorkloadError(
            f"The config {file} does not say which model it is of.",
            'Add its model_type, for example "llama".',
        )
    if kind is not None and kind not in known:
        near = difflib.get_close_matches(str(kind), known, n=3, cutoff=0.6)
        raise WorkloadError(
            f"The installed transformers knows no model_type {kind!r}, which {file} names.",
            (f"Did you mean {' or '.join(near)}? " if near else "")
            + "A newer transformers may know it.",
        )


def take_own_attention(config: PretrainedConfig, notes: list[str]) -> None:
    """Lets transformers choose an attention that runs on a CPU, where the config wants another."""
    named = getattr(config, "_attn_implementation", None)
    if named in _OWN_ATTENTION:
        return
    config._attn_implementation = None
    notes.append(
        f"The config asks for the attention {named}, which runs on a device alone; it is traced as "
        "that of torch, which takes as much or, for the masks of padded samples, more."
    )


def _check_head(spec: WorkloadSpec, config: PretrainedConfig, auto_model: str) -> None:
    """Raises where the architecture has no head for the task.

    Raises:
        WorkloadError: That is so; the message names the tasks that it has one for.
    """
    import transformers

    def has_head(name: str) -> bool:
        return type(config) in getattr(transformers, name)._model_mapping

    if has_head(auto_model) or auto_model in (getattr(config, "auto_map", None) or {}):
        return
    from autotune.workload.tasks import recipe_class

    # A job with data is one to be trained.
    offered = ESTIMATED_TASKS if spec.dataset is None else TASKS
    others = [task for task in offered if has_head(recipe_class(task).auto_model)]
    raise WorkloadError(
        f"The model {spec.model or spec.model_config} cannot be trained for {spec.task}: "
        f"{config.model_type} has no head for it in the installed transformers.",
        f"Choose another --task: {', '.join(others)}."
        if others
        else f"Choose a model that {auto_model} supports.",
    )


def build_model(
    spec: WorkloadSpec, config: PretrainedConfig, auto_model: str, notes: list[str]
) -> PreTrainedModel:
    """The model in training mode, its weights as the spec says, the same for the same seed.

    Weights that the files do not hold (a new head) are drawn after the spec's seed is set.

    Raises:
        WorkloadError: The architecture has no such head, or the weights cannot be loaded.
    """
    import transformers

    source = spec.model or spec.model_config or ""
    auto_class = getattr(transformers, auto_model)
    dtype, _ = weights_dtype(spec, config)
    options = {_dtype_option(config): dtype, "trust_remote_code": spec.trust_remote_code}
    _check_head(spec, config, auto_model)
    if getattr(config, "architectures", ()) is None:
        # Where there are several heads, transformers looks through them for the one to take.
        config.architectures = []
    transformers.set_seed(spec.seed)
    named = getattr(config, "_attn_implementation", None)
    with foreign_errors(
        f"The model {source}",
        remedy=f"Choose a model that {auto_model} supports, or another --task."
        if named in _OWN_ATTENTION
        else f"Install what the attention {named} of its config needs, or write sdpa there.",
    ):
        if spec.model is None:
            _note_quantised(config, dtype, notes)
            model = auto_class.from_config(config, **options)
        else:
            model, info = auto_class.from_pretrained(
                source,
                config=config,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **options,
            )
            _note_new_weights(model, info, source, notes)
    return model.train()


def _note_quantised(config: PretrainedConfig, dtype: torch.dtype, notes: list[str]) -> None:
    """Says that weights are whole numbers elsewhere, where the config is of such a model."""
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return
    told = quantisation if isinstance(quantisation, dict) else vars(quantisation)
    method = str(getattr(told.get("quant_method"), "value", told.get("quant_method")) or "")
    notes.append(
        f"The config is of quantised weights{f' ({method})' if method else ''}. Weights that are "
        f"made from a config are not: in {str(dtype).removeprefix('torch.')} they take more."
    )


def _note_new_weights(
    model: PreTrainedModel, info: dict[str, object], source: str, notes: list[str]
) -> None:
    new = {_key(k) for k in (*_keys(info, "missing_keys"), *_keys(info, "mismatched_keys"))}
    if not new:
        return
    if new >= {name for name, _ in model.named_parameters()}:
        raise WorkloadError(
            f"The weights in {source} do not belong to its config.json: none of them fits.",
            "Give a complete model directory, or --model-config for random weights.",
        )
    heads = sorted({name.rsplit(".", 1)[0] for name in new})
    shown = ", ".join(heads[:4]) + (f" and {len(heads) - 4} more" if len(heads) > 4 else "")
    notes.append(f"New weights, drawn with the seed: {shown}.")


def _keys(info: dict[str, object], name: str) -> list[object]:
    found = info.get(name) or []
    return list(found) if isinstance(found, (list, set, tuple)) else []


def _key(entry: object) -> str:
    return str(entry[0]) if isinstance(entry, tuple) else str(entry)


def accepted(model: PreTrainedModel, names: Sequence[str]) -> list[str]:
    """Those of `names` that the model takes, so that rows hold no more than that."""
    taken = inspect.signature(model.forward).parameters
    return [name for name in names if name in taken]


def check_vocabulary(model: PreTrainedModel, tokenizer: object, source: str) -> None:
    """Raises where the tokenizer knows tokens that the model has no embedding for.

    Raises:
        WorkloadError: The vocabulary is larger than the embedding table.
    """
    num_tokens = len(tokenizer)  # type: ignore[arg-type]
    num_embeddings = model.get_input_embeddings().weight.shape[0]
    if num_tokens > num_embeddings:
        raise WorkloadError(
            f"The tokenizer has {num_tokens} tokens, but the model {source} has embeddings for "
            f"{num_embeddings} only.",
            "Give the tokenizer that belongs to the model with --tokenizer, or a config with "
            f"vocab_size {num_tokens}.",
        )


def max_positions(model: PreTrainedModel) -> tuple[int | None, bool]:
    """Tokens that the model has positions for, and whether more than these are impossible.

    Rotary and relative positions have no table that ends, so that longer samples are possible
    there. Tables with a padding row, as RoBERTa's, lose the rows up to it.
    """
    import torch

    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None, False
    has_table = False
    for name, module in model.named_modules():
        if name.endswith(_POSITIONS) and isinstance(module, torch.nn.Embedding):
            has_table = True
            if name.endswith("position_embeddings") and module.padding_idx is not None:
                limit = min(limit, module.num_embeddings - module.padding_idx - 1)
    return limit, has_table


def chosen_max_length(
    spec: WorkloadSpec,
    model: PreTrainedModel,
    usual: int,
    tokenizer_limit: int | None,
    notes: list[str],
) -> int:
    """Tokens that a sample is cut at: what was asked for, else what task and model suggest.

    Args:
        spec: What was asked for.
        model: Which positions it has.
        usual: What the task suggests.
        tokenizer_limit: What the tokenizer suggests, where there is one.
        notes: Told where more is asked for than the model was made for.

    Raises:
        WorkloadError: The model has no positions for what was asked for.
    """
    limit, is_hard = max_positions(model)
    if spec.max_length is None:
        return min(n for n in (usual, tokenizer_limit, limit) if n is not None)
    if limit is not None and spec.max_length > limit:
        if is_hard:
            raise WorkloadError(
                f"The model has positions for {limit} tokens, and samples of up to "
                f"{spec.max_length} were asked for.",
                f"Give --max-length {limit} or less.",
            )
        notes.append(
            f"Samples of up to {spec.max_length} tokens go beyond the {limit} that the model was "
            "made for."
        )
    return spec.max_length


def _dtype_option(config: PretrainedConfig) -> str:
    # The argument was called torch_dtype before configs had a field `dtype`.
    return "dtype" if hasattr(config, "dtype") else "torch_dtype"


def weights_dtype(spec: WorkloadSpec, config: PretrainedConfig) -> tuple[torch.dtype, str]:
    """The number format that the weights are held in, and why, as the end of a sentence.

    Left to itself, a model that is made of a config has its weights as that says. So it is with one
    that is loaded, where the installed transformers goes by the config; before, it took fp32.

    Raises:
        WorkloadError: The config names one that nothing can be trained in.
    """
    import torch
    from transformers import PreTrainedModel

    if spec.dtype != "auto":
        found: torch.dtype = getattr(torch, spec.dtype)
        return found, "as asked for"
    told = PreTrainedModel.from_pretrained.__doc__ or ""
    if spec.model is not None and _AUTO_BY_DEFAULT not in told:
        return torch.float32, "which the installed transformers loads them in by default"
    named = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(named, str):
        named = getattr(torch, named, None)
    if isinstance(named, torch.dtype):
        if not named.is_floating_point or named.itemsize < torch.float16.itemsize:
            raise WorkloadError(
                f"The config of the model holds weights in {str(named).removeprefix('torch.')}, "
                "which are not trained.",
                "Say what they are held in while they are, for example --dtype bfloat16.",
            )
        return named, "as the model's config says"
    return torch.float32, "since the model's config names no number format"


def has_batch_norm(model: torch.nn.Module) -> bool:
    """Whether the model computes statistics over its micro-batches."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(module, _BatchNorm) for module in model.modules())


def batch_dependent_loss(model: torch.nn.Module) -> str | None:
    """Why the loss of a sample depends on its batch, as far as the model's config tells."""
    if getattr(getattr(model, "config", None), "output_router_logits", False):
        return "the router's auxiliary loss balances the experts over the batch"
    return None
