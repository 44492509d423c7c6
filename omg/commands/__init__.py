"""The verbs of the command line, one module each. A module has `SUMMARY`, `EXAMPLES`, `settings` and `main`."""

from __future__ import annotations

import importlib
from types import ModuleType

from omg.config import Command
from omg.utils.settings import UserError, nearest

VERBS = {
    "train": "train a team, or one agent with frozen partners",
    "evaluate": "test a saved model, alone or with every member of a pool",
    "pool": "train a pool of frozen opponents, or describe one (omg pool show)",
    "pretrain": "train OMG's VAE of states, or HOP+'s goals",
    "collect": "record trajectories of a pool's members",
    "probe": "read from an agent's memory and embedding what it knows about its partners",
    "crossplay": "play saved agents and scripted policies with each other",
    "adapt": "play a saved agent with the same co-players for several episodes",
    "workflow": "run a list of commands from a YAML file, such as a whole comparison",
    "benchmark": "score methods with unseen partners",
    "bench": "measure the speed of training and of the environment",
    "sweep": "train with several values of settings, and compare them",
    "view": "show runs, curves, episodes and partners in the browser",
    "runs": "list the runs in a results folder",
    "plot": "draw learning curves of several runs",
    "export": "write runs, or what they logged, as CSV or Parquet",
    "list": "list algorithms, environments, tasks, scripted policies and workflows",
    "completion": "print a completion script for bash or zsh",
}
SACRED_COMMANDS = {
    "print_config": "print the merged configuration of a run",
    "print_dependencies": "print the versions of the packages in use",
    "save_config": "write the merged configuration to a file",
    "print_named_configs": "print Sacred's named configurations",
}
"""Verbs that Sacred provides; they take the settings of `train`."""
TAKES_WORDS = ("evaluate", "pool", "crossplay", "workflow", "benchmark", "view", "runs", "plot", "export", "completion")
"""Verbs with positional arguments."""
OF_A_MODEL = {
    "evaluate": (
        "checkpoint_path", "load_step", "pool", "pool_rules", "pool_test_rules", "test_nepisode", "seed", "save_replay",
        "run_dir", "use_cuda",
    ),
    "adapt": (
        "adapt_episodes", "co_players", "same_boards", "oracle_goals", "checkpoint_path", "load_step", "pool",
        "pool_rules", "pool_test_rules", "test_nepisode", "seed", "save_replay", "run_dir", "use_cuda",
    ),
    "probe": (
        "checkpoint_path", "load_step", "pool", "pool_rules", "pool_test_rules", "test_nepisode", "run_dir", "use_cuda",
    ),
    "crossplay": ("test_nepisode", "run_dir", "local_results_path", "use_cuda"),
}  # fmt: skip
"""Verbs that use saved models: the settings that their help shows. Other settings are those of the model."""
WITHOUT_LAYERS = (*OF_A_MODEL, "workflow", "benchmark", "view", "runs", "plot", "export", "list", "completion")
"""Verbs whose help shows no values of a configuration (--config, --env-config)."""


def check_verb(verb: str) -> None:
    known = (*VERBS, *SACRED_COMMANDS)
    if verb not in known:
        raise UserError(f"unknown command {verb!r}.{nearest(verb, known)} Known: {', '.join(known)}.")


def module_of(verb: str) -> ModuleType:
    """The module of a verb; Sacred's own commands belong to `train`."""
    check_verb(verb)
    name = "train" if verb in SACRED_COMMANDS else "list_configs" if verb == "list" else verb
    return importlib.import_module(f"omg.commands.{name}")


def run(command: Command) -> int:
    """Runs a command; returns the exit status."""
    verb = "evaluate" if command.verb == "train" and command.get("evaluate") is True else command.verb
    return module_of(verb).main(command)
