"""Configurations: YAML files merged default → environment → algorithm → command line.

An environment's file may hold tuned settings of single algorithms (`tuned`), which are merged over the algorithm's own.
An algorithm that is based on it comes after both.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from omg.utils.settings import UserError, choose
from omg.utils.teams import ANY_MEMBER, parse_team, trained_group

CONFIG_DIR = Path(__file__).parent / "configs"
DEFAULT_ALG, DEFAULT_ENV = "iql", "foraging"

Config = dict[str, Any]

GONE = {"goal_choice": "clustered", "goal_window": 5}
"""Settings of earlier versions, with the values whose models this version still understands."""


class Loader(yaml.SafeLoader):
    """YAML that reads 1e-3 as a number, which YAML 1.1 does not."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


@dataclass
class Command:
    """A parsed command line."""

    verb: str = "train"
    config: str | None = None
    env_config: str | None = None
    updates: list[tuple[str, Any]] = field(default_factory=list)
    """Settings in the order they were given; the last one counts."""
    files: list[str] = field(default_factory=list)
    """YAML files after the word `with`."""
    words: list[str] = field(default_factory=list)
    """Positional arguments of the verb."""
    imports: list[str] = field(default_factory=list)
    """The user's own modules (`--import`)."""
    trust: bool = False
    """Files may name modules to import (`--trust`)."""
    help: bool = False
    json: bool = False

    def get(self, key: str, default: Any = None) -> Any:
        """The last value given for a key."""
        return dict(self.updates).get(key, default)

    def typed_keys(self) -> list[str]:
        """The top-level keys that the user gave."""
        return [key.split(".")[0] for key, _ in self.updates] + [
            str(key) for name in self.files for key in read_yaml(Path(name))
        ]

    def as_words(self) -> list[str]:
        """The command line that parses to this command."""
        words = [self.verb, *self.words]
        words += [f"--config={self.config}"] if self.config else []
        words += [f"--env-config={self.env_config}"] if self.env_config else []
        words += [f"--import={name}" for name in self.imports] + (["--trust"] if self.trust else [])
        words += [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in self.updates]
        return words + (["with", *self.files] if self.files else [])


def parse(text: str) -> Any:
    """YAML. A list or mapping that contains itself is a ValueError."""
    content = yaml.load(text, Loader)
    if "*" in text:
        json.dumps(content, default=str, skipkeys=True)
    return content


def value_of(text: str) -> Any:
    """A word of the command line, typed as YAML reads it."""
    try:
        return parse(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{text[:80]!r} is not a value that YAML can read.") from error


def defaults() -> Config:
    return read_yaml(CONFIG_DIR / "default.yaml")


def load(command: Command) -> Config:
    """The merged configuration of a command."""
    config = defaults()
    name = command.config or DEFAULT_ALG
    team = name if command.get("multi_algs") is True else None
    if team:
        groups = parse_team(team, available("algs"))
        name = groups[trained_group(groups, command.get("train_alg"), team)].algorithm
        if name in ANY_MEMBER:
            raise UserError(f"{name!r} cannot be trained: add --train_alg=… with one of the algorithms in {team}.")
    elif re.match(r"\d+[a-z]", name) and not name.endswith((".yaml", ".yml")):
        raise UserError(f"{name!r} looks like a team of several algorithms: add --multi_algs.")
    env_name = command.env_config or DEFAULT_ENV
    env = named("envs", env_name)
    tuned = env.pop("tuned", None) or {}
    algorithms = lineage(name)
    layers = [env, *(layer for alg, own in algorithms.items() for layer in (own, tuned.get(alg) or {}))]
    presets = [read_yaml(Path(name)).get("preset") for name in command.files] + [command.get("preset")]
    if preset := next((name for name in reversed(presets) if name is not None), None):
        layers = [named("presets", str(preset)), env, *algorithms.values()]
    for layer in layers:
        config = recursive_dict_update(config, layer)
    config["env_config"] = Path(env_name).stem
    if team:
        config |= {"name": team, "team": team, "train_alg": name}
    return override(config, command)


def override(config: Config, command: Command) -> Config:
    """A configuration with the command line's files and values merged over it."""
    for name in command.files:
        content = read_yaml(Path(name))
        # A file that names the environment brings its settings whole; others change single settings.
        if "env" in content and isinstance(content.get("env_args"), dict):
            config = {**config, "env_args": {}}
        config = recursive_dict_update(config, content)
    for key, value in command.updates:
        config = recursive_dict_update(config, nested(key, value))
    return config


def without_gone(config: Mapping[str, Any], typed: Iterable[str] = ()) -> Config:
    """The configuration of a saved model without settings that are gone; what was typed stays, to be refused."""
    for key, value in GONE.items():
        if config.get(key, value) != value and key not in typed:
            raise UserError(f"this model was made with {key}={config[key]}, which this version no longer has.")
    return {key: value for key, value in config.items() if key not in GONE or key in typed}


def nested(key: str, value: Any) -> Config:
    """`a.b.c` and a value as nested dictionaries."""
    parts = key.split(".")
    if not all(parts):
        raise UserError(f"{key!r} is not a setting: dots separate names, as in env_args.food=5.")
    for part in reversed(parts):
        value = {part: value}
    return value


def recursive_dict_update(base: Mapping[str, Any], update: Mapping[str, Any]) -> Config:
    """A copy of `base` updated with `update`, level by level."""
    merged = dict(base)
    for key, value in update.items():
        old = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = recursive_dict_update(old, value) if both else value  # type: ignore[arg-type]
    return merged


def available(folder: str) -> dict[str, Path]:
    """The shipped configurations by name; `folder` is algs, envs, presets, tasks or workflows."""
    return {path.stem: path for path in sorted((CONFIG_DIR / folder).glob("*.yaml"))}


def named(folder: str, name: str) -> Config:
    """A shipped configuration by its name, or a file by its path."""
    if name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name))
    what = {"algs": "config", "envs": "env-config"}.get(folder, folder.removesuffix("s"))
    return read_yaml(choose(available(folder), name, what))


