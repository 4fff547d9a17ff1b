"""`accelerator.py`: the job in a plain loop, as the guides of Accelerate write it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from autotune.errors import ExportError
from autotune.export.accelerate_config import PRECISION
from autotune.export.bundle import Bundle
from autotune.export.installed import Installed, checkpointing_options
from autotune.export.scripts.job_code import JobCode
from autotune.export.scripts.preparation import Preparation
from autotune.export.scripts.python_source import LINE_LENGTH, call, keywords, literal
from autotune.export.scripts.task_code import render_job
from autotune.export.scripts.trainer_script import (
    STREAM_STEPS,
    assemble,
    counted_ranks,
    starting,
    title,
)
from autotune.workload.loaded import LossItems

NAME = "accelerator.py"
LEARNING_RATE = 5e-5
"""What TrainingArguments train with where nobody says otherwise, like the next two."""
NUM_EPOCHS = 3
MAX_GRAD_NORM = 1.0

_ADAMW = {"weight_decay": 0.0}
_OPTIMIZERS: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "adamw_torch": ("torch", "optim.AdamW", _ADAMW),
    "adamw_torch_fused": ("torch", "optim.AdamW", {**_ADAMW, "fused": True}),
    "sgd": ("torch", "optim.SGD", {}),
    "adagrad": ("torch", "optim.Adagrad", {}),
    "rmsprop": ("torch", "optim.RMSprop", {}),
    "adafactor": (
        "transformers",
        "Adafactor",
        {"scale_parameter": False, "relative_step": False},
    ),
}
"""Name of an optimizer → module, class and options with which Trainer makes it by default."""


def render(bundle: Bundle, preparation: Preparation, installed: Installed) -> str:
    """The whole script."""
    code = render_job(bundle, preparation)
    code.imports.add("argparse")
    code.imports.add("torch.utils.data", "DataLoader")
    code.imports.add("accelerate", "Accelerator")
    code.imports.add("accelerate.utils", "set_seed")
    code.imports.add("transformers", "get_scheduler")
    _constants(code, bundle)
    body = [
        _arguments(bundle),
        _accelerator(code, bundle) + counted_ranks(code, bundle, "accelerator.num_processes"),
        *code.data,
        "\n".join(["    set_seed(SEED)", *code.model, *_model_settings(bundle, installed)]),
        f"{code.collator}\n{_loader(bundle)}",
        _optimizer(code, bundle, installed),
        _schedule(code, bundle),
        _loop(code, bundle),
        _save(bundle),
    ]
    return assemble(_docstring(bundle), code, body)


def gathers_counts(bundle: Bundle) -> bool:
    """Whether a loss is weighed by its share in what all ranks have.

    Under local SGD ranks exchange nothing in a step, so that each weighs by its own.
    """
    counts_differ = bundle.configuration.accumulation_steps > 1 or bundle.loss_items != "rows"
    return bundle.has_ranks and counts_differ and not bundle.uses_local_sgd


def weighs_losses(bundle: Bundle) -> bool:
    """Whether micro-batches of one optimizer step may count differently."""
    return bundle.configuration.accumulation_steps > 1 or gathers_counts(bundle)


def _docstring(bundle: Bundle) -> str:
    return (
        f'"""{title(bundle)}\n'
        "\n"
        f"{starting(bundle, NAME)}\n"
        "\n"
        "Add --max-steps 20 --output-dir out for a short try.\n"
        '"""'
    )


def _constants(code: JobCode, bundle: Bundle) -> None:
    spec, configuration = bundle.spec, bundle.configuration
    code.constants.append(f"MICRO_BATCH_SIZE = {configuration.micro_batch_size}")
    if weighs_losses(bundle):
        code.constants.append(f"ACCUMULATION_STEPS = {configuration.accumulation_steps}")
    code.constants.append(f"LEARNING_RATE = {spec.learning_rate or LEARNING_RATE}")
    if bundle.total_steps is None and not spec.streaming:
        code.constants.append(f"NUM_EPOCHS = {NUM_EPOCHS}")
    code.constants.append(f"MAX_GRAD_NORM = {MAX_GRAD_NORM}")
    code.constants.append(f"SEED = {spec.seed}")
    if bundle.uses_local_sgd:
        code.constants.append(f"LOCAL_SGD_STEPS = {configuration.local_sgd_steps}")


def _arguments(bundle: Bundle) -> str:
    steps = bundle.total_steps or (STREAM_STEPS if bundle.spec.streaming else None)
    default = f", default={steps}" if steps is not None else ""
    return (
        "    parser = argparse.ArgumentParser()\n"
        f'    parser.add_argument("--max-steps", "--max_steps", type=int{default})\n'
        '    parser.add_argument("--output-dir", "--output_dir", default="accelerator-output")\n'
        "    args = parser.parse_args()"
    )


