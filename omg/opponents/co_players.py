"""The co-players of an encounter: scripted policies, teams of them, and those that change from episode to episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from omg.controllers.scripted_controller import ReciprocalMAC
from omg.envs import MultiAgentEnv
from omg.opponents.grid_policies import REPLIES
from omg.opponents.scripted import REGISTRY
from omg.runners import PolicyGroup
from omg.utils.settings import UserError

TIT_FOR_TAT = "tit_for_tat"


class CoPlayers(NamedTuple):
    """Types of co-players that one controller plays; any of them in all other seats."""

    names: tuple[str, ...]
    group: PolicyGroup
    friendly: int = -1
    """The goal type that tit-for-tat counts as cooperation (-1: no reciprocal co-player)."""
    goals: tuple[tuple[Any, ...], ...] = ()
    """For the scripted policy in each other seat the function from its observation to its goal; None: it has none."""
    later: tuple[tuple[Any, ...], ...] = ()
    """The same for the second half of the episodes."""
    changes: tuple[bool, ...] = ()
    """Whether other policies play in the second half."""

    def numbers_of(self, known: Sequence[Any]) -> list[list[list[int]]] | None:
        """Whose goals they are in both halves of an encounter, as `Adaptation.play` asks for them."""
        halves = [[[known.index(goal) if goal in known else -1 for goal in team] for team in half]
                  for half in (self.goals, self.later)]  # fmt: skip
        return halves if self.goals else None

    def only(self, *places: int) -> CoPlayers:
        def at(x: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(x[i] for i in places) if x else ()

        policies = jax.tree.map(lambda x: x[jnp.array(places)], self.group.policies)
        group = self.group._replace(policies=policies, ids=at(self.group.ids))
        return CoPlayers(at(self.names), group, self.friendly, at(self.goals), at(self.later), at(self.changes))


def only_some(everyone: list[CoPlayers], wanted: Sequence[str] | None) -> list[CoPlayers]:
    if wanted is None:
        return everyone
    known = [name for others in everyone for name in others.names]
    if unknown := [name for name in wanted if name not in known]:
        raise UserError(f"there is no co-player {', '.join(map(str, unknown))} here: known are {', '.join(known)}.")
    places = [[i for i, name in enumerate(others.names) if name in wanted] for others in everyone]
    return [others.only(*chosen) for others, chosen in zip(everyone, places, strict=True) if chosen]


def mixtures(env: MultiAgentEnv, names: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    """The teams of scripted policies among the co-players asked for, and those that change, as `team_of` reads them."""
    teams = [str(name) for name in wanted or () if "+" in str(name) or ":" in str(name)]
    for name in teams:
        seats, halves = env.spec.n_agents - 1, name.split(":")
        if len(halves) > 2:
            raise UserError(f"{name} changes more than once: name two, as in always_stag:always_hare.")
        for members in (half.split("+") for half in halves):
            if unknown := [n for n in members if n not in names]:
                known = ", ".join(names)
                raise UserError(f"{name}: there is no scripted policy {unknown[0]!r} here: known are {known}.")
            if len(members) not in (1, seats):
                where = f"{env.spec.name} has {seats} seats for them here"
                raise UserError(f"{name} names {len(members)} co-players: {where}.")
            if len(halves) > 1 and TIT_FOR_TAT in members and env.spec.name in REPLIES:
                raise UserError(f"{name}: {TIT_FOR_TAT} changes by itself; name other policies.")
    return teams


def team_of(name: str, seats: int) -> tuple[list[str], list[str]]:
    """The policies in the other seats, in both halves of an encounter.

    `always_stag` sits in all of them; `always_stag+always_hare+always_hare` names each; `always_stag:always_hare` is
    another team in the second half of the episodes.
    """
    halves = [half.split("+") if "+" in half else [half] * seats for half in name.split(":")]
    return halves[0], halves[-1]


def scripted_co_players(env: MultiAgentEnv, names: Sequence[str]) -> CoPlayers:
    """Scripted policies, teams of them and tit-for-tat, all played by one controller."""
    policies = REGISTRY[env.spec.name]
    replies = REPLIES.get(env.spec.name, ())
    teams = [team_of(name, env.spec.n_agents - 1) for name in names]
    # In a repeated matrix game tit-for-tat is a policy within an episode.
    across = TIT_FOR_TAT if replies else None
    listed = (n for halves in teams for half in halves for n in half)
    single = dict.fromkeys(name for name in (*listed, *replies) if name != across)
    made = {name: policies[name](env.spec) for name in single}
    place = {name: i for i, name in enumerate(made)}
    pairs = [
        [[place[r] for r in (replies if now == across else (now, later))] for now, later in zip(*halves, strict=True)]
        for halves in teams
    ]
    group = PolicyGroup(ReciprocalMAC(env.spec, *made.values()), jnp.array(pairs, jnp.int32), tuple(range(len(names))))
    pursued = "goal" if env.exclusive_goals else "strategy"
    goals, later = (
        tuple(tuple(getattr(made.get(n), pursued, None) for n in halves[i]) for halves in teams) for i in (0, 1)
    )
    changes = tuple(":" in name for name in names)
    # Cooperation is the highest goal type: a stag, or any drift.
    return CoPlayers(tuple(names), group, max(env.goal_types) if replies else -1, goals, later, changes)
