"""The call inside a real notebook kernel."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import nbclient
import nbformat
import pytest

from autotune.display.none import NoDisplay
from autotune.display.plain import PlainDisplay
from autotune.export.document import as_json
from autotune.library import notebook
from tests.testing.recommendations import configuration, document

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]

_SET_UP = """
from pathlib import Path
import torch
import autotune
from tests.testing import live

SCALE = 2

class Doubled(live.Tokens):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        return {"input_ids": row["input_ids"] * SCALE}

trainer = live.trainer(Path.cwd(), train_dataset=Doubled(), model=live.gpt2())
trainer.data_collator = lambda rows: live.pad(rows)
"""


def run(cells: list[str], directory: Path) -> list[list[dict[str, object]]]:
    """Runs cells in a kernel of their own; returns the outputs of each."""
    book = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    book.cells = [
        nbformat.v4.new_code_cell(textwrap.dedent(cell))  # type: ignore[no-untyped-call]
        for cell in cells
    ]
    client = nbclient.NotebookClient(
        book,
        timeout=280,
        kernel_name="python3",
        resources={"metadata": {"path": str(directory)}},
        allow_errors=True,
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    return [list(cell.outputs) for cell in book.cells]


def test_a_notebook_tunes_what_its_cells_defined(tmp_path: Path) -> None:
    answer = tmp_path / "recommendation.json"
    answer.write_text(as_json(document(configuration(4, 1), configuration(2, 2))))
    outputs = run(
        [
            _SET_UP,
            # One trial tells that the job has reached its process; what follows knows no notebook.
            "autotune.tune(trainer, goal=autotune.Goal(memory_limit_bytes=2**20), "
            "budget=autotune.Budget(trials=1, seconds=240), display='plain')",
            f"found = autotune.load({str(answer)!r})\nfound",
            "found.apply(trainer)\nprint(trainer.args.per_device_train_batch_size)",
        ],
        tmp_path,
    )
    errors = [(n, o) for n, cell in enumerate(outputs) for o in cell if o["output_type"] == "error"]
    ((number, error),) = errors
    assert (number, error["ename"]) == (1, "NothingFeasible"), error
    text = "".join(str(o.get("text", "")) for o in outputs[1])
    assert "✓ machine" in text, "progress is ordinary output"
    assert "predicted to need at least" in text, "what cannot fit is not run"
    assert "\x1b" not in text
    shown = [o for o in outputs[2] if o["output_type"] == "execute_result"]
    assert "<table>" in shown[0]["data"]["text/html"]  # type: ignore[index]
    assert outputs[3][0]["text"] == "4\n"


def test_outside_of_a_notebook_the_terminal_decides() -> None:
    assert not notebook.is_notebook()
    assert isinstance(notebook.choose("plain"), PlainDisplay)
    assert isinstance(notebook.choose("none"), NoDisplay)


def test_in_a_notebook_lines_are_printed_where_no_panel_can_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "is_notebook", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    display = notebook.choose("auto")
    display.say("a line")
    assert capsys.readouterr().out == "a line\n"
