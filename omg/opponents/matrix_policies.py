"""Strategies for repeated matrix games, in which action 0 cooperates and every other action defects.

A strategy sees the last joint action; with more than two agents, the others cooperated if all of them did.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from omg.controllers.scripted_controller import WithMemory
from omg.envs.multiagentenv import Spec
from omg.opponents.grid_policies import random_action

COOPERATE, DEFECT = 0, 1
FORGIVENESS = 0.3
"""How often generous tit-for-tat cooperates after a defection."""


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


def memory_one(replies: str, first: str):
    """The replies after CC, CD, DC and DD (the own action first; c cooperates, d defects), and the first action."""
    table = np.array([letter == "c" for letter in reversed(replies)]).reshape(2, 2)

    def cooperates(past: Past, chance: Array) -> Array:
        replied = jnp.asarray(table)[past.mine.astype(int), past.others.astype(int)]
        return jnp.where(past.first, first == "c", replied)

    return strategy(cooperates)


def _all_memory_one() -> dict[str, Callable]:
    """The deterministic strategies of memory one that differ in play from each other and from those with a name."""
    # Tit-for-tat, suspicious tit-for-tat, win-stay-lose-shift, alternate and grim.
    named = ("cdcd_c", "cdcd_d", "cddc_c", "ddcc_c", "cddd_c")
    found: dict[str, Callable] = {}
    for letters in itertools.product("cd", repeat=4):
        replies = "".join(letters)
        # A strategy that cooperates first and after every cooperation of its own never defects, and the reverse.
        constant = {"c": replies[:2] == "cc", "d": replies[2:] == "dd"}
        names = [f"{replies}_{first}" for first in "cd" if not constant[first]]
        found |= {f"memory_one_{name}": memory_one(replies, name[-1]) for name in names if name not in named}
    return found


MATRIX_GAME: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "always_cooperate": strategy(lambda past, chance: True),
    "always_defect": strategy(lambda past, chance: False),
    "tit_for_tat": strategy(lambda past, chance: past.first | past.others),
    "suspicious_tit_for_tat": strategy(lambda past, chance: past.others & ~past.first),
    "generous_tit_for_tat": strategy(lambda past, chance: past.first | past.others | (chance < FORGIVENESS)),
    "win_stay_lose_shift": strategy(lambda past, chance: past.first | (past.mine == past.others)),
    "alternate": strategy(lambda past, chance: past.first | ~past.mine),
    "grim": counting(0, forgives=False),
    "tit_for_two_tats": counting(1, forgives=True),
    "patient_grim": counting(2, forgives=False),
    **_all_memory_one(),
}
