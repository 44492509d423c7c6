"""Opponent shaping as a game (M-FOS, Lu et al., 2022): every step is a whole game with an opponent that learns.

The agent chooses a strategy (whether to defect in each situation of the game), earns what the game pays with the
opponent's present strategy, and then the opponent takes gradient steps on its own payoff. So the agent's choice shapes
what its opponent will be. A learner in this environment, such as PPO, is M-FOS with strategies as actions.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from omg.envs.multiagentenv import MultiAgentEnv, Spec, Timestep
from omg.envs.strategies import FIRST
from omg.utils.settings import UserError


@dataclass(frozen=True)
class ShapingSettings:
    """The settings in `env_args` that all games have."""

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

    settings: ShapingSettings

    def __init__(self, settings: ShapingSettings, name: str, situations: int):
        if settings.games < 1 or settings.opponent_steps < 0:
            raise UserError(f"{name} needs games of 1 or more, and opponent_steps of 0 or more.")
        self.settings = settings
        self.choices = np.array(list(itertools.product((0.0, 1.0), repeat=situations)), np.float32)
        """The strategies that the agent chooses from: the probability of defection in every situation."""
        size = 2 * situations + 1
        self.spec = Spec(name, 1, len(self.choices), size, size, settings.games, "mixed")

    @abstractmethod
    def play(
        self, own: Float[Array, " situation"], logits: Float[Array, " situation"], key: PRNGKeyArray
    ) -> tuple[Float[Array, " situation"], Float[Array, ""]]:
        """A game: the gradient of the opponent's payoff by its logits, and the payoff of the agent.

        Args:
            own: the agent's probabilities of defection.
            logits: of the opponent's.
            key: for games that are sampled.
        """

    def reset(self, key: PRNGKeyArray) -> tuple[Shaping, Timestep]:
        situations = self.choices.shape[1]
        start = Shaping(jax.random.normal(key, (situations,)), jnp.full(situations, 0.5), jnp.int32(0))
        return start, self._timestep(start, jnp.zeros(()))

    def step(self, state: Shaping, actions: Int[Array, " agent"], key: PRNGKeyArray) -> tuple[Shaping, Timestep]:
        own, logits = jnp.asarray(self.choices)[actions[0]], state.logits
        gradient, reward = self.play(own, logits, key)
        for i in range(self.settings.opponent_steps):
            if i:
                gradient, _ = self.play(own, logits, jax.random.fold_in(key, i))
            logits = logits + self.settings.opponent_lr * gradient
        new = Shaping(logits, own, state.games + 1)
        return new, self._timestep(new, reward)

    def _timestep(self, state: Shaping, reward: Array) -> Timestep:
        over = state.games / self.settings.games
        obs = jnp.concatenate([jax.nn.sigmoid(state.logits), state.last, over[None]])
        return Timestep(
            obs=obs[None],
            state=obs,
            avail_actions=jnp.ones((1, len(self.choices)), bool),
            reward=reward[None],
            terminated=state.games >= self.settings.games,
            alive=jnp.ones(1, bool),
            info={"opponent_defects": jax.nn.sigmoid(state.logits).mean()},
        )


@dataclass(frozen=True, kw_only=True)
class MatrixShapingSettings(ShapingSettings):
    """A repeated matrix game of two agents with two actions each."""

    payoffs: list
    rounds: int = 20


class MatrixShaping(ShapingGame):
    """Strategies of memory one in a repeated matrix game, with expected payoffs: nothing is sampled."""

    settings: MatrixShapingSettings

    def __init__(self, settings: MatrixShapingSettings):
        super().__init__(settings, "shaping_game", FIRST + 1)
        self.payoffs = np.array(settings.payoffs, np.float32)
        if self.payoffs.shape != (2, 2, 2):
            raise UserError("the shaping game needs payoffs of two agents with two actions each: [[[…]], [[…]]].")
        if settings.rounds < 1:
            raise UserError("the shaping game needs rounds of 1 or more.")

    def play(self, own: Array, logits: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        def of_opponent(logits: Array) -> tuple[Array, Array]:
            mine, theirs = self.expected(own, jax.nn.sigmoid(logits))
            return self.settings.rounds * theirs, mine

        gradient, reward = jax.grad(of_opponent, has_aux=True)(logits)
        return gradient, reward

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
