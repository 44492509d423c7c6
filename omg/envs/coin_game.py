"""JaxMARL's coin game with goals: the red coin and the blue coin.

Two players walk on a board of 3×3 cells that wraps around. A coin pays 1 to the player that takes it, and costs the
player of its colour 2 if the other one takes it. The first player is red, the second blue. An episode has several games
(ten of ten steps); JaxMARL pays nothing in the last step of a game.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.envs.grid import board, disc
from omg.envs.jaxmarl_adapter import COIN_GAME, JaxMARLEnv
from omg.envs.multiagentenv import Goals, Timestep
from omg.envs.scene import Scene

SIZE = COIN_GAME[0]
LAYERS = int(np.prod(COIN_GAME))
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]], np.int32)
"""The five actions as changes of (row, column)."""
RED, BLUE = (192, 57, 43), (41, 98, 155)


class Places(NamedTuple):
    """An observation in cells (row, column), from the observing player's side."""

    me: Int[Array, "*rows 2"]
    other: Int[Array, "*rows 2"]
    own_coin: Int[Array, "*rows 2"]
    others_coin: Int[Array, "*rows 2"]
    colour: Int[Array, "*rows"]
    """0: the observing player is red, 1: it is blue."""


def places_in(obs: Float[Array, "*rows obs"]) -> Places:
    layers = obs[..., :LAYERS].reshape(*obs.shape[:-1], SIZE * SIZE, -1)
    cells = layers.argmax(-2)
    rows = jnp.stack([cells // SIZE, cells % SIZE], -1)
    me, other, own_coin, others_coin = (rows[..., i, :] for i in range(4))
    return Places(me, other, own_coin, others_coin, obs[..., LAYERS].astype(jnp.int32))


def offset(start: Int[Array, "*#rows 2"], end: Int[Array, "*#rows 2"]) -> Int[Array, "... 2"]:
    """The shortest way on a board that wraps around: -1, 0 or 1 along each axis."""
    return (end - start + 1) % SIZE - 1


class Played(NamedTuple):
    """The environment state: the game, and which coin each player took in the last step (-1: none)."""

    game: Any
    took: Int[Array, " player"]


class CoinGame(JaxMARLEnv):
    """The coin game. An observation ends with the player's colour, so that goals are the same for both players.

    With `pixels` players see frames, and there are no goals.
    """

    def __init__(self, env_args: Mapping[str, Any]):
        super().__init__(env_args)
        if self.paints:
            return
        own = np.arange(LAYERS).reshape(COIN_GAME)[..., 0].ravel()
        size = LAYERS + 1
        self.spec = replace(
            self.spec,
            obs_size=size,
            state_size=2 * size,
            obs_layout=(*self.spec.obs_layout, ("colour", (1,))),
            agents_in_state=tuple(tuple(map(int, own + i * size)) for i in range(2)),
        )
        self.n_goals, self.goal_types, self.goal_names = 2, (0, 1), ("red coin", "blue coin")
        self.goal_size = 4
        self.action_names = ("right", "left", "up", "down", "stay")
        self.seat_colours = (RED, BLUE)

    def reset(self, key: Array) -> tuple[Played, Timestep]:
        game, timestep = super().reset(key)
        return Played(game, jnp.full(2, -1, jnp.int32)), timestep

    def step(self, state: Played, actions: Int[Array, " agent"], key: Array) -> tuple[Played, Timestep]:
        game, timestep = super().step(state.game, actions, key)
        return Played(game, _taken(state.game[0], game[0])), timestep

    def _timestep(self, *arguments: Any) -> Timestep:
        timestep = super()._timestep(*arguments)
        if not self.n_goals:
            return timestep
        obs = timestep.obs.at[:, LAYERS].set(jnp.arange(2.0))
        return timestep._replace(obs=obs, state=obs.ravel())

    def goals(self, state: Played) -> Goals:
        """Both coins can always be taken: a coin that was taken appears elsewhere."""
        return Goals(jnp.ones(2, bool), state.took)

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """Offset, distance, and whether the coin has the player's colour."""
        seen = places_in(obs)
        own = seen.colour[..., None] == jnp.arange(2)
        coins = jnp.where(own[..., None], seen.own_coin[..., None, :], seen.others_coin[..., None, :])
        way = offset(seen.me[..., None, :], coins)
        features = [way, abs(way).sum(-1, keepdims=True), own[..., None]]
        return jnp.concatenate([x.astype(jnp.float32) for x in features], -1)

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return self.goal_features(obs)[..., 2]

    def draw(self, state: Played) -> Scene | None:
        if not self.n_goals:
            return None
        scene, game = board(SIZE), state.game[0]
        # Players in the upper half of a cell and coins in the lower one, red on the left: nothing covers anything.
        players, coins = (game.red_pos, game.blue_pos), (game.red_coin_pos, game.blue_coin_pos)
        for i, colour in enumerate((RED, BLUE)):
            aside, (y, x), (row, column) = 0.25 * (2 * i - 1), players[i], coins[i]
            disc(scene, (y - 0.2, x + aside), 9, colour, f"{i + 1}")
            disc(scene, (row + 0.25, column + aside), 6, colour, "")
        return scene


def _taken(before: Any, after: Any) -> Int[Array, " player"]:
    """The coin that each player took: its own one, if it took both. JaxMARL counts the coins of every kind."""

    def new(kind: str) -> Array:
        return (getattr(after, kind) - getattr(before, kind)).sum() > 0

    red = jnp.where(new("red_coop"), 0, jnp.where(new("red_defect"), 1, -1))
    blue = jnp.where(new("blue_coop"), 1, jnp.where(new("blue_defect"), 0, -1))
    return jnp.stack([red, blue]).astype(jnp.int32)
