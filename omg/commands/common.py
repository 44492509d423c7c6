"""What several commands share: from a command line to a checked configuration, and to a saved model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from omg import config as configuration
from omg.build import make_learner, open_host, resolve
from omg.components.episode_buffer import make_scheme
from omg.config import Command
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import MultiAgentEnv, trust
from omg.envs.host import HostEnv
from omg.opponents import REGISTRY as scripted_REGISTRY
from omg.opponents import random_action, zoo
from omg.opponents.pool import Pool
from omg.runners import HostRunner, PolicyGroup
from omg.utils import checkpoints, device
from omg.utils.logging import say
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError, choose, convert, nearest

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
        raise UserError(
            f"{command.verb} needs a model: add --checkpoint_path=DIR (a run's folder, or zoo:TASK/METHOD)."
        )
    configuration.refuse_layers(command, "a saved model keeps the configuration it was trained with")
    folder = zoo.agent_folder(str(path)) if zoo.in_zoo(path) else Path(str(path))
    found = checkpoints.find_model(folder, convert(command.get("load_step", 0), int, "load_step"))
    kept = found.manifest["config"] | {"resume": False, "run_dir": None, "save_replay": False}
    # The pool of a test is not part of the model: a team's model may be tested with one, too.
    pool = command.get("pool")
    rest = replace(command, updates=[(key, value) for key, value in command.updates if key != "pool"])
    config = configuration.override(kept, rest) | {"evaluate": True}
    trust_modules(command, config)
    config = prepared(*resolve(config, rest.typed_keys(), extra))
    return found, config, None if pool is None else str(pool)


def known_options(command: Command, options: Sequence[str]) -> None:
    """Refuses settings that a verb without a configuration does not take."""
    for key, _ in command.updates:
        if key not in options:
            listed = ", ".join(f"--{option}" for option in options)
            raise UserError(f"{command.verb} has no option --{key}.{nearest(key, options)} It takes {listed}.")
    configuration.refuse_layers(command, f"{command.verb} reads what runs have written")


def folder_of_runs(command: Command) -> Path:
    """The one folder that a command names; by default `results`."""
    if len(command.words) > 1:
        raise UserError(f"{command.verb} takes one folder: omg {command.verb} results.")
    folder = Path(command.words[0] if command.words else "results")
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}. Train something first: omg train, or name another folder.")
    return folder


def result_folder(config: Config, default: Path) -> Path:
    return Path(str(config["run_dir"])) if config.get("run_dir") else default


def model_folder(config: Config, found: checkpoints.Checkpoint, name: str) -> Path:
    """Where results about a saved model go: beside its run; for an agent of the zoo, into a folder of its own."""
    if found.path.resolve().is_relative_to(zoo.ROOT.resolve()):
        return result_folder(config, stamped(config, f"{name}_{found.path.name}"))
    return result_folder(config, found.path.parent.parent / name / found.path.name)


def stamped(config: Config, name: str) -> Path:
    """A new folder under the results, named after the moment."""
    return Path(str(config["local_results_path"])) / f"{name}__{datetime.now():%Y%m%d-%H%M%S-%f}"


# --- agents that play


class Player(NamedTuple):
    """A saved agent with every seed it was trained with, ready to sit in one seat or in all others."""

    name: str
    mac: Any
    params: list[Any]
    """The networks of each seed."""
    config: Config
    vae: Any = None

    def group(self) -> PolicyGroup:
        """As opponents: its first seed."""
        return PolicyGroup(self.mac, jax.tree.map(lambda x: jnp.asarray(x)[None], self.params[0]), (0,))


def load_player(found: checkpoints.Checkpoint, env: MultiAgentEnv, config: Mapping[str, Any] | None = None) -> Player:
    """Any saved model: its components are built and its networks restored."""
    config = dict(config or found.manifest["config"])
    learner = make_learner(env, config, found)
    state = jax.eval_shape(learner.init, jax.random.key(0))
    # A critic does not act, but evaluations ask it for the values of candidate subgoals.
    also = ["critic"] if "vae" in learner.mac.needs else []
    names = [name for name in state.params if name in (*learner.acting(state), *also)]
    seeds = len(found.manifest["seeds"])

    def like(tree: Any) -> Any:
        if seeds == 1:
            return tree
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), tree)

    params = {name: checkpoints.load(found, name, like(state.params[name])) for name in names}
    params = jax.tree.map(jnp.asarray, params)
    each = [params] if seeds == 1 else [jax.tree.map(lambda x, i=i: x[i], params) for i in range(seeds)]
    return Player(str(config["name"]), learner.mac, each, config, learner.artifacts.get("vae"))


def scripted_player(env: MultiAgentEnv, name: str, what: str = "scripted policy") -> Player:
    """A scripted policy in the seat of an agent; it has no networks."""
    known = scripted_REGISTRY.get(env.spec.name, {})
    policy = choose(known, name, f"{what} of {env.spec.name}")(env.spec)
    return Player(name, ScriptedMAC(env.spec, policy), [jnp.int32(0)], {})


def names_in_replay(name: str, pool: Pool, partners: PolicyGroup) -> tuple[str, str]:
    """How a replay calls the focal agent and its partner, the last one of a group."""
    return f"{name} (focal agent)", pool.members[partners.ids[-1]].name


@contextmanager
def host_of(env: MultiAgentEnv, config: Mapping[str, Any]) -> Iterator[HostRunner | None]:
    """The runner of an environment in Python, for policies of any kind; None for a compiled one."""
    if not isinstance(env, HostEnv):
        yield None
        return
    host = open_host(env, ScriptedMAC(env.spec, random_action), config, *make_scheme(env.spec))
    try:
        yield host
    finally:
        host.close()
