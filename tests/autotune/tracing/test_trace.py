"""Traces against the real allocator of a CPU, and against each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from autotune.configuration import NO_CHECKPOINTING, Checkpointing, Configuration
from autotune.cost.memory.evaluation import evaluation_law
from autotune.cost.memory.law import static_sizes, training_law
from autotune.cost.memory.trace import TracedWorkload
from autotune.errors import WorkloadError
from autotune.tracing.attention import inside_kernels, kernel_for
from autotune.tracing.made_up import make_up
from autotune.tracing.request import Target, TraceRequest
from autotune.tracing.trace import fake_mode, trace
from autotune.workload.spec import Dtype, Lora, Task, WorkloadSpec
from tests.autotune.export.jobs import quiet
from tests.testing.memory_jobs import Job

EVERY_LAYER = Checkpointing(every_n_layers=1)
BOTH = (NO_CHECKPOINTING, EVERY_LAYER)
PLAIN = (NO_CHECKPOINTING,)
CPU = Target()
CUDA = Target(kind="cuda", capability=(8, 9))


LANGUAGE_MODEL = Job(family="GPT-2", dropout=True, padded=True)
"""Traced whole, once for all tests; of others, what a test looks at."""


@cache
def traced(
    job: Job,
    target: Target = CPU,
    forms: tuple[Checkpointing, ...] = BOTH,
) -> TracedWorkload:
    with quiet():
        return job.trace(forms=forms, target=target, with_evaluation=job == LANGUAGE_MODEL)


def check(job: Job, configuration: Configuration) -> None:
    """The law agrees with the allocator to a part in ten thousand."""
    forms = BOTH if job == LANGUAGE_MODEL else (configuration.checkpointing,)
    found = traced(job, CPU, forms)
    step = found.of(configuration.checkpointing)
    assert step is not None, found.untraced
    law = training_law(step, configuration.accumulation_steps)
    with quiet():
        real_bytes = job.peak_bytes(configuration)
    predicted_bytes = law.peak_bytes(configuration.micro_batch_size)
    assert predicted_bytes == pytest.approx(real_bytes, rel=1e-4)


@pytest.mark.parametrize(
    ("size", "accumulation_steps", "form"),
    [(1, 1, NO_CHECKPOINTING), (7, 3, NO_CHECKPOINTING), (1, 2, EVERY_LAYER), (9, 1, EVERY_LAYER)],
)
def test_the_law_of_a_language_model_with_dropout_and_padding(
    size: int, accumulation_steps: int, form: Checkpointing
) -> None:
    check(
        LANGUAGE_MODEL,
        Configuration(
            micro_batch_size=size, accumulation_steps=accumulation_steps, checkpointing=form
        ),
    )


def test_shared_heads_without_padding_keep_no_mask() -> None:
    job = Job(family="Llama with GQA")
    check(job, Configuration(micro_batch_size=6, accumulation_steps=2))
    assert traced(job, CPU, PLAIN).facts.attention == ("flash",)


def test_gradients_of_shared_weights_are_summed_as_with_real_tensors() -> None:
    check(Job(family="T5"), Configuration(micro_batch_size=1, accumulation_steps=2))
    check(
        Job(family="GPT-2", precision="bf16"),
        Configuration(micro_batch_size=1, accumulation_steps=1, checkpointing=EVERY_LAYER),
    )


def test_adapters_have_the_only_gradients() -> None:
    job = Job(family="GPT-2", lora=True, precision="bf16", weights=torch.bfloat16)
    check(job, Configuration(micro_batch_size=4, accumulation_steps=2))
    found = traced(job, CPU, PLAIN)
    step = found.of(NO_CHECKPOINTING)
    assert step is not None
    kinds = {kind: size.at(1) for kind, size in static_sizes(step).items()}
    # Adapters are kept in full precision beside weights of half of it, and their state likewise.
    assert found.facts.weights == "bfloat16 and float32"
    assert kinds["optimizer"] < kinds["weights"] / 10


def test_the_accelerate_loop_and_another_optimizer() -> None:
    job = Job(family="GPT-2", driver="accelerate", optim="adamw_torch")
    check(job, Configuration(micro_batch_size=2, accumulation_steps=2))
    assert traced(job, CPU, PLAIN).facts.optimizer.endswith("tensor by tensor")


def test_gradients_of_what_was_picked_are_added_in_place() -> None:
    job = Job(family="T5", smoothing=0.1)
    check(job, Configuration(micro_batch_size=5, accumulation_steps=3))


def test_experts_are_routed_without_values() -> None:
    check(Job(family="Mixtral"), Configuration(micro_batch_size=5, accumulation_steps=1))


def test_the_peak_names_its_place() -> None:
    step = traced(LANGUAGE_MODEL).of(EVERY_LAYER)
    assert step is not None
    peak = training_law(step, 1).peak(30)
    assert peak.phase == "backward"
    assert sum(peak.by_kind.values()) == pytest.approx(peak.num_bytes, abs=len(peak.by_kind))
    parameters = sum(e.size.at(0) for e in step.setup)
    assert peak.by_kind["weights"] == parameters
    assert peak.by_kind["optimizer"] == pytest.approx(2 * parameters, rel=0.01)
    plain = traced(LANGUAGE_MODEL).of(NO_CHECKPOINTING)
    assert plain is not None
    # Logits, their logarithms of probabilities and the gradient of these: 30 rows of 48 tokens.
    assert training_law(plain, 1).peak(30).by_kind["logits"] >= 3 * 30 * 47 * 1000 * 4


def test_evaluation_keeps_no_activations() -> None:
    found = traced(LANGUAGE_MODEL)
    step = found.of(NO_CHECKPOINTING)
    assert step is not None
    assert found.evaluation is not None
    law = evaluation_law(found.evaluation, step)
    assert law.kept_bytes(8) == 0
    assert law.peak_bytes(16) < 0.6 * training_law(step, 1).peak_bytes(16)


def test_a_device_keeps_other_things_than_a_cpu() -> None:
    job = Job(family="GPT-2", dropout=True)
    on_cpu = traced(job, CPU, PLAIN).of(NO_CHECKPOINTING)
    on_device = traced(job, CUDA).of(NO_CHECKPOINTING)
    assert on_cpu is not None
    assert on_device is not None
    # Dropout keeps a byte an element instead of four, and attention is not written out.
    assert traced(job, CUDA).facts.attention == ("efficient",)
    assert training_law(on_device, 1).peak_bytes(8) < training_law(on_cpu, 1).peak_bytes(8)
    # Wherever it is trained, all micro-batches of a step wait there.
    assert [e.size for e in on_device.window] == [e.size for e in on_cpu.window]
    assert {e.kind for e in on_device.window} == {"activations"}
    checkpointed = traced(job, CUDA).of(EVERY_LAYER)
    assert checkpointed is not None
    assert training_law(checkpointed, 1).peak_bytes(8) < training_law(on_device, 1).peak_bytes(8)


@pytest.mark.parametrize(
    ("dtype", "capability", "has_mask", "heads", "kernel"),
    [
        (torch.bfloat16, (8, 0), False, 2, "flash"),
        (torch.float16, (7, 5), False, 4, "efficient"),
        (torch.bfloat16, (7, 5), False, 4, "math"),
        (torch.bfloat16, (8, 0), True, 4, "efficient"),
        (torch.float32, (9, 0), False, 4, "efficient"),
        (torch.float32, (9, 0), False, 2, "math"),
    ],
)
def test_the_attention_kernel_of_a_cuda_device(
    dtype: torch.dtype, capability: tuple[int, int], has_mask: bool, heads: int, kernel: str
) -> None:
    query = torch.empty(1, 4, 8, 64, dtype=dtype, device="meta")
    key = torch.empty(1, heads, 8, 64, dtype=dtype, device="meta")
    target = Target(kind="cuda", capability=capability)
    chosen = kernel_for(
        target, query=query, key=key, value=key, has_mask=has_mask, dtype=query.dtype
    )
    assert chosen == kernel


@pytest.mark.parametrize("is_own", [False, True], ids=("the Trainer's", "the user's"))
def test_state_that_an_optimizer_is_made_with_is_counted_under_every_form(
    tmp_path: Path, is_own: bool
) -> None:
    """On a device, where many are stepped at once by an operator that returns nothing."""
    workload = Job(family="GPT-2", optim="adagrad").load()
    if is_own:
        own = torch.optim.Adagrad(workload.model.parameters())
        workload = replace(workload, optimizers=(own, None))
    request = TraceRequest(
        workload=WorkloadSpec(task="causal-lm"), target=CUDA, forms=BOTH, with_evaluation=False
    )
    with quiet():
        found = trace(workload, request, tmp_path, fake_mode())
    assert found.untraced == ()
    for step in found.steps:
        kinds = {kind: size.at(1) for kind, size in static_sizes(step).items()}
        assert kinds["optimizer"] == pytest.approx(kinds["weights"], rel=0.01)
        assert training_law(step, 1).peak(4).by_kind["optimizer"] == kinds["optimizer"]


def test_compilation_is_left_out_with_all_that_would_switch_it_on(tmp_path: Path) -> None:
    workload = Job(family="GPT-2").load()
    compiled = {"torch_compile": True, "torch_compile_backend": "inductor"}
    request = TraceRequest(workload=WorkloadSpec(task="causal-lm"), forms=PLAIN)
    with quiet():
        found = trace(replace(workload, arguments=compiled), request, tmp_path, fake_mode())
    assert found.untraced == ()
    assert any("Compilation is left out" in note for note in found.facts.notes)


@pytest.mark.parametrize(
    ("dtype", "capability", "size", "num_bytes"),
    [
        # Two tiles of 64 rows and 64 numbers for the 100 rows of each head, and a sum a row.
        (torch.bfloat16, (8, 0), 64, 2 * (16 + 4 * 64 * 64) + 400),
        (torch.float32, (8, 0), 64, 2 * (16 + 4 * 64 * 64) + 400),
        (torch.float32, (6, 1), 64, 400),
        # One tile of 128 rows; the heads have two, or four and tiles of keys and values.
        (torch.float16, (7, 5), 128, 2 * (16 + 4 * 128 * 64) + 400),
        (torch.float16, (8, 0), 256, 4 * (16 + 4 * 128 * 64) + 2 * 4 * 64 * 256 + 400),
    ],
)
def test_the_efficient_kernel_adds_gradients_up_in_memory_of_its_own(
    dtype: torch.dtype, capability: tuple[int, int], size: int, num_bytes: int
) -> None:
    inside = inside_kernels(Target(kind="cuda", capability=capability))
    query = torch.empty(2, 4, 100, size, dtype=dtype, device="meta")
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    scratch = inside[backward]([query] * 4)
    assert scratch is not None
    assert scratch.num_bytes == 2 * 4 * num_bytes


class Routed(GPT2LMHeadModel):  # type: ignore[misc]
    """Asks for rows that only real values can tell."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> object:
        output = super().forward(input_ids, attention_mask=attention_mask, labels=labels)
        output.logits[output.logits > 0].sum()
        return output