def _accelerator(code: JobCode, bundle: Bundle) -> str:
    arguments = []
    if weighs_losses(bundle):
        arguments.append("gradient_accumulation_steps=ACCUMULATION_STEPS")
    if bundle.has_cpu_ranks:
        arguments.append("cpu=True")
    if bundle.spec.precision != "fp32":
        arguments.append(f"mixed_precision={literal(PRECISION[bundle.spec.precision])}")
    loading: dict[str, object] = {}
    if not bundle.spec.streaming:
        # Without it the order of the rows would depend on what drew random numbers before.
        loading["use_seedable_sampler"] = True
    elif bundle.has_ranks:
        # Else rank 0 would read for all and send every batch to them.
        loading["dispatch_batches"] = False
    if loading:
        code.imports.add("accelerate.utils", "DataLoaderConfiguration")
        options = ", ".join(keywords(loading))
        arguments.append(f"dataloader_config=DataLoaderConfiguration({options})")
    if bundle.has_ranks and bundle.has_unused_parameters:
        code.imports.add("accelerate.utils", "DistributedDataParallelKwargs")
        handler = "DistributedDataParallelKwargs(find_unused_parameters=True)"
        arguments.append(f"kwargs_handlers=[{handler}]")
    return call("accelerator = Accelerator(", arguments, indent=4)


def _model_settings(bundle: Bundle, installed: Installed) -> list[str]:
    lines = []
    if bundle.spec.task in ("causal-lm", "seq2seq-lm"):
        lines.append("    model.config.use_cache = False")
    checkpointing = bundle.configuration.checkpointing
    if checkpointing.is_on:
        options = checkpointing_options(checkpointing)
        missing = sorted(set(options) - installed.model_switch_options)
        if missing:
            raise ExportError(
                f"transformers {installed.version('transformers')} has no {missing[0]} for "
                "checkpointing.",
                "Export with the version that the run was measured with.",
            )
        name = installed.checkpointing_argument
        arguments = keywords({f"{name}_kwargs": {"use_reentrant": False}, **options})
        lines.append(call(f"model.{installed.model_switch}(", arguments, indent=4))
    return lines


def _loader(bundle: Bundle) -> str:
    arguments = ["dataset", "batch_size=MICRO_BATCH_SIZE"]
    if not bundle.spec.streaming:
        arguments.append("shuffle=True")
    arguments.append("collate_fn=data_collator")
    return call("train_dataloader = DataLoader(", arguments, indent=4)


def _optimizer(code: JobCode, bundle: Bundle, installed: Installed) -> str:
    name = bundle.spec.optim or installed.default_optim
    if name in _OPTIMIZERS:
        module, cls, options = _OPTIMIZERS[name]
        if module == "torch":
            code.imports.add("torch")
            cls = f"torch.{cls}"
        else:
            code.imports.add(module, cls)
        arguments = ["model.parameters()", "lr=LEARNING_RATE", *keywords(options)]
        made = call(f"optimizer = {cls}(", arguments, indent=4)
    else:
        code.imports.add("transformers", "Trainer", "TrainingArguments")
        arguments = [f"optim={literal(name)}", "learning_rate=LEARNING_RATE"]
        made = (
            f"{call('optimizer_args = TrainingArguments(', arguments, indent=4)}\n"
            "    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(optimizer_args)\n"
            "    optimizer = optimizer_class(model.parameters(), **options)"
        )
    prepared = call(
        "model, optimizer, train_dataloader = accelerator.prepare(",
        ["model", "optimizer", "train_dataloader"],
        indent=4,
    )
    return f"{made}\n{prepared}"


def _schedule(code: JobCode, bundle: Bundle) -> str:
    lines = []
    steps = "args.max_steps"
    if bundle.total_steps is None and not bundle.spec.streaming:
        per_epoch = "len(train_dataloader)"
        if bundle.configuration.accumulation_steps > 1:
            code.imports.add("math")
            per_epoch = "math.ceil(len(train_dataloader) / ACCUMULATION_STEPS)"
        lines = [
            f"    steps_per_epoch = {per_epoch}",
            "    max_steps = args.max_steps or NUM_EPOCHS * steps_per_epoch",
        ]
    else:
        lines = [f"    max_steps = {steps}"]
    scheduler = call(
        "scheduler = get_scheduler(",
        ['"linear"', "optimizer", "num_warmup_steps=0", "num_training_steps=max_steps"],
        indent=4,
    )
    return "\n".join([*lines, scheduler])


def _loop(code: JobCode, bundle: Bundle) -> str:
    """The loop; its core is what `AccelerateStepper` drives in the trials."""
    indent = 8 if bundle.uses_local_sgd else 4
    body = _window(code, bundle, indent + 8) if weighs_losses(bundle) else _single(bundle)
    lines = ["model.train()", "step = 0", "while step < max_steps:", *(f"    {ln}" for ln in body)]
    loop = "\n".join(" " * indent + line for line in lines)
    if not bundle.uses_local_sgd:
        return loop
    code.imports.add("accelerate.local_sgd", "LocalSGD")
    opening = call(
        "with LocalSGD(",
        [
            "accelerator=accelerator",
            "model=model",
            "local_sgd_steps=LOCAL_SGD_STEPS",
            "enabled=accelerator.num_processes > 1",
        ],
        tail=") as local_sgd:",
        indent=4,
    )
    head = textwrap.indent(_LOCAL_SGD, "    # ")
    return f"{head}\n{opening}\n{loop}"


