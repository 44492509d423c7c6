"""Teams by name: `4iql3qmix1iql_omg` seats four, three and one agents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from omg.utils.settings import UserError, nearest

ANY_MEMBER = ("any", "rules")
"""Words in place of an algorithm: any member of the pool, or any scripted policy."""


class Group(NamedTuple):
    """Neighbouring seats that hold the same algorithm."""

    seats: int
    algorithm: str


def parse_team(name: str, algorithms: Iterable[str]) -> list[Group]:
    """The groups of a team's name. A name that cannot be parsed is an error that says where and why."""
    known = sorted({*algorithms, *ANY_MEMBER}, key=len, reverse=True)
    groups = _parse(name, known)
    if not groups:
        raise UserError(f"{name!r} is not a team: {_complaint(name, known)} An example: 4iql3qmix1iql_omg.")
    for group in groups:
        if group.seats < 1:
            raise UserError(
                f"{name!r} is not a team: {group.seats} seats for {group.algorithm}; one or more are needed."
            )
    return groups


def trained_group(groups: list[Group], train_alg: str | None, name: str) -> int:
    """Which group learns: the last one that holds `train_alg`, or the last one of all."""
    if train_alg is None:
        return len(groups) - 1
    holds = [i for i, group in enumerate(groups) if group.algorithm == train_alg]
    if not holds:
        seated = ", ".join(group.algorithm for group in groups)
        raise UserError(f"train_alg is {train_alg!r}, which has no seat in {name}: it holds {seated}.")
    return holds[-1]


def check_seats(groups: list[Group], n_agents: int, name: str, env: str) -> None:
    seats = sum(group.seats for group in groups)
    if seats != n_agents:
        sum_of = " + ".join(str(group.seats) for group in groups)
        raise UserError(f"{name} seats {sum_of} = {seats} agents, but {env} has {n_agents}: the counts must add up.")


def _parse(text: str, known: list[str]) -> list[Group] | None:
    """Tries longer names first, and backtracks where the rest cannot be parsed (`d3qn` contains a digit)."""
    if not text:
        return []
    number = re.match(r"\d+", text)
    if not number:
        return None
    rest = text[number.end() :]
    for algorithm in known:
        if rest.startswith(algorithm):
            later = _parse(rest[len(algorithm) :], known)
            if later is not None:
                return [Group(int(number.group()), algorithm), *later]
    return None


def _complaint(name: str, known: list[str]) -> str:
    if not re.match(r"\d", name):
        return "it starts with how many seats the first algorithm takes."
    for word in re.findall(r"\d+([a-z][a-z_]*(?:\d[a-z_]+)*?)(?=\d|$)", name):
        if word not in known:
            return f"there is no algorithm {word!r}.{nearest(word, known)}"
    return "it reads count, algorithm, count, algorithm, …"