def test_what_cannot_be_traced_is_told_in_words(tmp_path: Path) -> None:
    workload = Job(family="GPT-2").load()
    workload.model.__class__ = Routed
    request = TraceRequest(
        workload=WorkloadSpec(task="causal-lm"),
        forms=(NO_CHECKPOINTING, Checkpointing(every_n_layers=1, offload=True)),
    )
    with quiet():
        found = trace(workload, request, tmp_path, fake_mode())
    assert found.steps == ()
    assert "depends on values" in found.untraced[0].reason
    assert "host memory" in found.untraced[1].reason


def write_config(place: Path, **changes: object) -> str:
    config = GPT2Config(
        n_layer=2,
        n_embd=64,
        n_head=2,
        vocab_size=512,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    file = place / "config.json"
    file.write_text(json.dumps(config.to_dict() | changes))
    return str(file)


def test_a_config_alone_is_traced_on_samples_of_the_length_asked_for(tmp_path: Path) -> None:
    spec = WorkloadSpec(
        task="causal-lm",
        model_config=write_config(tmp_path),
        max_length=32,
        lora=Lora(rank=4),
        precision="fp16",
    )
    mode = fake_mode()
    with quiet():
        workload = make_up(spec, tmp_path, mode)
        request = TraceRequest(workload=spec, target=CUDA, forms=(NO_CHECKPOINTING,))
        found = trace(workload, request, tmp_path, mode)
    assert found.untraced == ()
    # Long samples are many tokens, and on this machine only one of them is held.
    tokens = workload.data_collator(workload.longest_rows(64))["input_ids"]
    assert tokens.shape == (64, 32)
    assert tokens.untyped_storage().nbytes() == 32 * 8
    facts = found.facts
    assert (facts.sequence_length, facts.precision, facts.target) == (32, "fp16", "cuda")
    assert facts.num_trainable_parameters < facts.num_parameters / 10
    assert any("fp16" in note for note in facts.notes)


@pytest.mark.parametrize(
    ("dtype", "named", "weights", "why"),
    [
        ("auto", "bfloat16", "bfloat16", "as the model's config says"),
        ("auto", None, "float32", "since the model's config names no number format"),
        ("float32", "bfloat16", "float32", "as asked for"),
    ],
)
def test_weights_are_held_as_the_config_or_the_user_says(
    tmp_path: Path, dtype: Dtype, named: str | None, weights: str, why: str
) -> None:
    place = write_config(tmp_path, dtype=named)
    spec = WorkloadSpec(task="causal-lm", model_config=place, max_length=8, dtype=dtype)
    with quiet():
        found = make_up(spec, tmp_path, fake_mode())
    assert {str(p.dtype) for p in found.model.parameters()} == {f"torch.{weights}"}
    assert found.facts.weights_from == why


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"dtype": "float8_e4m3fn"}, "weights in float8_e4m3fn", "--dtype bfloat16"),
        ({"dtype": "int8"}, "weights in int8", "--dtype bfloat16"),
        ({"n_embd": "many"}, "expected int, got str", "Mend its config"),
    ],
)
def test_what_a_config_cannot_say_is_told_with_what_to_mend(
    tmp_path: Path, changes: dict[str, object], cause: str, remedy: str
) -> None:
    spec = WorkloadSpec(
        task="causal-lm", model_config=write_config(tmp_path, **changes), dtype="auto"
    )
    with quiet(), pytest.raises(WorkloadError) as caught:
        make_up(spec, tmp_path, fake_mode())
    assert cause in caught.value.cause
    assert remedy in (caught.value.remedy or "")


