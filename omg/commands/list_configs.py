"""`omg list`: algorithms, environments, workflows, tasks and scripted policies by name."""

from __future__ import annotations

import shutil
import textwrap

from omg.config import Command, available, one_line
from omg.opponents import SPLITS
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError

SUMMARY = "Lists algorithms, environments, presets, workflows, tasks and scripted policies by name."
EXAMPLES = ["omg list"]


def settings(command: Command) -> list[type]:
    return []


def show(name: str, text: str) -> None:
    """One entry, wrapped to the width of the terminal."""
    width = shutil.get_terminal_size((80, 24)).columns
    print(textwrap.fill(text, width, initial_indent=f"  {name:<18}", subsequent_indent=" " * 20))


def main(command: Command) -> int:
    if command.updates:
        raise UserError(f"omg list takes no settings, and --{command.updates[0][0]} has no effect here.")
    load_plugins(command.imports)
    titles = (
        ("algorithms (--config=…)", "algs"),
        ("environments (--env-config=…)", "envs"),
        ("presets (--preset=…)", "presets"),
        ("workflows (omg workflow …)", "workflows"),
        ("tasks (omg benchmark …)", "tasks"),
    )
    for title, folder in titles:
        print(title)
        for name, path in available(folder).items():
            show(name, one_line(path))
    print("scripted policies (--pool=rules)")
    for env, split in SPLITS.items():
        show(env, f"training: {', '.join(split.train)}; unseen: {', '.join(split.test)}")
    return 0
