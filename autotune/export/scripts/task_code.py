"""Python of each task: which columns become which tokens, labels and batches."""

from __future__ import annotations

from collections.abc import Callable

from autotune.export.bundle import Bundle
from autotune.export.scripts import job_code
from autotune.export.scripts.job_code import JobCode, collator, map_samples, model, stack
from autotune.export.scripts.preparation import Preparation
from autotune.export.scripts.python_source import call, literal
from autotune.workload.spec import Task, WorkloadSpec


def render_job(bundle: Bundle, preparation: Preparation) -> JobCode:
    """Everything before the training loop."""
    code, spec = JobCode(), bundle.spec
    job_code.constants(code, spec)
    job_code.dataset(code, spec, preparation)
    job_code.tokenizer(code, spec, preparation)
    _TASKS[spec.task](code, spec, preparation)
    job_code.lora(code, spec)
    return code


def _classes(
    code: JobCode, spec: WorkloadSpec, preparation: Preparation, *, are_lists: bool
) -> None:
    """Names and numbers of the classes, as `id2label` and `label2id`."""
    label = literal(spec.columns.label)
    rows = "dataset.take(1000)" if spec.streaming else "dataset"
    if preparation.has_class_names:
        classes = f"dataset.features[{label}]{'.feature' if are_lists else ''}.names"
    elif are_lists:
        classes = f"sorted({{tag for row in {rows} for tag in row[{label}]}})"
    elif spec.streaming:
        classes = f"sorted({{row[{label}] for row in {rows}}})"
    else:
        classes = f"sorted(set(dataset[{label}]))"
    code.data.append(
        f"    classes = {classes}\n"
        "    id2label = {i: str(label) for i, label in enumerate(classes)}\n"
        "    label2id = {label: i for i, label in id2label.items()}"
    )


_CLASS_FIELDS = ["id2label=id2label", "label2id=label2id"]
"""Fields of the config of a model with classes."""