def lineage(name: str, folder: str = "algs") -> dict[str, Config]:
    """A configuration's own settings by its name, after those of the configuration that it is `based_on`, and so on."""
    found: dict[str, Config] = {}
    base: str | None = name
    while base is not None:
        if base in found:
            raise UserError(f"the configuration {name} is based on itself ({' → '.join([*found, base])}).")
        found[base] = dict(named(folder, base))
        base = found[base].pop("based_on", None)
    return dict(reversed(found.items()))


def inherited(folder: str, name: str) -> Config:
    """A task or workflow: keys, budgets and variables that it leaves out are those of the one that it is `based_on`."""
    found: Config = {}
    for own in lineage(name, folder).values():
        for key in ("budgets", "variables"):
            if isinstance(found.get(key), dict) and isinstance(own.get(key), dict):
                own[key] = found[key] | own[key]
        found |= own
    return found


def env_changes(config: Mapping[str, Any]) -> tuple[str, Config]:
    """The shipped environment configuration nearest to this one, and the settings that differ from it."""
    own = config.get("env_args") or {}
    wanted = config.get("env_config")
    best, changes = str(config["env"]), dict(own)
    fewest: int | None = None
    for name, path in available("envs").items():
        shipped = read_yaml(path)
        if shipped.get("env") != config["env"]:
            continue
        theirs = shipped.get("env_args") or {}
        changed = {key: own.get(key) for key in sorted({*own, *theirs}) if own.get(key) != theirs.get(key)}
        if fewest is None or len(changed) < fewest or (len(changed) == fewest and name == wanted):
            best, changes, fewest = name, changed, len(changed)
    return best, changes


def env_words(config: Mapping[str, Any]) -> str:
    """The command-line words that select this environment."""
    name, changes = env_changes(config)
    words = "".join(f" {shlex.quote(f'env_args.{key}={value}')}" for key, value in changes.items())
    return f"--env-config={name}" + (f" with{words}" if words else "")


def env_label(config: Mapping[str, Any]) -> str:
    """A name for folders: the environment's configuration, and the settings that differ from the shipped ones."""
    name, changes = env_changes(config)
    parts = [name, *(f"{key}={value}" for key, value in changes.items())]
    label = re.sub(r"[^\w.=-]+", "-", "__".join(parts))
    digest = hashlib.sha256(json.dumps([name, changes], sort_keys=True, default=str).encode()).hexdigest()[:8]
    return label if len(label) <= 80 else f"{label[:70]}__{digest}"


def read_yaml(path: Path) -> Config:
    """The settings in a file. A file of the package is parsed once in a process."""
    return copy.deepcopy(_shipped_yaml(path)) if path.is_relative_to(CONFIG_DIR) else _read_yaml(path)


@functools.cache
def _shipped_yaml(path: Path) -> Config:
    return _read_yaml(path)


def _read_yaml(path: Path) -> Config:
    try:
        content = parse(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold settings (key: value).")
    return content


def one_line(path: Path) -> str:
    """A configuration's description: its first comment."""
    first = path.read_text().splitlines()[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def refuse_layers(command: Command, why: str) -> None:
    """For commands on a saved model: its configuration is given, only single settings may change."""
    layers = (("--config", command.config), ("--env-config", command.env_config), ("--preset", command.get("preset")))
    for option, name in layers:
        if name:
            raise UserError(f"{option}={name} has no place here: {why}. Single settings may be changed.")
