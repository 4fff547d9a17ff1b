"""Versions of transformers that are not installed here."""

from __future__ import annotations

from autotune.export.installed import Installed

NEW = Installed(
    versions=(("torch", "2.13.0"), ("transformers", "5.24.0"), ("accelerate", "1.15.0")),
    argument_names=frozenset(
        {"activation_checkpointing", "gradient_checkpointing", "bf16"}
        | {"average_tokens_across_devices", "ddp_find_unused_parameters", "accelerator_config"}
    ),
    default_optim="adamw_torch_fused",
    model_switch="activation_checkpointing_enable",
    model_switch_options=frozenset(
        {"self", "activation_checkpointing_kwargs", "every_n_layers", "offload"}
    ),
)
OLD = Installed(
    versions=(("torch", "2.6.0"), ("transformers", "4.50.0"), ("accelerate", "1.2.0")),
    argument_names=frozenset({"gradient_checkpointing", "bf16", "ddp_find_unused_parameters"}),
    default_optim="adamw_torch",
    model_switch="gradient_checkpointing_enable",
    model_switch_options=frozenset({"self", "gradient_checkpointing_kwargs"}),
)
