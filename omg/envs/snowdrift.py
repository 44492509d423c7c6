"""Snowdrift (MSG): clearing a drift costs whoever does it and is good for everybody.

A drift is cleared by stepping onto it; players that arrive together share the cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from PIL import Image

from omg.envs.grid import COLOURS, SEEN, board, disc, each_first, from_here, move, scatter, stays_on_board, steps_to
from omg.envs.multiagentenv import Goals, MultiAgentEnv, Spec, Storage, Timestep
from omg.utils.settings import UserError

SNOW = (126, 160, 190)


@dataclass(frozen=True)
class SnowdriftSettings:
    grid_size: int = 8
    players: int = 4
    drifts: int = 6
    benefit: float = 6.0
    cost: float = 4.0
    episode_limit: int = 50


class Snow(NamedTuple):
    players: Int[Array, "player 2"]
    drifts: Int[Array, "drift 2"]
    there: Bool[Array, " drift"]
    cleared: Int[Array, " player"]
    """Which drift each player cleared at this step; -1: none."""
    t: Int[Array, ""]


class Snowdrift(MultiAgentEnv):
    """Everybody sees the whole board: players (oneself first), drifts as row, column and whether still there."""

    Settings = SnowdriftSettings

    def __init__(self, settings: SnowdriftSettings):
        s = settings
        if min(s.players, s.drifts, s.episode_limit) < 1 or s.grid_size < 2:
            raise UserError(
                "snowdrift needs a player, a drift, an episode_limit of 1 or more and a board of 2×2 or more."
            )
        if s.players + s.drifts > s.grid_size**2:
            raise UserError(
                f"a board of {s.grid_size}×{s.grid_size} is too small for {s.players} players and {s.drifts} drifts."
            )
        self.settings = s
        self.scale = 1 / s.grid_size
        layout = (("players", (s.players, 2)), ("drifts", (s.drifts, 3)), ("time", (1,)))
        size = 2 * s.players + 3 * s.drifts + 1
        whole = Storage("int8" if max(s.grid_size, s.episode_limit) <= 127 else "int16", self.scale)
        self.spec = Spec("snowdrift", s.players, 5, size, size, s.episode_limit, "mixed", whole, whole, layout)
        self.n_goals, self.goal_size = s.drifts, SEEN
        self.goal_kinds = (0,) * s.drifts
        self.goal_names = tuple(str(i + 1) for i in range(s.drifts))

    def reset(self, key: Array) -> tuple[Snow, Timestep]:
        n = self.settings.players
        cells = scatter(key, self.settings.grid_size, n + self.settings.drifts)
        nobody = jnp.full(n, -1, jnp.int32)
        start = Snow(cells[:n], cells[n:], jnp.ones(self.settings.drifts, bool), nobody, jnp.int32(0))
        return start, self._show(start, jnp.zeros(n))

    def step(self, state: Snow, actions: Int[Array, " agent"], key: Array) -> tuple[Snow, Timestep]:
        s = self.settings
        players = move(state.players, actions, jnp.ones(s.players, bool), s.grid_size)
        on = (players[:, None] == state.drifts).all(-1) & state.there
        gone = on.any(0)
        share = s.cost / jnp.maximum(on.sum(0), 1)
        reward = s.benefit * gone.sum() - (on * share).sum(1)
        cleared = jnp.where(on.any(1), on.argmax(1), -1).astype(jnp.int32)
        new = Snow(players, state.drifts, state.there & ~gone, cleared, state.t + 1)
        return new, self._show(new, reward)

    def goals(self, state: Snow) -> Goals:
        return Goals(state.there, state.cleared)

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        drifts = obs[..., 2 * self.settings.players : -1].reshape(*obs.shape[:-1], self.settings.drifts, 3)
        return from_here(drifts, obs[..., :2], self.scale)

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return steps_to(self.goal_features(obs), self.scale)

    def _show(self, snow: Snow, reward: Array) -> Timestep:
        n = self.settings.players
        drifts = jnp.concatenate([snow.drifts, jnp.ones_like(snow.drifts[:, :1])], 1) * snow.there[:, None]
        rest = jnp.append(drifts.ravel(), snow.t) * self.scale
        seen = each_first(snow.players * self.scale).reshape(n, -1)
        return Timestep(
            obs=jnp.concatenate([seen, jnp.broadcast_to(rest, (n, rest.size))], 1),
            state=jnp.concatenate([seen[0], rest]),
            avail_actions=stays_on_board(snow.players, self.settings.grid_size),
            reward=reward,
            terminated=~snow.there.any(),
            alive=jnp.ones(n, bool),
            info={"cleared": (~snow.there).sum().astype(jnp.float32)},
        )

    def render(self, state: Snow) -> Image.Image:
        picture, draw = board(self.settings.grid_size)
        for name, place, there in zip(self.goal_names, state.drifts, state.there, strict=True):
            if there:
                disc(draw, place, 15, SNOW, name)
        for i, place in enumerate(state.players):
            disc(draw, place, 10, COLOURS[i % len(COLOURS)], f"{i + 1}", shift=3 * i - 4)
        return picture
