"""What several commands share: from a command line to a checked configuration, and to a saved model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from omg import config as configuration
from omg.build import resolve
from omg.config import Command
from omg.envs import trust
from omg.utils import checkpoints, device
from omg.utils.logging import say
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError, convert

Config = dict[str, Any]


def configure(command: Command, extra: Sequence[type] = (), ignore: Sequence[str] = (), learns: bool = True) -> Config:
    """The checked configuration of a command. `extra` are the settings of the command itself.

    Typed keys in `ignore` are not checked against the components (another configuration reads them). What is changed
    for the learner is not said by a command that `learns` nothing.
    """
    load_plugins(command.imports)
    config = configuration.load(command)
    trust_modules(command, config)
    typed = [key for key in command.typed_keys() if key not in ignore]
    config, notices = resolve(config, typed, extra)
    return prepared(config, notices if learns else [])


def prepared(config: Config, notices: list[str]) -> Config:
    """Sets up the device and shows notices."""
    for notice in [*device.setup(config.get("use_cuda"), bool(config.get("compilation_cache"))), *notices]:
        say(notice, "yellow")
    return config


def trust_modules(command: Command, config: Config) -> None:
    """The modules of environments may come from the command line; from files only with `--trust`."""
    typed = [value for key, value in command.updates if key == "env_args.name"]
    if command.trust:
        typed.append((config.get("env_args") or {}).get("name"))
    for module in typed:
        if isinstance(module, str):
            trust.allow(module)


def saved_model(command: Command, extra: Sequence[type] = ()) -> tuple[checkpoints.Checkpoint, Config, str | None]:
    """The checkpoint that a command names, its configuration with the command's changes, and `--pool`."""
    load_plugins(command.imports)
    path = command.get("checkpoint_path")
    if not isinstance(path, (str, int)) or isinstance(path, bool):
        raise UserError(f"{command.verb} needs a model: add --checkpoint_path=DIR (a run's folder).")
    configuration.refuse_layers(command, "a saved model keeps the configuration it was trained with")
    found = checkpoints.find_model(Path(str(path)), convert(command.get("load_step", 0), int, "load_step"))
    kept = found.manifest["config"] | {"resume": False, "run_dir": None, "save_replay": False}
    # The pool of a test is not part of the model: a team's model may be tested with one, too.
    pool = command.get("pool")
    rest = replace(command, updates=[(key, value) for key, value in command.updates if key != "pool"])
    config = configuration.override(kept, rest) | {"evaluate": True}
    trust_modules(command, config)
    config = prepared(*resolve(config, rest.typed_keys(), extra))
    return found, config, None if pool is None else str(pool)


def result_folder(config: Config, default: Path) -> Path:
    return Path(str(config["run_dir"])) if config.get("run_dir") else default


def stamped(config: Config, name: str) -> Path:
    """A new folder under the results, named after the moment."""
    return Path(str(config["local_results_path"])) / f"{name}__{datetime.now():%Y%m%d-%H%M%S-%f}"
