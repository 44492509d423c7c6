"""Settings: frozen dataclasses whose fields hold default, help text and range, filled from a configuration by name."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

T = TypeVar("T")


class UserError(Exception):
    """A mistake in the input that the user can correct. It is shown as one sentence, never as a traceback."""


def setting(
    default: Any, help: str, *, low: float | None = None, high: float | None = None, above: float | None = None
) -> Any:
    """A dataclass field with its help text and its range: `low` ≤ value ≤ `high`, value > `above`."""
    metadata = {"help": help, "low": low, "high": high, "above": above}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Option(dict):
    """One setting as `--help` and `default.yaml` show it: name, default, help, values."""


def options_of(cls: type) -> list[Option]:
    """The settings of a dataclass in the order of their declaration."""
    hints = get_type_hints(cls)
    return [
        Option(
            name=field.name,
            default=field.default_factory() if callable(field.default_factory) else field.default,
            help=field.metadata.get("help", ""),
            values=describe(hints[field.name]),
        )
        for field in dataclasses.fields(cls)
    ]


def names_of(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def nearest(word: str, known: Iterable[str], template: str = " Did you mean {!r}?") -> str:
    """A hint with the closest known word, or nothing when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return template.format(close[0]) if close else ""


FILES = ("config", "env-config", "workflow", "preset", "task", "task in the zoo", "agent in the zoo")
"""What is chosen among files; everything else is registered by a module."""


def choose(registry: Mapping[str, T], name: Any, what: str) -> T:
    """The entry of that name; otherwise an error that lists the known names."""
    if isinstance(name, str) and name in registry:
        return registry[name]
    known = ", ".join(sorted(registry))
    own = "" if what in FILES else " Your own: add --import MODULE."
    raise UserError(f"unknown {what} {name!r}.{nearest(str(name), registry)} Known: {known}.{own}")


def fill(cls: type[T], config: Mapping[str, Any], prefix: str = "") -> T:
    """The dataclass with every field that `config` names. Types and ranges are checked."""
    hints = get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in config:
            key = prefix + field.name
            values[field.name] = convert(config[field.name], hints[field.name], key)
            check_range(values[field.name], field.metadata, key)
    return cls(**values)


def fill_exactly(cls: type[T], config: Mapping[str, Any], prefix: str) -> T:
    """The same, but a key that is not a field is an error."""
    known = names_of(cls)
    for key in config:
        if key not in known:
            raise UserError(
                f"unknown key {prefix + str(key)!r}.{nearest(str(key), known)} Known here: {', '.join(sorted(known))}."
            )
    return fill(cls, config, prefix)


def check_range(value: Any, metadata: Mapping[str, Any], key: str) -> None:
    """Numbers are finite and inside the range that their field declares."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    low, high, above = (metadata.get(name) for name in ("low", "high", "above"))
    whole = isinstance(value, int)
    if not math.isfinite(value):
        raise UserError(f"{key} is {value}; it must be a finite number.")
    if low is not None and high is not None and not low <= value <= high:
        raise UserError(f"{key} is {value}; it goes from {low:g} to {high:g}.")
    if low is not None and value < low:
        raise UserError(f"{key} is {value}; it must be {low:g} or more.")
    if high is not None and value > high:
        raise UserError(f"{key} is {value}; it must be {high:g} or less.")
    if above is not None and value <= above:
        raise UserError(f"{key} is {value}; it must be {f'{above + 1:g} or more' if whole else f'above {above:g}'}.")


def convert(value: Any, hint: Any, key: str) -> Any:
    """The value as its annotation wants it, or an error naming the key, the value and what the key takes."""
    wants = [option for option in options(hint) if option is not type(None)]
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UserError(f"{key} is too large a number.")
    if matches(value, hint):
        return float(value) if hint is float else value
    if int in wants and isinstance(value, float) and value.is_integer():
        return int(value)
    if float in wants and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise UserError(f"{key} takes {describe(hint)}, not {value!r}.")


def matches(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(matches(value, option) for option in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint is type(None):
        return value is None
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def describe(hint: Any) -> str:
    names = {
        int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "null",
        list: "a list", dict: "key: value pairs",
    }  # fmt: skip
    if get_origin(hint) is Literal:
        return " or ".join(repr(option) for option in get_args(hint))
    described = (names.get(option, getattr(option, "__name__", str(option))) for option in options(hint))
    return " or ".join(described)


T_MAX_HELP = "environment steps of the run (with frozen partners: for each seat)"
"""Schedules read `t_max`, too; with frozen partners they are given the steps of all seats."""


@dataclasses.dataclass(frozen=True)
class ReturnSettings:
    """What every learner and planner means by a return."""

    gamma: float = setting(0.99, "discount factor", low=0, high=1)
    reward_scale: float = setting(1.0, "rewards are multiplied by this for learning; reported returns are not", above=0)
    bootstrap_at_limit: bool = setting(True, "false: reaching the time limit counts as termination")


def as_yaml(classes: Mapping[str, type]) -> str:
    """`configs/default.yaml`: every setting with its default and help text, as the dataclasses declare them."""
    lines = [
        "# Generated from the settings in the code (make defaults). The YAML files of environment and algorithm and",
        "# the command line are merged over these defaults, in that order.",
    ]
    shown: set[str] = set()
    for owner, cls in classes.items():
        new = [option for option in options_of(cls) if option["name"] not in shown]
        if new:
            lines.append(f"\n# --- {owner}")
        for option in new:
            shown.add(option["name"])
            entry = yaml.safe_dump({option["name"]: option["default"]}, default_flow_style=True, width=200)
            lines.append(f"{entry.strip()[1:-1]:<30} # {option['help']}")
    return "\n".join(lines) + "\n"
