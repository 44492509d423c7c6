"""`omg runs`: a table of the runs in a results folder."""

from __future__ import annotations

import json
from typing import Any

from rich.table import Table

from omg.commands.common import folder_of_runs, known_options
from omg.config import Command
from omg.evaluation import runs
from omg.utils.logging import console
from omg.utils.settings import choose

SUMMARY = """\
Lists the runs in a folder (results by default): algorithm, environment, seed, state, steps, test return, time.

options:
  --sort=changed           by which column: changed (newest last), path, name, env, seed, state, steps, test_return,
                           focal_return, seconds
  --state=running          only runs that are finished, running, stopped or damaged
  --json                   the same as JSON, on stdout"""
EXAMPLES = ["omg runs", "omg runs results/sweep --sort=test_return", "omg runs --state=running --json"]
SHOWN = ("path", "name", "env", "seed", "state", "steps", "test_return", "focal_return", "seconds")


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    known_options(command, ("sort", "state"))
    found = runs.records(folder_of_runs(command))
    states = ("finished", "running", "stopped", "damaged")
    if (state := command.get("state")) is not None:
        choose(dict.fromkeys(states), str(state), "state")
        found = [record for record in found if record.state == state]
    sort = str(command.get("sort", "changed"))
    choose(dict.fromkeys((*SHOWN, "changed")), sort, "column")
    found.sort(key=lambda record: _comparable(getattr(record, sort)))
    if command.json:
        print(json.dumps([record.row() for record in found], indent=1))
        return 0
    table = Table(*(name.replace("_", " ") for name in SHOWN))
    for record in found:
        table.add_row(*(_text(record, name) for name in SHOWN))
    console.print(table, markup=False)
    for record in found:
        if record.problem:
            console.print(f"{record.path}: {record.problem}", markup=False, style="yellow", soft_wrap=True)
    return 0


def _comparable(value: Any) -> tuple[bool, Any]:
    return value is not None, value if value is not None else 0


def _text(record: runs.Record, name: str) -> str:
    value = getattr(record, name)
    if name == "seed" and record.seeds > 1:
        return f"{value} … {record.seeds} seeds"
    if value is None:
        return ""
    if name in ("steps", "seconds"):
        return f"{value:,.0f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
