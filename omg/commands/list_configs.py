"""`omg list`: algorithms, environments and workflows by name."""

from __future__ import annotations

from omg.config import Command, available, one_line
from omg.utils.settings import UserError

SUMMARY = "Lists the shipped configurations by name: algorithms, environments and workflows."
EXAMPLES = ["omg list"]


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    if command.updates:
        raise UserError(f"omg list takes no settings, and --{command.updates[0][0]} has no effect here.")
    titles = (
        ("algorithms (--config=…)", "algs"),
        ("environments (--env-config=…)", "envs"),
        ("workflows (omg workflow …)", "workflows"),
    )
    for title, folder in titles:
        print(title)
        for name, path in available(folder).items():
            print(f"  {name:<18}{one_line(path)}")
    return 0