_LOCAL_SGD = """\
Every rank trains by itself. Their parameters are averaged after every LOCAL_SGD_STEPS
optimizer steps, and at the end of the block: evaluate and save only after it.
autotune.FusedLocalSGD takes the same arguments and averages faster: only what is
trained, in a few large messages instead of one for each tensor."""


def _single(bundle: Bundle) -> list[str]:
    """One micro-batch an optimizer step: nothing has to be weighed."""
    return [
        "for batch in train_dataloader:",
        "    loss = model(**batch).loss",
        "    accelerator.backward(loss)",
        *_step(bundle, "loss"),
    ]


_ITEMS: Mapping[LossItems, tuple[str, str, str]] = {
    "rows": ('len(batch["input_ids"])', "num_rows", "rows"),
    "tokens": ('(batch["labels"] != -100).sum()', "num_tokens", "labelled tokens"),
    "shifted_tokens": (
        '(batch["labels"][:, 1:] != -100).sum()',
        "num_tokens",
        "predicted tokens",
    ),
}
"""What a loss is the mean of → code that counts it, the name of the counts, words."""


def _window(code: JobCode, bundle: Bundle, indent: int) -> list[str]:
    """Several micro-batches: each loss counts by its share of the whole window's items.

    Args:
        code: Takes the imports.
        bundle: What is trained.
        indent: Columns that the body of the window will stand at.
    """
    code.imports.add("contextlib", "nullcontext")
    code.imports.add("itertools", "islice")
    count, noun, words = _ITEMS[bundle.loss_items]
    total, scaled = f"sum({noun})", "loss * ACCUMULATION_STEPS"
    why = (
        f"The model's loss is a mean over the {words} of a batch. Weighing it by the share of its "
        "batch in the whole window makes accumulation exact, in the last, short window of an epoch "
        "too. "
    )
    gathered = []
    if gathers_counts(bundle):
        if bundle.loss_items == "rows":
            code.imports.add("torch")
            total = f"torch.tensor({total}, device=accelerator.device)"
        why += (
            "scale makes up for two divisions: accelerator.backward's by ACCUMULATION_STEPS, and "
            "the mean of the gradients over the ranks."
        )
        gathered = [
            "total = accelerator.gather(total).sum()",
            "scale = ACCUMULATION_STEPS * accelerator.num_processes",
        ]
        scaled = "loss * scale"
    else:
        why += "accelerator.backward divides by ACCUMULATION_STEPS."
    comment = textwrap.wrap(why, LINE_LENGTH - indent - 2)
    counts = call(f"{noun} = [", [f"{count} for batch in window"], tail="]", indent=indent)
    body = [
        *(f"# {line}" for line in comment),
        *textwrap.dedent(counts).splitlines(),
        f"total = {total}",
        *gathered,
        "step_loss = 0.0",
        "for i, batch in enumerate(window):",
        "    is_last = i == len(window) - 1",
        "    with nullcontext() if is_last else accelerator.no_sync(model):",
        f"        loss = model(**batch).loss * {noun}[i] / total",
        f"        accelerator.backward({scaled})",
        "    step_loss += loss.detach()",
    ]
    return [
        "batches = iter(train_dataloader)",
        "while window := list(islice(batches, ACCUMULATION_STEPS)):",
        *(f"    {line}" for line in body),
        *_step(bundle, "step_loss"),
    ]


def _step(bundle: Bundle, loss: str) -> list[str]:
    skipped = bundle.spec.precision == "fp16"
    return [
        "    accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)",
        "    optimizer.step()",
        *(
            # fp16 skips a step whose gradients overflowed; the schedule waits with it.
            ["    if not accelerator.optimizer_step_was_skipped:", "        scheduler.step()"]
            if skipped
            else ["    scheduler.step()"]
        ),
        "    optimizer.zero_grad()",
        *(_AVERAGING if bundle.uses_local_sgd else []),
        "    step += 1",
        "    if step % 10 == 0:",
        *(["        step_loss = accelerator.reduce(step_loss)"] if gathers_counts(bundle) else []),
        f'        accelerator.print(f"step {{step}}/{{max_steps}}: loss {{{loss}:.4f}}")',
        "    if step == max_steps:",
        "        break",
    ]


_AVERAGING = ["    if accelerator.sync_gradients:", "        local_sgd.step()"]
"""Guarded, so that step() counts optimizer steps whatever the accumulation."""


def _save(bundle: Bundle) -> str:
    saving = call(
        "accelerator.unwrap_model(model).save_pretrained(",
        [
            "args.output_dir",
            "is_main_process=accelerator.is_main_process",
            "save_function=accelerator.save",
        ],
        indent=4,
    )
    return (
        "    accelerator.wait_for_everyone()\n"
        f"{saving}\n"
        "    if accelerator.is_main_process:\n"
        "        tokenizer.save_pretrained(args.output_dir)"
        + ("\n    accelerator.end_training()" if bundle.has_ranks else "")
    )
