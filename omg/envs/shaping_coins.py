"""Opponent shaping in the coin game. A strategy says whether to take the other's coins, by who took more so far.

Two players move on a board of 3×3 cells that wraps around, and each has a coin of its own. Taking a coin pays 1; taking
the other player's also costs that player 2. A coin that was taken appears at a random cell. Moves and rewards are those
of JaxMARL's coin game.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from omg.envs.shaping_game import ShapingGame, ShapingSettings
from omg.utils.settings import UserError

SIZE = 3
LOSS = 2.0
"""What a player loses when the other one takes its coin."""

AHEAD, EVEN, BEHIND = 0, 1, 2
"""The situations of a player: it took more of the other's coins than the other of its, as many, or fewer."""


@dataclass(frozen=True)
class CoinShapingSettings(ShapingSettings):
    """The coin game: its length, and how many are played at once with the same two strategies."""

    steps: int = 32
    at_once: int = 32


class Coins(NamedTuple):
    """The state of one coin game."""

    players: Int[Array, "player 2"]
    coins: Int[Array, "player 2"]
    """The coin of each player."""
    balance: Int[Array, ""]
    """Coins that the second player took from the first, minus the reverse."""
    defects: Bool[Array, " player"]
    """A player that defects walks to the nearer coin, one that does not to its own."""
    decide: Bool[Array, ""]
    """Both players decide again: at the start, and after a coin was taken."""


class CoinShaping(ShapingGame):
    """Strategies in the coin game; the opponent learns from sampled games, by the policy gradient (REINFORCE)."""

    settings: CoinShapingSettings

    def __init__(self, settings: CoinShapingSettings):
        super().__init__(settings, "shaping_coins", BEHIND + 1)
        if min(settings.steps, settings.at_once) < 1:
            raise UserError("shaping_coins needs steps and at_once of 1 or more.")

    def play(self, own: Array, logits: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        keys = jax.random.split(key, self.settings.at_once)

        def surrogate(logits: Array) -> tuple[Array, Array]:
            rewards, log_prob = jax.vmap(lambda k: self.game(own, logits, k))(keys)
            left = rewards[:, ::-1, 1].cumsum(1)[:, ::-1]
            return (log_prob * (left - left.mean(0))).sum(1).mean(), rewards[..., 0].sum(1).mean()

        gradient, reward = jax.grad(surrogate, has_aux=True)(logits)
        return gradient, reward

    def game(
        self, own: Float[Array, " situation"], logits: Float[Array, " situation"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "time player"], Float[Array, " time"]]:
        """One sampled game: the rewards, and the log-probability of what the opponent (second player) decided."""
        k_start, key = jax.random.split(key)
        places = jax.random.randint(k_start, (2, 2, 2), 0, SIZE)
        start = Coins(places[0], places[1], jnp.int32(0), jnp.zeros(2, bool), jnp.array(True))

        def step(state: Coins, key: PRNGKeyArray) -> tuple[Coins, tuple[Array, Array]]:
            k_decide, k_coins = jax.random.split(key)
            mine, theirs = (jnp.sign(sign * state.balance) + EVEN for sign in (1, -1))
            logit = logits[theirs]
            defects = decided(state, jnp.stack([own[mine], jax.nn.sigmoid(logit)]), k_decide)
            log_prob = jnp.where(state.decide, jax.nn.log_sigmoid(jnp.where(defects[1], logit, -logit)), 0.0)
            new, rewards = move(state._replace(defects=defects), k_coins)
            return new, (rewards, log_prob)

        _, played = jax.lax.scan(step, start, jax.random.split(key, self.settings.steps))
        return played


def decided(state: Coins, chance: Float[Array, " player"], key: PRNGKeyArray) -> Bool[Array, " player"]:
    """Whether each player defects from now on: sampled when both decide again, otherwise as before."""
    return jnp.where(state.decide, jax.random.uniform(key, (2,)) < chance, state.defects)


def move(state: Coins, key: PRNGKeyArray) -> tuple[Coins, Float[Array, " player"]]:
    """Both players take a step towards the coin they want; the new state, and the rewards."""
    steps = [towards(state.players[i], state.coins[i], state.coins[1 - i], state.defects[i]) for i in range(2)]
    players = (state.players + jnp.stack(steps)) % SIZE
    took = (players[:, None] == state.coins[None]).all(-1)  # player, whose coin
    from_other = jnp.stack([took[0, 1], took[1, 0]])
    rewards = took.sum(1) - LOSS * from_other[::-1]
    again = jax.random.randint(key, (2, 2), 0, SIZE)
    coins = jnp.where(took.any(0)[:, None], again, state.coins)
    balance = state.balance + from_other[1].astype(jnp.int32) - from_other[0]
    return Coins(players, coins, balance, state.defects, took.any()), rewards


def towards(
    place: Int[Array, " 2"], own: Int[Array, " 2"], other: Int[Array, " 2"], defects: Bool[Array, ""]
) -> Int[Array, " 2"]:
    """A step to the own coin around the other one; a player that defects goes to the nearer coin, whichever it is."""
    to_own, to_other = offset(place, own), offset(place, other)
    nearer = jnp.abs(to_other).sum() < jnp.abs(to_own).sum()
    d = jnp.where(defects & nearer, to_other, to_own)
    along_row = d * jnp.array([1, 0])
    in_the_way = ((place + along_row) % SIZE == other).all() & (d[1] != 0) & ~defects
    return jnp.where((d[0] != 0) & ~in_the_way, along_row, d * jnp.array([0, 1]))


def offset(a: Int[Array, " 2"], b: Int[Array, " 2"]) -> Int[Array, " 2"]:
    """From cell `a` to cell `b` on the board, which wraps around: -1 to 1 along each axis."""
    return (b - a + 1) % SIZE - 1
