"""`omg export`: the runs of a folder, or everything they logged, as one table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from omg.commands.common import folder_of_runs, known_options
from omg.config import Command
from omg.evaluation import runs
from omg.utils.files import check_writable, make_folder
from omg.utils.settings import UserError

SUMMARY = """\
Writes a table of all runs in a folder (results by default), or with --metrics of every point they logged: one row for
each run, point and seed.

options:
  --to=runs.csv            the file to write: .csv, or .parquet (needs pyarrow)
  --metrics                every logged point instead of one row per run"""
EXAMPLES = ["omg export", "omg export results --metrics --to=points.parquet"]


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    known_options(command, ("to", "metrics"))
    folder = folder_of_runs(command)
    path = Path(str(command.get("to", "runs.csv")))
    if path.suffix not in (".csv", ".parquet"):
        raise UserError(f"--to names a file that ends in .csv or .parquet, not {path.name!r}.")
    if path.suffix == ".parquet" and not (importlib.util.find_spec("pyarrow")):
        raise UserError("Parquet needs pyarrow: pip install pyarrow, or write a .csv.")
    check_writable(path.parent)
    found = runs.records(folder)
    import pandas as pd

    rows = [row for record in found for row in logged(record)] if command.get("metrics") else [r.row() for r in found]
    table = pd.DataFrame(rows)
    make_folder(path.parent)
    table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path)
    print(path)
    return 0


def logged(record: runs.Record) -> list[dict[str, Any]]:
    """A row for every point and seed of a run; one that is damaged has none."""
    if record.state == "damaged":
        return []
    first, rows = record.seed or 0, []
    for point in runs.points(Path(record.path)):
        plain = {name: value for name, value in point.items() if not name.endswith("_seeds")}
        several = {name: value for name, value in point.items() if name.endswith("_seeds")}
        for i in range(max([len(v) for v in several.values()], default=1)):
            of_seed = {name.removesuffix("_seeds"): values[i] for name, values in several.items()}
            head = {"path": record.path, "name": record.name, "env": record.env, "seed": first + i}
            rows.append(head | plain | of_seed)
    return rows