def test_an_image_is_as_large_as_the_config_says(tmp_path: Path) -> None:
    place = tmp_path / "config.json"
    sizes = {"image_size": 32, "patch_size": 8, "num_channels": 1, "hidden_size": 24}
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    place.write_text(json.dumps({"model_type": "vit"} | sizes | shape))
    spec = WorkloadSpec(task="image-classification", model_config=str(place))
    mode = fake_mode()
    with quiet():
        workload = make_up(spec, tmp_path, mode)
        request = TraceRequest(workload=spec, forms=(NO_CHECKPOINTING,), is_padded=True)
        found = trace(workload, replace(request, with_evaluation=False), tmp_path, mode)
    assert found.untraced == ()
    assert found.facts.batch.bytes_per_sample == 32 * 32 * 4 + 8
    assert not found.facts.is_padded
    assert found.facts.notes == ("Images are taken to be 1 × 32 × 32 (channels × height × width).",)


SMALL: dict[str, dict[str, object]] = {
    "bart": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "vocab_size": 100,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 32,
    },
    "t5": {
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": 100,
        "decoder_start_token_id": 0,
    },
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 100,
        "eos_token_id": [2, 3],
    },
    "bert": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 100,
    },
    "convnext": {"hidden_sizes": [8, 8], "depths": [2, 1], "num_stages": 2, "image_size": 64},
    "deit": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 48,
        "patch_size": 16,
    },
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]},
    "clip": {
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 48,
            "patch_size": 16,
        }
    },
}


