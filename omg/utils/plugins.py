"""Code of the user: modules named by `--import`, and packages that register an entry point `omg.plugins`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from omg.utils.settings import UserError

GROUP = "omg.plugins"
"""Entry-point group of installed packages whose module registers environments, algorithms or policies."""

_loaded: list[str] = []


def load_plugins(modules: Sequence[str] = ()) -> None:
    """Imports the plugins of installed packages once, and these modules (from the current folder or installed)."""
    if GROUP not in _loaded:
        _loaded.append(GROUP)
        for entry in entry_points(group=GROUP):
            entry.load()
    for name in modules:
        if name in _loaded:
            continue
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            importlib.import_module(name.removesuffix(".py").replace("/", "."))
        except ModuleNotFoundError as error:
            if error.name != name.removesuffix(".py").split(".")[0].split("/")[0]:
                raise UserError(f"--import {name} needs the module {error.name}, which is not installed.") from error
            raise UserError(f"--import {name}: there is no module {name} in {here} or installed.") from error
        _loaded.append(name)


def loaded() -> tuple[str, ...]:
    """The modules that were imported by name, for processes that need them too."""
    return tuple(name for name in _loaded if name != GROUP)
