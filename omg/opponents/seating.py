"""Seating: a team's name and a pool, turned into seats around the focal agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import numpy as np

from omg.controllers.mixed_controller import MixedMAC
from omg.envs.multiagentenv import Spec
from omg.opponents.pool import SPLIT_NAMES, Pool
from omg.runners.team_runner import Opponents, PolicyGroup
from omg.utils.settings import UserError, setting
from omg.utils.teams import Group, check_seats, parse_team, trained_group

SPLITS_OF = {"train": SPLIT_NAMES[:1], "unseen": SPLIT_NAMES[1:], "all": SPLIT_NAMES}
"""The splits of a pool by the setting `partners`."""


@dataclass(frozen=True)
class SeatingSettings:
    """One agent with frozen partners."""

    multi_algs: bool = setting(False, "--config is a team: 4iql3qmix1iql_omg seats four, three and one agents")
    team: str | None = setting(None, "the team; set by --multi_algs")
    train_alg: str | None = setting(None, "the algorithm of the team that is trained; null: the last one")
    pool: str | None = setting(
        None,
        "opponents: a folder of a pool or a run, zoo:TASK, or rules (scripted policies); null: results/pools/<env>",
    )
    partners: Literal["train", "unseen", "all"] = setting(
        "train", "members of the pool to learn with: train, unseen or all"
    )
    one_partner_each: bool = setting(
        False, "best responses: one seed for every partner, which it learns with alone (seeds is then their number)"
    )
    opponents_per_collection: int = setting(4, "different opponents in one collection of episodes", above=0)


class Seating(NamedTuple):
    """The seats of the trained agents and of the others, all as places after the focal agent."""

    offsets: tuple[int, ...]
    opponents: tuple[Opponents, ...]


def seat(
    settings: SeatingSettings,
    name: str,
    spec: Spec,
    algorithms: Sequence[str],
    open_pool: Callable[[], Pool],
    groups: Sequence[PolicyGroup] | None = None,
) -> Seating:
    """`groups` replaces the pool: every opponent comes from them."""
    if settings.multi_algs:
        name = settings.team or name
        team = parse_team(name, algorithms)
    else:
        team = [Group(spec.n_agents - 1, "any"), Group(1, name)] if spec.n_agents > 1 else [Group(1, name)]
    check_seats(team, spec.n_agents, name, spec.name)
    trained = trained_group(team, settings.train_alg if settings.multi_algs else None, name)
    if spec.n_agents < 2:
        raise UserError(f"{spec.name} has one agent here: there are no others to play with.")
    starts = [sum(group.seats for group in team[:i]) for i in range(len(team))]

    def offsets(i: int) -> tuple[int, ...]:
        seats = range(starts[i], starts[i] + team[i].seats)
        return tuple((seat - starts[trained]) % spec.n_agents for seat in seats)

    pool = None if groups else open_pool()
    opponents = []
    for i, group in enumerate(team):
        if i != trained:
            members = list(groups or _members(pool, spec, group, settings.partners))
            opponents.append(
                Opponents(offsets(i), (merged(spec, members),) if settings.one_partner_each else tuple(members))
            )
    return Seating(offsets(trained), tuple(opponents))


def _members(pool: Pool | None, spec: Spec, group: Group, partners: str) -> list[PolicyGroup]:
    assert pool is not None
    splits = SPLITS_OF[partners]
    ids = pool.ids(splits, group.algorithm)
    if not ids:
        known = sorted({m.algorithm for m in pool.members if m.split in splits})
        which = "" if partners == "train" else f" (partners={partners})"
        raise UserError(
            f"the pool in {pool.folder} has no {_named(group.algorithm)} to train with{which}: it has "
            f"{', '.join(known) or 'none'}."
        )
    return pool.groups(spec, ids)


def _named(algorithm: str) -> str:
    return {"any": "member", "rules": "scripted policy"}.get(algorithm, algorithm)


def merged(spec: Spec, groups: Sequence[PolicyGroup]) -> PolicyGroup:
    """Several architecture groups as one, with the members in the order of the pool."""
    if len(groups) == 1:
        return groups[0]
    policies = MixedMAC.stack([group.size for group in groups], [group.policies for group in groups])
    ids = np.array([i for group in groups for i in group.ids])
    order = np.argsort(ids)
    policies = jax.tree.map(lambda x: x[order], policies)
    return PolicyGroup(MixedMAC(spec, [group.mac for group in groups]), policies, tuple(ids[order].tolist()))