def traced_of(
    place: Path,
    kind: str,
    task: Task,
    changes: Mapping[str, object] | None = None,
    *,
    target: Target = CUDA,
    max_length: int = 16,
) -> TracedWorkload:
    """A step of a small config alone."""
    file = place / "config.json"
    file.write_text(json.dumps({"model_type": kind, **SMALL[kind], **(changes or {})}))
    spec = WorkloadSpec(task=task, model_config=str(file), max_length=max_length, dtype="auto")
    mode = fake_mode()
    request = TraceRequest(
        workload=spec,
        target=target,
        forms=PLAIN,
        is_padded=True,
        with_evaluation=False,
    )
    with quiet():
        return trace(make_up(spec, place, mode), request, place, mode)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bart", {}),
        ("t5", {}),
        ("llama", {}),
        ("bert", {"problem_type": "multi_label_classification", "num_labels": 5}),
        ("bert", {"num_labels": 1}),
    ],
    ids=("bart", "t5", "llama", "several classes", "a number"),
)
def test_heads_of_classes_get_the_samples_that_they_look_for(
    tmp_path: Path, kind: str, changes: dict[str, object]
) -> None:
    """An end of the text, a token to pad with, labels in the form of their loss."""
    assert traced_of(tmp_path, kind, "sequence-classification", changes).untraced == ()


