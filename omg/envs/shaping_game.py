"""Opponent shaping as a game (M-FOS, Lu et al., 2022): every step is a whole repeated game with an agent that learns.

The agent chooses a strategy of memory one and earns the expected payoff per round with the opponent's strategy. Then
the opponent takes gradient steps on its own expected payoff. So the choice of a strategy shapes what it will be.
A learner in this environment, such as PPO, is M-FOS with strategies as actions of the outer game.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.envs.multiagentenv import MultiAgentEnv, Spec, Timestep
from omg.envs.strategies import FIRST
from omg.utils.settings import UserError

CHOICES = np.array(list(itertools.product((0.0, 1.0), repeat=FIRST + 1)))
"""The 32 strategies: the probability of defection after CC, CD, DC and DD (the own action first), and at first."""


@dataclass(frozen=True)
class ShapingSettings:
    """The settings in `env_args`: a game of two agents with two actions each, and the opponent that learns it."""

    payoffs: list
    rounds: int = 20
    games: int = 50
    opponent_lr: float = 1.0
    opponent_steps: int = 1
    """Gradient steps of the opponent after each game; 0: it does not learn."""


class Shaping(NamedTuple):
    """The environment state."""

    logits: Float[Array, " situation"]
    """Of the opponent's probabilities of defection."""
    last: Float[Array, " situation"]
    """The agent's last strategy; one half each before the first game."""
    games: Int[Array, ""]


class ShapingGame(MultiAgentEnv):
    """One agent; it observes the opponent's strategy, its own last one, and how many games are over."""

    Settings = ShapingSettings

    def __init__(self, settings: ShapingSettings):
        self.settings, self.payoffs = settings, np.array(settings.payoffs, np.float32)
        if self.payoffs.shape != (2, 2, 2):
            raise UserError("the shaping game needs payoffs of two agents with two actions each: [[[…]], [[…]]].")
        if min(settings.rounds, settings.games) < 1 or settings.opponent_steps < 0:
            raise UserError("the shaping game needs rounds and games of 1 or more, and opponent_steps of 0 or more.")
        size = 2 * (FIRST + 1) + 1
        self.spec = Spec("shaping_game", 1, len(CHOICES), size, size, settings.games, "mixed")

    def reset(self, key: Array) -> tuple[Shaping, Timestep]:
        start = Shaping(jax.random.normal(key, (FIRST + 1,)), jnp.full(FIRST + 1, 0.5), jnp.int32(0))
        return start, self._timestep(start, jnp.zeros(()))

    def step(self, state: Shaping, actions: Int[Array, " agent"], key: Array) -> tuple[Shaping, Timestep]:
        chosen = jnp.asarray(CHOICES, jnp.float32)[actions[0]]

        def of_opponent(logits: Array) -> tuple[Array, Array]:
            own, theirs = self.expected(chosen, jax.nn.sigmoid(logits))
            return self.settings.rounds * theirs, own

        (_, reward), gradient = jax.value_and_grad(of_opponent, has_aux=True)(state.logits)
        logits = state.logits
        if self.settings.opponent_steps:
            logits = logits + self.settings.opponent_lr * gradient
        for _ in range(self.settings.opponent_steps - 1):
            logits = logits + self.settings.opponent_lr * jax.grad(of_opponent, has_aux=True)(logits)[0]
        new = Shaping(logits, chosen, state.games + 1)
        return new, self._timestep(new, reward)

    def expected(
        self, own: Float[Array, " situation"], theirs: Float[Array, " situation"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The mean payoff per round of both strategies, each given by its probabilities of defection."""

        def joint(p: Array, q: Array) -> Float[Array, "... 2 2"]:
            both = (jnp.stack([1 - p, p], -1), jnp.stack([1 - q, q], -1))
            return both[0][..., :, None] * both[1][..., None, :]

        # After every joint action: the opponent's situations are the agent's with the two actions exchanged.
        then = joint(own[:FIRST].reshape(2, 2), theirs[:FIRST].reshape(2, 2).T)

        def one(now: Array, _: None) -> tuple[Array, Array]:
            return (now[..., None, None] * then).sum((0, 1)), now

        _, along = jax.lax.scan(one, joint(own[FIRST], theirs[FIRST]), None, length=self.settings.rounds)
        means = (along.mean(0) * self.payoffs).sum((1, 2))
        return means[0], means[1]

    def _timestep(self, state: Shaping, reward: Array) -> Timestep:
        over = state.games / self.settings.games
        obs = jnp.concatenate([jax.nn.sigmoid(state.logits), state.last, over[None]])
        return Timestep(
            obs=obs[None],
            state=obs,
            avail_actions=jnp.ones((1, len(CHOICES)), bool),
            reward=reward[None],
            terminated=state.games >= self.settings.games,
            alive=jnp.ones(1, bool),
            info={"opponent_defects": jax.nn.sigmoid(state.logits).mean()},
        )
