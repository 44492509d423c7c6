"""Scripted players of the coin game: which coin they walk to."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.controllers.scripted_controller import WithMemory
from omg.envs.coin_game import MOVES, SIZE, Places, offset, places_in
from omg.envs.multiagentenv import Spec
from omg.opponents.grid_policies import random_action

LIMIT = 4
"""The most coins that `retaliate` remembers."""


def _steps(start: Int[Array, "*rows 2"], end: Int[Array, " 2"]) -> Int[Array, "*rows"]:
    return abs(offset(start, end)).sum(-1)


def _walk(seen: Places, to_others: Bool[Array, ""], key: Array) -> Int[Array, ""]:
    """A step to one of the coins around the other one; on the coin it stays."""
    target = jnp.where(to_others, seen.others_coin, seen.own_coin)
    avoided = jnp.where(to_others, seen.own_coin, seen.others_coin)
    after = (seen.me + jnp.asarray(MOVES)) % SIZE
    ahead = _steps(after, target)
    touches = (_steps(after, avoided) == 0) & (ahead > 0)
    # A step sideways is better than the other coin, and worse than coming closer.
    noise = 0.1 * jax.random.uniform(key, ahead.shape)
    return (ahead + 10.0 * touches + noise).argmin()


def _nearer(seen: Places) -> Bool[Array, ""]:
    """Whether the other player's coin is nearer than the own one."""
    return _steps(seen.me, seen.others_coin) < _steps(seen.me, seen.own_coin)


def takes(to_others: Callable[[Places], Array]):
    """Walks to the other player's coin where `to_others`, else to its own."""

    def of(spec: Spec):
        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            seen = places_in(obs)
            return _walk(seen, to_others(seen), key)

        def goal_of(obs: Float[Array, " obs"]) -> Int[Array, ""]:
            seen = places_in(obs)
            return jnp.where(to_others(seen), 1 - seen.colour, seen.colour)

        policy.goal = goal_of  # type: ignore[attr-defined]
        return policy

    return of


def retaliate(spec: Spec) -> WithMemory:
    """Takes the nearer coin while the other player took more of its coins than it of the other's; else only its own.

    The number that it remembers holds where both coins were, and how many more of its coins were taken. It sees who
    took a coin by who stands where the coin was. When JaxMARL begins another game, all places change: a coincidence
    counts as a coin that was taken. A coin that appears again where it was is missed.
    """
    cells = SIZE * SIZE

    def act(memory: Array, obs: Array, avail_actions: Array, seat: Array, key: Array) -> tuple[Array, Array]:
        seen = places_in(obs)
        number = jnp.maximum(memory - 1, 0)
        balance = jnp.where(memory > 0, number // cells**2, LIMIT) - LIMIT
        own_was, others_was = (jnp.stack([c // SIZE, c % SIZE]) for c in (number % cells, number // cells % cells))

        def taken(coin_was: Array, coin: Array, by: Array) -> Array:
            return (memory > 0) & (coin_was == by).all() & (coin_was != coin).any()

        balance += taken(own_was, seen.own_coin, seen.other).astype(jnp.int32)
        balance -= taken(others_was, seen.others_coin, seen.me).astype(jnp.int32)
        balance = jnp.clip(balance, -LIMIT, LIMIT)
        own, others = (coin[0] * SIZE + coin[1] for coin in (seen.own_coin, seen.others_coin))
        action = _walk(seen, (balance > 0) & _nearer(seen), key)
        return action, 1 + own + cells * others + cells**2 * (balance + LIMIT)

    return WithMemory(act)


COIN_GAME: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "own_coin": takes(lambda seen: jnp.zeros((), bool)),
    "nearest_coin": takes(_nearer),
    "other_coin": takes(lambda seen: jnp.ones((), bool)),
    "retaliate": retaliate,
}