def test_the_image_of_a_model_of_images_and_texts_is_as_large_as_its_part_says(
    tmp_path: Path,
) -> None:
    found = traced_of(tmp_path, "clip", "image-classification")
    assert found.untraced == ()
    assert "3 × 48 × 48" in found.facts.notes[0]


def test_a_bias_that_is_learned_may_be_of_any_length(tmp_path: Path) -> None:
    """The kernel wants it aligned, and its gradient is."""
    found = traced_of(tmp_path, "t5", "seq2seq-lm", max_length=27)
    assert found.untraced == ()
    assert found.facts.attention == ("efficient",)


def test_rates_that_layers_read_off_a_line_are_known(tmp_path: Path) -> None:
    found = traced_of(tmp_path, "convnext", "image-classification", {"drop_path_rate": 0.5})
    assert found.untraced == ()


def test_a_config_without_a_class_takes_the_first_head_of_its_kind(tmp_path: Path) -> None:
    found = traced_of(tmp_path, "deit", "image-classification")
    assert found.facts.model_class == "DeiTForImageClassification"


def test_what_convolutions_work_in_is_said_not_to_be_counted(tmp_path: Path) -> None:
    for kind, is_told in (("clip", False), ("resnet", True)):
        found = traced_of(tmp_path, kind, "image-classification")
        assert any("convolutions" in note for note in found.facts.notes) is is_told


def test_an_attention_that_needs_a_device_is_traced_as_torchs_and_told(tmp_path: Path) -> None:
    found = traced_of(tmp_path, "llama", "causal-lm", {"attn_implementation": "flash_attention_2"})
    assert found.untraced == ()
    assert "flash_attention_2" in found.facts.notes[0]
    plain = traced_of(tmp_path, "llama", "causal-lm")
    assert training_law(found.steps[0], 1).peak(8) == training_law(plain.steps[0], 1).peak(8)


def test_quantised_weights_that_a_config_cannot_have_are_told(tmp_path: Path) -> None:
    found = traced_of(
        tmp_path,
        "llama",
        "causal-lm",
        {
            "dtype": "bfloat16",
            "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
        },
    )
    assert found.untraced == ()
    assert found.facts.weights == "bfloat16"
    (note,) = found.facts.notes
    assert "quantised weights (bitsandbytes)" in note


def test_half_precision_before_ampere_writes_attention_out_in_bf16_alone(tmp_path: Path) -> None:
    turing = Target(kind="cuda", capability=(7, 5))
    kernels = {
        dtype: traced_of(
            tmp_path, "bert", "masked-lm", {"dtype": dtype}, target=turing
        ).facts.attention
        for dtype in ("float16", "bfloat16")
    }
    assert kernels == {"float16": ("efficient",), "bfloat16": ("math",)}


def test_bf16_that_stands_for_fp16_has_the_kernels_of_fp16(tmp_path: Path) -> None:
    spec = WorkloadSpec(
        task="causal-lm", model_config=write_config(tmp_path), max_length=32, precision="fp16"
    )
    mode = fake_mode()
    request = TraceRequest(
        workload=spec, target=Target(kind="cuda", capability=(7, 5)), forms=PLAIN
    )
    with quiet():
        found = trace(make_up(spec, tmp_path, mode), request, tmp_path, mode)
    assert found.facts.attention == ("efficient",)


def test_a_length_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    spec = WorkloadSpec(task="causal-lm", model_config=write_config(tmp_path), max_length=65)
    with quiet(), pytest.raises(WorkloadError, match="positions for 64 tokens"):
        make_up(spec, tmp_path, fake_mode())


@pytest.mark.parametrize("size", [3, 16])
def test_products_of_half_precision_work_in_memory_of_their_own(size: int) -> None:
    """Which grows with the rows at first, and then no more."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("This CPU multiplies bf16 without a kernel that allocates.")
    job = Job(family="ViT", dropout=True, precision="bf16")
    found = traced(job, CPU, (EVERY_LAYER,))
    step = found.of(EVERY_LAYER)
    assert step is not None
    with quiet():
        real_bytes = job.peak_bytes(
            Configuration(micro_batch_size=size, accumulation_steps=1, checkpointing=EVERY_LAYER)
        )
    predicted_bytes = training_law(step, 1).peak_bytes(size)
    assert 0.99 * real_bytes <= predicted_bytes <= 1.01 * real_bytes
