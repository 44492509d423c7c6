"""Strategies for repeated matrix games, in which action 0 cooperates and every other action defects.

A strategy sees the last joint action; with more than two agents, the others cooperated if all of them did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from omg.controllers.scripted_controller import OfFamily, WithMemory
from omg.envs import strategies
from omg.envs.multiagentenv import Spec
from omg.envs.strategies import COOPERATE, DEFECT, FIRST, situation, table_of
from omg.opponents.grid_policies import random_action

FORGIVENESS = 0.3
"""How often generous tit-for-tat cooperates after a defection."""


RANDOM_STRATEGIES = 60
"""Strategies of memory one that are drawn at random, for pools; they are played only where they are named."""


class Past(NamedTuple):
    """The round before this one."""

    first: Bool[Array, ""]
    """There is none."""
    mine: Bool[Array, ""]
    """The agent itself cooperated."""
    others: Bool[Array, ""]
    """So did all others."""


def _past(spec: Spec, obs: Float[Array, " obs"], seat: Array) -> Past:
    last = obs[-spec.n_agents * spec.n_actions :].reshape(spec.n_agents, spec.n_actions)
    cooperated = last[:, COOPERATE] > 0
    return Past(~(last > 0).any(), cooperated[seat], (cooperated | (jnp.arange(spec.n_agents) == seat)).all())


def strategy(cooperates: Callable[[Past, Array], Array | bool]):
    """A strategy that depends on the last round and on chance (a number between 0 and 1)."""

    def of(spec: Spec):
        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            return jnp.where(cooperates(_past(spec, obs, seat), jax.random.uniform(key)), COOPERATE, DEFECT)

        return policy

    return of


def counting(tolerance: int, forgives: bool):
    """Defects once the others defected more than `tolerance` times, in a row if it forgives, else at any time."""

    def of(spec: Spec) -> WithMemory:
        def act(defections: Array, obs: Array, avail_actions: Array, seat: Array, key: Array) -> tuple[Array, Array]:
            past = _past(spec, obs, seat)
            cooperated = past.first | past.others
            defections = jnp.where(cooperated, 0 if forgives else defections, defections + 1)
            return jnp.where(defections > tolerance, DEFECT, COOPERATE), defections

        return WithMemory(act)

    return of


def by_table(spec: Spec, table: Array, obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
    """Cooperates with the probability that `table` has for the last round."""
    last = obs[-spec.n_agents * spec.n_actions :].reshape(spec.n_agents, spec.n_actions)
    last_actions = jnp.where((last > 0).any(), last.argmax(-1), -1)
    return jnp.where(jax.random.uniform(key) < table[situation(last_actions)[seat]], COOPERATE, DEFECT)


def memory_one(goal: int, code: str):
    """A deterministic strategy of memory one; `goal` is its number, where strategies are the goals of the game."""

    def of(spec: Spec) -> OfFamily:
        policy = OfFamily(by_table, spec, (table_of(code) == COOPERATE).astype(np.float32))
        policy.strategy = lambda obs: jnp.int32(goal)  # type: ignore[attr-defined]
        return policy

    return of


def stochastic(number: int):
    """A random strategy of memory one: a probability to cooperate after CC, CD, DC and DD, and in the first round."""
    chances = np.random.default_rng(number).beta(0.5, 0.5, FIRST + 1)
    return lambda spec: OfFamily(by_table, spec, chances.astype(np.float32))


MATRIX_GAME: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "generous_tit_for_tat": strategy(lambda past, chance: past.first | past.others | (chance < FORGIVENESS)),
    "tit_for_two_tats": counting(1, forgives=True),
    "patient_grim": counting(2, forgives=False),
    **{name: memory_one(goal, code) for goal, (name, code) in enumerate(strategies.memory_one().items())},
    **{f"stochastic_{number}": stochastic(number) for number in range(RANDOM_STRATEGIES)},
}
