"""Python is written as formatters write it."""

from __future__ import annotations

import ast

import pytest

from autotune.export.scripts.python_source import LINE_LENGTH, Imports, call, keywords, literal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", '"plain"'),
        ('a "word"', "'a \"word\"'"),
        ("it's", '"it\'s"'),
        ("back\\slash", '"back\\\\slash"'),
        (5e-05, "5e-05"),
        (True, "True"),
        ({"use_reentrant": False, "n": 2}, '{"use_reentrant": False, "n": 2}'),
        (["query", "value"], '["query", "value"]'),
        (("one",), '("one",)'),
        (None, "None"),
    ],
)
def test_literals_have_double_quotes_and_mean_the_value(value: object, text: str) -> None:
    assert literal(value) == text
    assert ast.literal_eval(text) == value


def test_a_call_stays_on_one_line_while_it_fits() -> None:
    arguments = ["x" * 30, "y" * 30]
    head = "f" * (LINE_LENGTH - 4 - 62 - 2) + "("
    assert call(head, arguments, indent=4) == f"    {head}{', '.join(arguments)})"
    assert len(call(head, arguments, indent=4)) == LINE_LENGTH
    assert call("g" + head, arguments, indent=4) == (
        f"    g{head}\n        {', '.join(arguments)}\n    )"
    )


def test_arguments_that_do_not_fit_one_line_get_a_line_each() -> None:
    arguments = ["a" * 50, "b" * 50]
    assert call("f(", arguments) == f"f(\n    {arguments[0]},\n    {arguments[1]},\n)"


def test_a_dictionary_that_does_not_fit_is_opened() -> None:
    values = {"a" * 40: 1, "b" * 40: 2}
    assert call("f(", ["x=1", *keywords({"values": values})]).splitlines() == [
        "f(",
        "    x=1,",
        "    values={",
        f'        "{"a" * 40}": 1,',
        f'        "{"b" * 40}": 2,',
        "    },",
        ")",
    ]


def test_keywords() -> None:
    assert keywords({"split": "train", "n": 1}) == ['split="train"', "n=1"]


def test_imports_stand_in_sections_and_in_order() -> None:
    imports = Imports()
    imports.add("torch")
    imports.add("transformers", "set_seed", "Trainer", "AutoTokenizer", "WEIGHTS_NAME")
    imports.add("transformers", "Trainer")
    imports.add("math")
    imports.add("accelerate", "Accelerator")
    assert str(imports) == (
        "import math\n\n"
        "import torch\n"
        "from accelerate import Accelerator\n"
        "from transformers import WEIGHTS_NAME, AutoTokenizer, Trainer, set_seed"
    )


def test_long_imports_are_bracketed() -> None:
    imports = Imports()
    imports.add(
        "transformers", "AutoModelForSequenceClassification", "DataCollatorWithPadding", "set_seed"
    )
    assert str(imports).splitlines() == [
        "from transformers import (",
        "    AutoModelForSequenceClassification,",
        "    DataCollatorWithPadding,",
        "    set_seed,",
        ")",
    ]
