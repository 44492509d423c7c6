"""Settings by name: a component's frozen dataclass filled from the merged configuration, and errors for people."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class UserError(Exception):
    """Something the person at the keyboard can mend. Shown as one sentence, never as a traceback."""


def nearest(word: str, known: Iterable[str], template: str = " Did you mean {!r}?") -> str:
    """A hint with the closest known word, or nothing when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return template.format(close[0]) if close else ""


def choose(registry: Mapping[str, T], name: Any, what: str) -> T:
    """The entry of that name; otherwise an error that lists what there is."""
    if name in registry:
        return registry[name]
    known = ", ".join(sorted(registry))
    raise UserError(f"unknown {what} {name!r}.{nearest(str(name), registry)} Known: {known}.")


def fill(cls: type[T], config: Mapping[str, Any], prefix: str = "") -> T:
    """The dataclass with every field that `config` names, each checked against its annotation."""
    hints = get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in config:
            values[field.name] = convert(config[field.name], hints[field.name], prefix + field.name)
    return cls(**values)


def fill_exactly(cls: type[T], config: Mapping[str, Any], prefix: str) -> T:
    """The same, but a key that is not a field is an error."""
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in config:
        if key not in known:
            raise UserError(
                f"unknown key {prefix + key!r}.{nearest(key, known)} Known here: {', '.join(sorted(known))}."
            )
    return fill(cls, config, prefix)


def convert(value: Any, hint: Any, key: str) -> Any:
    """The value as its annotation wants it, or an error naming the key, what it got and what it takes."""
    if matches(value, hint):
        return float(value) if hint is float else value
    wants = [option for option in options(hint) if option is not type(None)]
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
        return value in get_args(hint)
    if hint is type(None):
        return value is None
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def describe(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "null"}
    if get_origin(hint) is Literal:
        return " or ".join(repr(option) for option in get_args(hint))
    described = (names.get(option, getattr(option, "__name__", str(option))) for option in options(hint))
    return " or ".join(described)