def _sequence_classification(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    columns = spec.columns
    _classes(code, spec, preparation, are_lists=False)
    texts = [f"examples[{literal(n)}]" for n in (columns.text, columns.text_pair) if n is not None]
    labels = f"examples[{literal(columns.label)}]"
    if not preparation.has_class_names:
        labels = f"[label2id[str(label)] for label in {labels}]"
    code.data.append(
        "    def tokenize(examples):\n"
        + call("encoded = tokenizer(", [*texts, *_CUT], indent=8)
        + f'\n        encoded["labels"] = {labels}\n'
        "        return encoded"
    )
    map_samples(code, preparation)
    fields = list(_CLASS_FIELDS)
    if preparation.has_other_problem_type:
        fields.append('problem_type="single_label_classification"')
    model(code, spec, preparation, "AutoModelForSequenceClassification", fields)
    collator(code, preparation, "DataCollatorWithPadding")


_CUT = ["truncation=True", "max_length=MAX_LENGTH"]
"""How the tokenizer is asked to cut."""


def _token_classification(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    columns = spec.columns
    _classes(code, spec, preparation, are_lists=True)
    words, tags = f"examples[{literal(columns.tokens)}]", f"examples[{literal(columns.label)}]"
    number = "tags[word]" if preparation.has_class_names else "label2id[str(tags[word])]"
    code.functions.append(_FIRST_TOKENS)
    code.data.append(
        "    def tokenize(examples):\n"
        + call("encoded = tokenizer(", [words, *_CUT, "is_split_into_words=True"], indent=8)
        + '\n        encoded["labels"] = [\n'
        "            [\n"
        f"                -100 if word is None else {number}\n"
        "                for word in first_tokens(encoded.word_ids(i))\n"
        "            ]\n"
        f"            for i, tags in enumerate({tags})\n"
        "        ]\n"
        "        return encoded"
    )
    map_samples(code, preparation)
    model(code, spec, preparation, "AutoModelForTokenClassification", list(_CLASS_FIELDS))
    collator(code, preparation, "DataCollatorForTokenClassification")


_FIRST_TOKENS = '''\
def first_tokens(word_ids):
    """The word of each token, None for all but the first token of a word."""
    before = None
    for word in word_ids:
        yield None if word == before else word
        before = word'''


def _question_answering(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    columns = spec.columns
    texts = [f"examples[{literal(name)}]" for name in (columns.question, columns.context)]
    options = ['truncation="only_second"', "max_length=MAX_LENGTH", "return_offsets_mapping=True"]
    code.functions.append(_FIND_ANSWER)
    code.data.append(
        "    def tokenize(examples):\n"
        + call("encoded = tokenizer(", [*texts, *options], indent=8)
        + '\n        offsets = encoded.pop("offset_mapping")\n'
        "        spans = [\n"
        "            find_answer(encoded.sequence_ids(i), offsets[i], answers)\n"
        f"            for i, answers in enumerate(examples[{literal(columns.answers)}])\n"
        "        ]\n"
        '        encoded["start_positions"] = [start for start, _ in spans]\n'
        '        encoded["end_positions"] = [end for _, end in spans]\n'
        "        return encoded"
    )
    map_samples(code, preparation)
    model(code, spec, preparation, "AutoModelForQuestionAnswering")
    collator(code, preparation, "DataCollatorWithPadding")


_FIND_ANSWER = '''\
def find_answer(sequence_ids, offsets, answers):
    """First and last token of the first answer, both 0 if there is none or it was cut."""
    if not answers["text"]:
        return 0, 0
    start = answers["answer_start"][0]
    end = start + len(answers["text"][0])
    inside = [
        i
        for i, sequence in enumerate(sequence_ids)
        if sequence == 1 and offsets[i][0] < end and offsets[i][1] > start
    ]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]'''


def _seq2seq_lm(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    source, target = literal(spec.columns.source), literal(spec.columns.target)
    texts = [f"examples[{source}]", f"text_target=examples[{target}]"]
    code.data.append(
        "    def tokenize(examples):\n" + call("return tokenizer(", [*texts, *_CUT], indent=8)
    )
    map_samples(code, preparation, 'len(row["input_ids"]) + len(row["labels"])')
    model(code, spec, preparation, "AutoModelForSeq2SeqLM")
    collator(code, preparation, "DataCollatorForSeq2Seq", "model=model")


def _causal_lm(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    _text(code, spec, preparation, with_labels=True)
    model(code, spec, preparation, "AutoModelForCausalLM")
    if spec.packing:
        stack(code)
    else:
        collator(code, preparation, "DataCollatorForLanguageModeling", "mlm=False")


def _masked_lm(code: JobCode, spec: WorkloadSpec, preparation: Preparation) -> None:
    _text(code, spec, preparation, with_labels=False)
    model(code, spec, preparation, "AutoModelForMaskedLM")
    collator(code, preparation, "DataCollatorForLanguageModeling", "mlm=True")


def _text(
    code: JobCode, spec: WorkloadSpec, preparation: Preparation, *, with_labels: bool
) -> None:
    """Tokenises a text column, or joins the texts and cuts them into blocks."""
    texts = f"examples[{literal(spec.columns.text)}]"
    if not spec.packing:
        code.data.append(
            "    def tokenize(examples):\n" + call("return tokenizer(", [texts, *_CUT], indent=8)
        )
    else:
        end = " + [tokenizer.eos_token_id]" if preparation.appends_end_token else ""
        code.data.append(
            "    def tokenize(examples):\n"
            f'        texts = tokenizer({texts}, verbose=False)["input_ids"]\n'
            f"        joined = [token for ids in texts for token in ids{end}]\n"
            "        ends = range(MAX_LENGTH, len(joined) + 1, MAX_LENGTH)\n"
            "        blocks = [joined[end - MAX_LENGTH : end] for end in ends]\n"
            "        return {\n"
            '            "input_ids": blocks,\n'
            '            "attention_mask": [[1] * MAX_LENGTH for _ in blocks],\n'
            + ('            "labels": blocks,\n' if with_labels else "")
            + "        }"
        )
    map_samples(code, preparation)


_TASKS: dict[Task, Callable[[JobCode, WorkloadSpec, Preparation], None]] = {
    "causal-lm": _causal_lm,
    "masked-lm": _masked_lm,
    "question-answering": _question_answering,
    "seq2seq-lm": _seq2seq_lm,
    "sequence-classification": _sequence_classification,
    "token-classification": _token_classification,
}
