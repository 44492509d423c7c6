"""The notebooks and the page about Python run, from the first cell to the last, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def cells_of(path):
    content = json.loads(path.read_text())
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def run(code, folder):
    """The last value of every cell is shown, as a notebook does."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def shown(cells):
    """A program that runs the cells one by one and prints the value of each one's last expression."""
    return (
        "import ast\nnames = {}\n"
        f"for cell in {cells!r}:\n"
        "    *lines, last = ast.parse(cell).body\n"
        "    lines += [] if isinstance(last, ast.Expr) else [last]\n"
        "    exec(compile(ast.Module(lines, []), 'cell', 'exec'), names)\n"
        "    if isinstance(last, ast.Expr):\n"
        "        print('>', eval(compile(ast.Expression(last.value), 'cell', 'eval'), names))\n"
    )


@pytest.mark.slow
def test_the_first_hour_runs(tmp_path):
    said = run(shown(cells_of(DOCS / "notebooks/first_hour.ipynb")), tmp_path)
    returns = json.loads(said.split("> ")[1])
    assert len(returns) == 3
    assert all(value >= 6 for value in returns), "all find at least the safe game"
    assert "curve.png" in said
    assert "prisoners_dilemma" in said
    assert "[3 rows x 7 columns]" in said


@pytest.mark.slow
def test_an_own_agent_model_runs(tmp_path):
    said = run(shown(cells_of(DOCS / "notebooks/own_agent_model.ipynb")), tmp_path)
    assert "am_loss" in said
    assert "(1, 1, 8)" in said


@pytest.mark.slow
def test_the_page_about_python_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)
    assert len(blocks) == 5
    said = run("\n".join(blocks), tmp_path)
    assert (tmp_path / "results/first/curve.png").exists()
    assert "finished" in said
    # Always defect against tit-for-tat, 20 rounds: 5 + 19, and 0 + 19.
    assert "[24. 19.]" in said


@pytest.mark.parametrize("path", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_valid(path):
    content = json.loads(path.read_text())
    assert content["nbformat"] == 4
    for cell in content["cells"]:
        assert {"cell_type", "id", "metadata", "source"} <= set(cell)
