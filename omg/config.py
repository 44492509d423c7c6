"""From words on the command line to one merged configuration: default → world → algorithm → command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from omg.utils.settings import UserError, choose, nearest
from omg.utils.teams import ANYBODY, parse_team, trained_group

CONFIG_DIR = Path(__file__).parent / "config"
DEFAULT_ALG, DEFAULT_ENV = "iql", "foraging"
VERBS = (
    "train",
    "evaluate",
    "list",
    "bench",
    "pool",
    "pretrain",
    "crossplay",
    "reproduce",
    "adapt",
    "collect",
    "phases",
)
TAKES_WORDS = ("pool", "crossplay", "reproduce", "phases")
"""Verbs that are followed by words of their own."""
SACRED_COMMANDS = ("print_config", "print_dependencies", "save_config", "print_named_configs")

Config = dict[str, Any]


class Loader(yaml.SafeLoader):
    """YAML that reads 1e-3 as a number, which YAML 1.1 does not."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


@dataclass
class Command:
    """A command line, taken apart."""

    verb: str = "train"
    config: str | None = None
    env_config: str | None = None
    updates: list[tuple[str, Any]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    help: bool = False
    json: bool = False

    def get(self, key: str, default: Any = None) -> Any:
        """The last value given for a key."""
        return dict(self.updates).get(key, default)


def parse(words: list[str]) -> Command:
    """`--config=…`, `--env-config=…`, `--key=value`, `--flag`, a verb, and Sacred's `with a.b=c`, in any order."""
    command, after_with, verb_given = Command(), False, False
    for word in words:
        key, equals, text = word.partition("=")
        if word in ("-h", "--help", "help"):
            command.help = True
        elif word == "with":
            after_with = True
        elif key == "--config" or key == "--env-config":
            if not text:
                example = "--config=qmix" if key == "--config" else "--env-config=foraging"
                raise UserError(f"{key} needs a name, as in {example}.")
            setattr(command, key[2:].replace("-", "_"), text)
        elif key == "--json":
            command.json = True
        elif word.startswith("--"):
            command.updates.append((key[2:], _value(text) if equals else True))
        elif equals and after_with:
            command.updates.append((key, _value(text)))
        elif after_with and word.endswith((".yaml", ".yml", ".json")):
            command.files.append(word)
        elif equals:
            raise UserError(f"what should {word!r} do? Write --{word}, or put 'with' before it.")
        elif verb_given and command.verb in TAKES_WORDS:
            command.words.append(word)
        elif verb_given:
            raise UserError(f"unexpected word {word!r}.{nearest(word, (*VERBS, *SACRED_COMMANDS))}")
        else:
            command.verb = word
            verb_given = True
    if command.verb not in (*VERBS, *SACRED_COMMANDS):
        known = (*VERBS, *SACRED_COMMANDS)
        raise UserError(f"unknown command {command.verb!r}.{nearest(command.verb, known)} Known: {', '.join(known)}.")
    return command


def _value(text: str) -> Any:
    """The text as YAML reads it."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{text!r} is not a value YAML can read.") from error


def load(command: Command, known_keys: Iterable[str]) -> Config:
    """The merged configuration of a command. A key that nothing reads is an error."""
    config = read_yaml(CONFIG_DIR / "default.yaml")
    name = command.config or DEFAULT_ALG
    team = name if command.get("multi_algs") is True else None
    if team:
        groups = parse_team(team, available("algs"))
        name = groups[trained_group(groups, command.get("train_alg"), team)].algorithm
        if name in ANYBODY:
            raise UserError(f"{name!r} cannot be trained: add --train_alg=… with one of the algorithms in {team}.")
    elif re.match(r"\d+[a-z]", name) and not name.endswith((".yaml", ".yml")):
        raise UserError(f"{name!r} looks like a team of several algorithms: add --multi_algs.")
    for layer in (named("envs", command.env_config or DEFAULT_ENV), named("algs", name)):
        config = recursive_dict_update(config, layer)
    if team:
        config |= {"name": team, "team": team, "train_alg": name}
    return override(config, command, known_keys)


def override(config: Config, command: Command, known_keys: Iterable[str]) -> Config:
    """A configuration with the command line's files and values merged over it."""
    for name in command.files:
        config = recursive_dict_update(config, read_yaml(Path(name)))
    for key, value in command.updates:
        config = recursive_dict_update(config, nested(key, value))
    check_keys(config, known_keys)
    return config


def check_keys(config: Mapping[str, Any], known_keys: Iterable[str]) -> None:
    known = sorted(known_keys)
    for key in config:
        if key not in known:
            hint = nearest(key, known) or " All keys: omg --help."
            raise UserError(f"unknown key {key!r}.{hint}")


def nested(key: str, value: Any) -> Config:
    """`a.b.c` and a value as a dictionary in a dictionary in a dictionary."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def recursive_dict_update(base: Mapping[str, Any], update: Mapping[str, Any]) -> Config:
    """A copy of `base` in which `update` has the last word, level by level."""
    merged = dict(base)
    for key, value in update.items():
        old = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = recursive_dict_update(old, value) if both else value  # type: ignore[arg-type]
    return merged


def available(kind: str) -> dict[str, Path]:
    """Configurations by name: `kind` is algs, envs or phases."""
    return {path.stem: path for path in sorted((CONFIG_DIR / kind).glob("*.yaml"))}


def named(kind: str, name: str) -> Config:
    """A shipped configuration by its name, or anybody's by its path."""
    if name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name))
    what = {"algs": "config", "envs": "env-config"}[kind]
    return read_yaml(choose(available(kind), name, what))


def env_words(config: Mapping[str, Any]) -> str:
    """The words that say on a command line which world this is: the shipped one that is nearest, and what differs."""
    own = config.get("env_args") or {}
    nearest_name, fewest = str(config["env"]), None
    for name, path in available("envs").items():
        shipped = read_yaml(path)
        if shipped.get("env") == config["env"]:
            theirs = shipped.get("env_args") or {}
            changed = {key: value for key, value in own.items() if theirs.get(key) != value}
            if fewest is None or len(changed) < len(fewest):
                nearest_name, fewest = name, changed
    words = "".join(f" {shlex.quote(f'env_args.{key}={value}')}" for key, value in sorted((fewest or {}).items()))
    return f"--env-config={nearest_name}" + (f" with{words}" if words else "")


def read_yaml(path: Path) -> Config:
    try:
        content = yaml.load(path.read_text(), Loader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold settings (key: value).")
    return content


def one_line(path: Path) -> str:
    """What a configuration says of itself: its first comment."""
    first = path.read_text().splitlines()[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def not_twice(command: Command, why: str) -> None:
    for option, name in (("--config", command.config), ("--env-config", command.env_config)):
        if name:
            raise UserError(f"{option}={name} has no place here: {why}. Single settings may be changed.")
