"""Snowdrift (MSG): the player who clears a drift pays its cost, and all players receive its benefit.

A player clears a drift by stepping onto it. Players who arrive at the same step share the cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.grid import (
    COLOURS,
    GOAL_SIZE,
    MOVE_NAMES,
    board,
    disc,
    each_first,
    move,
    relative_goals,
    scatter,
    stays_on_board,
    steps_to,
)
from omg.envs.multiagentenv import Goals, MultiAgentEnv, Spec, Storage, Timestep, rows_of
from omg.envs.scene import Scene
from omg.utils.settings import UserError

SNOW = (126, 160, 190)


@dataclass(frozen=True)
class SnowdriftSettings:
    """The settings in `env_args`. The environment configuration snowdrift.yaml explains them."""

    grid_size: int = 8
    players: int = 4
    drifts: int = 6
    benefit: float = 6.0
    cost: float = 4.0
    episode_limit: int = 50


class Snow(NamedTuple):
    """The environment state. Cells are (row, column)."""

    players: Int[Array, "player 2"]
    drifts: Int[Array, "drift 2"]
    there: Bool[Array, " drift"]
    """False for drifts that are cleared."""
    cleared: Int[Array, " player"]
    """Which drift each player cleared in the last step; -1 if none."""
    t: Int[Array, ""]


class Snowdrift(MultiAgentEnv):
    """The environment is fully observed.

    An observation lists row and column of each player (the observing player first), then row, column and presence of
    each drift, then the time step. All entries are divided by the size of the board.
    """

    Settings = SnowdriftSettings
    action_names = MOVE_NAMES
    seat_colours = COLOURS

    def __init__(self, settings: SnowdriftSettings):
        s = settings
        if min(s.players, s.drifts, s.episode_limit) < 1 or s.grid_size < 2:
            raise UserError("snowdrift needs at least one player, one drift, an episode_limit of 1 and a board of 2×2.")
        if s.players + s.drifts > s.grid_size**2:
            raise UserError(
                f"a board of {s.grid_size}×{s.grid_size} is too small for {s.players} players and {s.drifts} drifts."
            )
        self.settings = s
        self.scale = 1 / s.grid_size
        layout = (("players", (s.players, 2)), ("drifts", (s.drifts, 3)), ("time", (1,)))
        size = 2 * s.players + 3 * s.drifts + 1
        integers = Storage("int8" if max(s.grid_size, s.episode_limit) <= 127 else "int16", self.scale)
        agents = rows_of(0, s.players, 2)
        self.spec = Spec(
            "snowdrift", s.players, 5, size, size, s.episode_limit, "mixed", integers, integers, layout, agents,
            agents_in_obs="players",
        )  # fmt: skip
        self.n_goals, self.goal_size = s.drifts, GOAL_SIZE
        self.goal_types = (0,) * s.drifts
        self.goal_names = tuple(str(i + 1) for i in range(s.drifts))

    def reset(self, key: Array) -> tuple[Snow, Timestep]:
        n = self.settings.players
        cells = scatter(key, self.settings.grid_size, n + self.settings.drifts)
        none = jnp.full(n, -1, jnp.int32)
        start = Snow(cells[:n], cells[n:], jnp.ones(self.settings.drifts, bool), none, jnp.int32(0))
        return start, self._timestep(start, jnp.zeros(n))

    def step(self, state: Snow, actions: Int[Array, " agent"], key: Array) -> tuple[Snow, Timestep]:
        s = self.settings
        players = move(state.players, actions, jnp.ones(s.players, bool), s.grid_size)
        on = (players[:, None] == state.drifts).all(-1) & state.there
        newly_cleared = on.any(0)
        share = s.cost / jnp.maximum(on.sum(0), 1)
        reward = s.benefit * newly_cleared.sum() - (on * share).sum(1)
        cleared = jnp.where(on.any(1), on.argmax(1), -1).astype(jnp.int32)
        new = Snow(players, state.drifts, state.there & ~newly_cleared, cleared, state.t + 1)
        return new, self._timestep(new, reward)

    def goals(self, state: Snow) -> Goals:
        return Goals(state.there, state.cleared)

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        drifts = obs[..., 2 * self.settings.players : -1].reshape(*obs.shape[:-1], self.settings.drifts, 3)
        return relative_goals(drifts, obs[..., :2], self.scale)

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return steps_to(self.goal_features(obs), self.scale)

    def _timestep(self, snow: Snow, reward: Array) -> Timestep:
        n = self.settings.players
        drifts = jnp.concatenate([snow.drifts, jnp.ones_like(snow.drifts[:, :1])], 1) * snow.there[:, None]
        rest = jnp.append(drifts.ravel(), snow.t) * self.scale
        players = each_first(snow.players * self.scale).reshape(n, -1)
        return Timestep(
            obs=jnp.concatenate([players, jnp.broadcast_to(rest, (n, rest.size))], 1),
            state=jnp.concatenate([players[0], rest]),
            avail_actions=stays_on_board(snow.players, self.settings.grid_size),
            reward=reward,
            terminated=~snow.there.any(),
            alive=jnp.ones(n, bool),
            info={"cleared": (~snow.there).sum().astype(jnp.float32)},
        )

    def imagine(self, state: Any, described: np.ndarray) -> Any:
        players, drifts = np.split(described[:-1] / self.scale, [2 * self.settings.players])
        drifts = drifts.reshape(-1, 3)
        return state._replace(players=players.reshape(-1, 2), drifts=drifts[:, :2], there=drifts[:, 2] > 0.5)

    def draw(self, state: Snow) -> Scene:
        scene = board(self.settings.grid_size)
        for name, cell, there in zip(self.goal_names, state.drifts, state.there, strict=True):
            if there:
                disc(scene, cell, 15, SNOW, name)
        for i, cell in enumerate(state.players):
            disc(scene, cell, 10, COLOURS[i % len(COLOURS)], f"{i + 1}", shift=3 * i - 4)
        return scene
