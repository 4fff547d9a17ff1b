"""`trainer.py`: the job under a Trainer, as the guides of Transformers write it."""

from __future__ import annotations

from autotune.export import launch
from autotune.export.bundle import Bundle
from autotune.export.installed import Installed
from autotune.export.scripts.job_code import JobCode
from autotune.export.scripts.preparation import Preparation
from autotune.export.scripts.python_source import call, keywords
from autotune.export.scripts.task_code import render_job
from autotune.export.settings import all_fields

NAME = "trainer.py"
STREAM_STEPS = 1000
"""Optimizer steps on a stream, which has no length, where the user said none."""


def render(bundle: Bundle, preparation: Preparation, installed: Installed) -> str:
    """The whole script."""
    code = render_job(bundle, preparation)
    code.imports.add("transformers", "HfArgumentParser", "Trainer", "TrainingArguments", "set_seed")
    fields: dict[str, object] = {
        "output_dir": "trainer-output",
        **all_fields(bundle, installed),
    }
    if bundle.spec.streaming:
        fields.setdefault("max_steps", STREAM_STEPS)
    defaults = call("parser.set_defaults(", keywords(fields), indent=4)
    if bundle.uses_local_sgd:
        code.constants.append(f"LOCAL_SGD_STEPS = {bundle.configuration.local_sgd_steps}")
        code.imports.add("autotune", "LocalSGDCallback")
    start = (
        "    parser = HfArgumentParser(TrainingArguments)\n"
        f"{defaults}\n"
        "    (args,) = parser.parse_args_into_dataclasses()"
    )
    body = [
        start + counted_ranks(code, bundle, "args.world_size"),
        *code.data,
        "\n".join(["    set_seed(args.seed)", *code.model]),
        code.collator,
        _trainer(bundle),
        "    trainer.train()\n    trainer.save_model()",
    ]
    return assemble(_docstring(bundle), code, body)


def counted_ranks(code: JobCode, bundle: Bundle, num_ranks: str) -> str:
    """Lines that warn where the script was started on another number of ranks; empty for one.

    Args:
        code: Takes the imports and constants.
        bundle: What is trained.
        num_ranks: Python that yields how many there are.
    """
    if not bundle.has_ranks:
        return ""
    code.imports.add("warnings")
    code.constants.append(f"NUM_RANKS = {bundle.configuration.world_size}")
    return (
        f"\n    if {num_ranks} != NUM_RANKS:\n"
        "        warnings.warn(\n"
        f'            f"{{{num_ranks}}} rank(s) train and not {{NUM_RANKS}}, so that the "\n'
        '            "global batch size is another one.",\n'
        "            stacklevel=2,\n"
        "        )"
    )


def _docstring(bundle: Bundle) -> str:
    return (
        f'"""{title(bundle)}\n'
        "\n"
        f"{starting(bundle, NAME)}\n"
        "\n"
        "Every field of TrainingArguments is a flag, for example --max_steps 20 --output_dir out.\n"
        '"""'
    )


def title(bundle: Bundle) -> str:
    """The first sentence of a script, as it may stand in a docstring."""
    spec = bundle.spec
    verb = "Fine-tunes" if spec.model is not None else "Trains"
    text = f"{verb} {spec.name} with the settings of autotune run {bundle.run}."
    # A name may hold what a string takes for an escape or for its end.
    return " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')


def starting(bundle: Bundle, script: str) -> str:
    """The part of a script's docstring that says how it is started."""
    commands = [f"    {line}" for line in launch.commands(bundle, script)]
    if len(commands) > 1:
        commands = ["One line on each node:", "", *commands]
    # A backslash in a path would be an escape.
    return "\n".join(commands).replace("\\", "\\\\")


def _trainer(bundle: Bundle) -> str:
    lines = [
        "    trainer = Trainer(",
        "        model=model,",
        "        args=args,",
        "        train_dataset=dataset,",
        "        data_collator=data_collator,",
        "        processing_class=tokenizer,",
        "    )",
    ]
    if bundle.repair_loss:
        lines += [
            "    # The loss of this model ignores the count that Trainer hands it, so Trainer has",
            "    # to divide by the accumulation steps itself.",
            "    trainer.model_accepts_loss_kwargs = False",
        ]
    if bundle.uses_local_sgd:
        lines += [
            "    # Every rank trains by itself. Their parameters are averaged after every",
            "    # LOCAL_SGD_STEPS optimizer steps, and before each evaluation and save.",
            "    LocalSGDCallback(local_sgd_steps=LOCAL_SGD_STEPS).attach(trainer)",
        ]
    return "\n".join(lines)


def assemble(docstring: str, code: JobCode, body: list[str]) -> str:
    """Puts a script together from its parts."""
    main = "def main():\n" + "\n\n".join(body)
    sections = [
        f"{docstring}\n\n{code.imports}\n\n" + "\n".join(code.constants),
        *code.functions,
        main,
        'if __name__ == "__main__":\n    main()',
    ]
    return "\n\n\n".join(sections) + "\n"
