"""The scripts hold the code that the job needs, and nothing else."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.configuration import Checkpointing
from autotune.errors import ExportError
from autotune.export.bundle import Bundle
from autotune.export.installed import Installed
from autotune.export.scripts import accelerate_script, trainer_script
from autotune.export.scripts.preparation import Preparation
from autotune.workload.spec import Columns, Lora, Task, WorkloadSpec
from tests.autotune.export.bundles import FACTS, SPEC, bundle
from tests.autotune.export.fakes import NEW, OLD

PLAIN = Preparation()


def accelerator(made: Bundle, installed: Installed = NEW) -> str:
    return accelerate_script.render(made, PLAIN, installed)


def trainer(made: Bundle, installed: Installed = NEW) -> str:
    return trainer_script.render(made, PLAIN, installed)


def spec_of(task: Task) -> WorkloadSpec:
    columns = {
        "causal-lm": Columns(text="text"),
        "masked-lm": Columns(text="text"),
        "sequence-classification": Columns(text="text", text_pair="other", label="label"),
        "token-classification": Columns(tokens="tokens", label="ner_tags"),
        "question-answering": Columns(question="question", context="context", answers="answers"),
        "seq2seq-lm": Columns(source="document", target="summary"),
    }[task]
    return replace(SPEC, task=task, columns=columns)


TASKS: tuple[Task, ...] = (
    "causal-lm",
    "masked-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "seq2seq-lm",
)
ODD = Preparation(
    column_names=("text", "label"),
    drops_blank_rows=True,
    least_tokens=2,
    has_class_names=True,
    model_input_names=("input_ids", "attention_mask"),
    adds_prefix_space=True,
    pad_token="tokenizer.eos_token",
    sets_pad_token_id=True,
    appends_end_token=True,
    float32_option="torch_dtype",
    has_other_problem_type=True,
    has_other_head_size=True,
)


def streamed_ranks(spec: WorkloadSpec) -> Bundle:
    """Ranks that average, on a stream, with a parameter that is not always used."""
    return bundle(
        replace(spec, streaming=True),
        replace(FACTS, num_rows=None),
        micro_batch_size=8,
        accumulation_steps=1,
        world_size=2,
        local_sgd_steps=8,
        has_unused_parameters=True,
    )


def all_kinds() -> dict[str, str]:
    """Scripts for every task and every branch of the renderers."""
    found = {}
    for task in TASKS:
        spec = spec_of(task)
        lora = Lora(rank=8, alpha=16, dropout=0.1, target_modules=("query", "value"))
        rich = replace(
            spec,
            model=None,
            model_config="/models/a-place-with-a-long-name/of-a-config/that-hardly-fits",
            tokenizer="/tokenizers/other",
            dataset="owner/name",
            dataset_config="subset",
            split="validation[:50%]",
            packing=task in ("causal-lm", "masked-lm"),
            precision="fp16",
            optim="lion_32bit",
            learning_rate=2e-4,
            lora=lora,
            seed=3,
            trust_remote_code=True,
        )
        every_second = Checkpointing(every_n_layers=2, offload=True)
        for name, made, preparation in (
            ("plain", bundle(spec, micro_batch_size=8, accumulation_steps=1), PLAIN),
            ("split", bundle(spec, repair_loss=True), replace(PLAIN, can_pad=False)),
            ("rich", bundle(rich, checkpointing=every_second, total_steps=50), ODD),
            ("stream", bundle(replace(spec, streaming=True), world_size=2), ODD),
            ("ranks", bundle(spec, world_size=2, device_type="cuda"), PLAIN),
            ("local", bundle(spec, world_size=2, local_sgd_steps=8), PLAIN),
            ("local_stream", streamed_ranks(spec), ODD),
            ("nodes", bundle(spec, world_size=2, num_nodes=2, address="10.0.0.1"), PLAIN),
        ):
            found[f"accelerator_{task}_{name}"] = accelerate_script.render(made, preparation, NEW)
            found[f"trainer_{task}_{name}"] = trainer_script.render(made, preparation, NEW)
    return found


def test_linter_and_formatter_have_nothing_to_say(tmp_path: Path) -> None:
    for name, text in all_kinds().items():
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(text)
    rules = "E,F,W,I,B,UP,SIM,C4,PIE,RET,PERF"
    # Long lines are left to the formatter: a path or a command is as long as it is.
    check = ["check", "--isolated", "--no-cache", "--select", rules, "--ignore", "E501"]
    shape = ["format", "--isolated", "--no-cache", "--check", "--diff"]
    for arguments in (check, shape):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, str(tmp_path)],
            # Elsewhere than here, where autotune is not the reader's own code.
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-6000:]


def test_no_name_is_defined_without_being_used() -> None:
    for name, text in all_kinds().items():
        tree = ast.parse(text)
        defined = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        } | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        used = {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        assert defined <= used, name


def test_one_micro_batch_a_step_needs_no_window() -> None:
    text = accelerator(bundle(micro_batch_size=8, accumulation_steps=1))
    assert "for batch in train_dataloader:\n            loss = model(**batch).loss\n" in text
    for word in ("ACCUMULATION_STEPS", "window", "no_sync", "gather"):
        assert word not in text


def test_the_window_of_one_process_gathers_nothing() -> None:
    text = accelerator(bundle())
    assert "Accelerator(\n        gradient_accumulation_steps=ACCUMULATION_STEPS," in text
    assert "accelerator.no_sync(model)" in text
    assert "gather" not in text
    assert "num_processes" not in text


def test_the_window_of_several_ranks_counts_the_items_of_all() -> None:
    text = accelerator(bundle(world_size=2))
    assert "accelerator.gather(total).sum()" in text
    assert "scale = ACCUMULATION_STEPS * accelerator.num_processes\n" in text


def test_the_loop_averages_in_optimizer_steps() -> None:
    text = accelerator(bundle(world_size=2, local_sgd_steps=8))
    assert "LOCAL_SGD_STEPS = 8\n" in text
    assert (
        "    with LocalSGD(\n"
        "        accelerator=accelerator,\n"
        "        model=model,\n"
        "        local_sgd_steps=LOCAL_SGD_STEPS,\n"
        "        enabled=accelerator.num_processes > 1,\n"
        "    ) as local_sgd:\n"
    ) in text
    step = (
        "                optimizer.zero_grad()\n"
        "                if accelerator.sync_gradients:\n"
        "                    local_sgd.step()\n"
        "                step += 1\n"
    )
    assert step in text
    block, after = text.split(") as local_sgd:\n")[1].split("\n\n", 1)
    assert "save_pretrained" not in block, "parameters are equal only after the block"
    assert "save_pretrained" in after
    assert "gather" not in text, "a collective in every step is what local SGD avoids"
    assert "autotune.FusedLocalSGD" in text


def test_the_trainer_averages_by_a_callback() -> None:
    text = trainer(bundle(world_size=2, local_sgd_steps=8))
    assert "from autotune import LocalSGDCallback\n" in text
    assert "LOCAL_SGD_STEPS = 8\n" in text
    assert (
        "    LocalSGDCallback(local_sgd_steps=LOCAL_SGD_STEPS).attach(trainer)\n\n"
        "    trainer.train()\n"
    ) in text
    assert "        average_tokens_across_devices=False,\n" in text


@pytest.mark.parametrize("render", [accelerator, trainer])
def test_nothing_averages_where_ranks_exchange_or_there_is_one(
    render: Callable[[Bundle, Installed], str],
) -> None:
    for made in (bundle(), bundle(world_size=2), bundle(local_sgd_steps=8)):
        text = render(made, NEW)
        assert "LocalSGD" not in text
        assert "average_tokens" not in text


@pytest.mark.parametrize("render", [accelerator, trainer])
def test_another_number_of_ranks_is_warned_of(render: Callable[[Bundle, Installed], str]) -> None:
    text = render(bundle(world_size=2), NEW)
    assert "NUM_RANKS = 2\n" in text
    assert "!= NUM_RANKS:\n        warnings.warn(\n" in text
    assert "NUM_RANKS" not in render(bundle(), NEW)


def test_the_wrapper_is_told_of_parameters_without_gradient() -> None:
    unused = "DistributedDataParallelKwargs(find_unused_parameters=True)"
    assert unused in accelerator(bundle(world_size=2, has_unused_parameters=True))
    assert unused not in accelerator(bundle(world_size=2))
    assert unused not in accelerator(bundle(has_unused_parameters=True))
    option = "ddp_find_unused_parameters=True,"
    assert option in trainer(bundle(world_size=2, has_unused_parameters=True))
    assert option not in trainer(bundle(world_size=2))


def test_every_rank_reads_a_stream_by_itself() -> None:
    made = streamed_ranks(SPEC)
    assert "DataLoaderConfiguration(dispatch_batches=False)" in accelerator(made)
    assert 'accelerator_config={"dispatch_batches": False},' in trainer(made)


@pytest.mark.parametrize(
    ("task", "count"),
    [
        ("sequence-classification", 'len(batch["input_ids"])'),
        ("token-classification", '(batch["labels"] != -100).sum()'),
        ("causal-lm", '(batch["labels"][:, 1:] != -100).sum()'),
    ],
)
def test_losses_are_weighed_by_what_they_are_means_of(task: Task, count: str) -> None:
    assert f"[{count} for batch in window]" in accelerator(bundle(spec_of(task)))


def test_trainer_is_mended_only_where_parity_needs_it() -> None:
    assert "model_accepts_loss_kwargs" not in trainer(bundle())
    mended = trainer(bundle(repair_loss=True))
    assert "trainer.model_accepts_loss_kwargs = False\n\n    trainer.train()" in mended


def test_the_fields_are_defaults_of_the_command_line() -> None:
    text = trainer(bundle(replace(SPEC, precision="bf16", learning_rate=3e-5), total_steps=70))
    for line in (
        'output_dir="trainer-output",',
        "per_device_train_batch_size=4,",
        "gradient_accumulation_steps=2,",
        "bf16=True,",
        "learning_rate=3e-05,",
        "max_steps=70,",
    ):
        assert f"        {line}\n" in text


def test_checkpointing_by_its_new_and_its_old_name() -> None:
    every_layer = bundle(checkpointing=Checkpointing(every_n_layers=1))
    assert (
        "model.activation_checkpointing_enable(\n"
        '        activation_checkpointing_kwargs={"use_reentrant": False}\n    )'
    ) in accelerator(every_layer)
    assert (
        "model.gradient_checkpointing_enable(\n"
        '        gradient_checkpointing_kwargs={"use_reentrant": False}\n    )'
    ) in accelerator(every_layer, OLD)
    assert "gradient_checkpointing=True," in trainer(every_layer, OLD)
    assert "checkpointing" not in accelerator(bundle())


@pytest.mark.parametrize("render", [accelerator, trainer])
def test_a_form_that_the_old_version_lacks_is_refused(
    render: Callable[[Bundle, Installed], str],
) -> None:
    with pytest.raises(ExportError, match="no every_n_layers"):
        render(bundle(checkpointing=Checkpointing(every_n_layers=2)), OLD)


@pytest.mark.parametrize(
    ("optim", "installed", "code"),
    [
        (None, NEW, "lr=LEARNING_RATE, weight_decay=0.0, fused=True\n"),
        ("adamw_torch", NEW, "model.parameters(), lr=LEARNING_RATE, weight_decay=0.0"),
        (None, OLD, "model.parameters(), lr=LEARNING_RATE, weight_decay=0.0"),
        ("sgd", NEW, "torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)"),
        ("lion_32bit", NEW, 'TrainingArguments(optim="lion_32bit", learning_rate=LEARNING_RATE)'),
    ],
)
def test_the_optimizer_is_the_one_of_the_trials(
    optim: str | None, installed: Installed, code: str
) -> None:
    assert code in accelerator(bundle(replace(SPEC, optim=optim)), installed)


@pytest.mark.parametrize("name", sorted(accelerate_script._OPTIMIZERS))
def test_optimizers_are_made_as_trainer_makes_them(name: str) -> None:
    import torch
    import transformers
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(optim=name, learning_rate=accelerate_script.LEARNING_RATE)
    class_, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
    weights = [torch.nn.Parameter(torch.zeros(2))]
    # Trainer hands the decay over with its groups of parameters.
    decay = {} if name in ("sgd",) else {"weight_decay": arguments.weight_decay}
    theirs = class_([{"params": weights, **decay}], **options)
    module, path, ours_options = accelerate_script._OPTIMIZERS[name]
    ours_class = torch.optim if module == "torch" else transformers
    for part in path.removeprefix("optim.").split("."):
        ours_class = getattr(ours_class, part)
    ours = ours_class(weights, lr=accelerate_script.LEARNING_RATE, **ours_options)  # type: ignore[operator]
    assert type(ours) is type(theirs)
    plain = {k: v for k, v in theirs.param_groups[0].items() if k != "params"}
    assert {k: v for k, v in ours.param_groups[0].items() if k != "params"} == plain


def test_the_defaults_are_those_of_training_arguments() -> None:
    from transformers import TrainingArguments

    arguments = TrainingArguments()
    assert arguments.learning_rate == accelerate_script.LEARNING_RATE
    assert arguments.num_train_epochs == accelerate_script.NUM_EPOCHS
    assert arguments.max_grad_norm == accelerate_script.MAX_GRAD_NORM
    assert arguments.lr_scheduler_type == "linear"
    assert (arguments.warmup_steps, arguments.weight_decay) == (0, 0.0)


@pytest.mark.parametrize("mark", ["-", "_"])
def test_a_loop_takes_its_flags_in_either_spelling(mark: str) -> None:
    lines = [line.strip() for line in accelerator(bundle()).splitlines() if "parser." in line]
    words = [f"--max{mark}steps", "20", f"--output{mark}dir", "out"]
    names = {"parser": argparse.ArgumentParser()}
    exec("\n".join(lines).replace("parse_args()", f"parse_args({words!r})"), names)
    assert vars(names["args"]) == {"max_steps": 20, "output_dir": "out"}


def test_a_stream_needs_a_number_of_steps_and_no_shuffling() -> None:
    stream = bundle(replace(SPEC, streaming=True))
    assert "max_steps=1000," in trainer(stream)
    text = accelerator(stream)
    assert 'parser.add_argument("--max-steps", "--max_steps", type=int, default=1000)' in text
    assert "streaming=True" in text
    for word in ("shuffle", "NUM_EPOCHS", "DataLoaderConfiguration", "len(train_dataloader)"):
        assert word not in text


def test_fp16_holds_the_schedule_back_when_a_step_was_skipped() -> None:
    text = accelerator(bundle(replace(SPEC, precision="fp16")))
    assert "if not accelerator.optimizer_step_was_skipped:\n" in text
    assert 'mixed_precision="fp16"' in text
    assert "skipped" not in accelerator(bundle())


def test_the_commands_are_in_the_scripts() -> None:
    assert "\n    OMP_NUM_THREADS=2 python trainer.py\n" in trainer(bundle())
    launch = "accelerate launch --config_file accelerate.yaml accelerator.py"
    assert f"\n    OMP_NUM_THREADS=2 {launch}\n" in accelerator(bundle())
    two = bundle(world_size=2)
    assert "torchrun --nproc-per-node 2 trainer.py" in trainer(two)
    assert "        use_cpu=True,\n" in trainer(two)
    assert "torchrun --nproc-per-node 2 accelerator.py" in accelerator(two)
    assert "        cpu=True,\n" in accelerator(two)
    two = replace(two, device_type="cuda")
    assert "torchrun --nproc-per-node 2 trainer.py" in trainer(two)
    nodes = replace(two, num_nodes=2, address="10.0.0.1")
    head = trainer(nodes).split('"""')[1]
    assert "One line on each node:\n\n    OMP_NUM_THREADS=2 torchrun --nnodes 2 " in head
    assert head.count(" torchrun ") == 2


@pytest.mark.parametrize("name", ['a"""b"', "a\\N{b}\\x", "two\nlines", "it's"])
def test_a_name_may_hold_whatever_a_path_may(name: str) -> None:
    made = replace(bundle(replace(SPEC, model=f"/models/{name}")), run="run")
    for text in (trainer(made), accelerator(made)):
        tree = ast.parse(text)
        first, *_ = (ast.get_docstring(tree) or "").splitlines()
        shown = " ".join(name.split())
        assert first == f"Fine-tunes {shown} with the settings of autotune run run."
        values = {
            ast.unparse(n.targets[0]): n.value for n in tree.body if isinstance(n, ast.Assign)
        }
        assert ast.literal_eval(values["MODEL"]) == f"/models/{name}"
