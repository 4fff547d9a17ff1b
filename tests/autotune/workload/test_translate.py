"""What foreign libraries raise becomes a cause and a remedy; what is not theirs passes through."""

from __future__ import annotations

import pytest
from huggingface_hub import errors

from autotune.errors import UsageError, WorkloadError
from autotune.workload.translate import foreign_errors, root_cause


def raised_by_the_hub(kind: type[Exception]) -> OSError:
    """An error as transformers passes it on."""
    error = OSError("x is not a local folder and is not a valid model identifier")
    error.__cause__ = kind.__new__(kind)
    return error


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (raised_by_the_hub(errors.RepositoryNotFoundError), "neither here nor on the hub", "name"),
        (raised_by_the_hub(errors.GatedRepoError), "is gated", "hf auth login"),
        (raised_by_the_hub(errors.LocalEntryNotFoundError), "hub cannot be reached", "local copy"),
        (ValueError("set trust_remote_code=True"), "code of its own", "--trust-remote-code"),
        (KeyError("odd"), "cannot be read: 'odd'.", "Look again."),
    ],
)
def test_foreign_errors_get_a_cause_and_a_remedy(error: Exception, cause: str, remedy: str) -> None:
    with (
        pytest.raises(WorkloadError) as caught,
        foreign_errors("The model x", remedy="Look again.", doing="read"),
    ):
        raise error
    assert caught.value.cause.startswith("The model x")
    assert cause in caught.value.cause
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize("error", [UsageError("ours", "as it is"), MemoryError(), SystemExit(3)])
def test_errors_that_are_not_about_the_input_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, foreign_errors("The model x", remedy="Look again."):
        raise error
    assert caught.value is error


def test_the_root_cause_is_one_short_sentence() -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = ValueError("\n  first line\nsecond line")
    assert root_cause(outer) == "first line."
    assert root_cause(ValueError()) == "ValueError."
    assert len(root_cause(ValueError("x" * 5000))) == 300
