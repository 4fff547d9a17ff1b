"""`trainer.py`: the job under a Trainer, as the guides of Transformers write it."""

from __future__ import annotations

from autotune.export import launch
from autotune.export.bundle import Bundle
from autotune.export.installed import Installed
from autotune.export.job_code import JobCode
from autotune.export.preparation import Preparation
from autotune.export.python_source import call, keywords
from autotune.export.settings import all_fields
from autotune.export.task_code import render_job

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
    body = [
        "    parser = HfArgumentParser(TrainingArguments)\n"
        f"{defaults}\n"
        "    (args,) = parser.parse_args_into_dataclasses()",
        *code.data,
        "\n".join(["    set_seed(args.seed)", *code.model]),
        code.collator,
        _trainer(bundle),
        "    trainer.train()\n    trainer.save_model()",
    ]
    return assemble(_docstring(bundle), code, body)


def _docstring(bundle: Bundle) -> str:
    start = f"{launch.prefix(bundle)}{launch.trainer(bundle)}"
    return (
        f'"""{title(bundle)}\n'
        "\n"
        f"    {start}\n"
        "\n"
        "Every field of TrainingArguments is a flag, for example --max_steps 20 --output_dir out.\n"
        '"""'
    )


def title(bundle: Bundle) -> str:
    """The first sentence of a script."""
    spec = bundle.spec
    verb = "Fine-tunes" if spec.model is not None else "Trains"
    return f"{verb} {spec.name} with the settings of autotune run {bundle.run}."


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
