"""Stag hunt (MSH): one hunter can catch a hare, and it takes at least two hunters together to catch a stag.

A hunter catches a hare by stepping onto it; if several arrive at the same step, one of them is sampled uniformly. A
stag is caught as soon as two or more hunters stand on its cell, and they share its reward. A hunter that has caught
something leaves the episode, and the others continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
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

BROWN, RED = (150, 111, 72), (176, 58, 46)


@dataclass(frozen=True)
class StagHuntSettings:
    """The settings in `env_args`. The environment configuration stag_hunt.yaml explains them."""

    grid_size: int = 8
    hunters: int = 4
    hares: int = 4
    stags: int = 1
    hare_reward: float = 1.0
    stag_reward: float = 10.0
    episode_limit: int = 30


class Hunt(NamedTuple):
    """The environment state. Cells are (row, column). The hares come before the stags in `prey`."""

    hunters: Int[Array, "hunter 2"]
    prey: Int[Array, "prey 2"]
    hunting: Bool[Array, " hunter"]
    """False for hunters that left the episode."""
    there: Bool[Array, " prey"]
    """False for prey that was caught."""
    caught: Int[Array, " hunter"]
    """Which prey each hunter caught in the last step; -1 if none."""
    t: Int[Array, ""]


class StagHunt(MultiAgentEnv):
    """The environment is fully observed.

    An observation lists row, column and presence of each hunter (the observing hunter first) and of each prey, then the
    time step. All entries are divided by the size of the board. Absent hunters and prey have zeros.
    """

    Settings = StagHuntSettings
    action_names = MOVE_NAMES
    seat_colours = COLOURS

    def __init__(self, settings: StagHuntSettings):
        s = settings
        if min(s.hunters, s.hares + s.stags, s.episode_limit) < 1 or min(s.hares, s.stags) < 0 or s.grid_size < 2:
            raise UserError("stag_hunt needs at least one hunter, one prey, an episode_limit of 1 and a board of 2×2.")
        if s.hunters + s.hares + s.stags > s.grid_size**2:
            raise UserError(
                f"a board of {s.grid_size}×{s.grid_size} is too small for {s.hunters} hunters and "
                f"{s.hares + s.stags} prey, which start on different cells."
            )
        self.settings = s
        self.n_prey = s.hares + s.stags
        self.is_stag = jnp.arange(self.n_prey) >= s.hares
        self.scale = 1 / s.grid_size
        layout = (("hunters", (s.hunters, 3)), ("hares", (s.hares, 3)), ("stags", (s.stags, 3)), ("time", (1,)))
        size = 3 * (s.hunters + self.n_prey) + 1
        integers = Storage("int8" if max(s.grid_size, s.episode_limit) <= 127 else "int16", self.scale)
        agents = rows_of(0, s.hunters, 3)
        self.spec = Spec(
            "stag_hunt", s.hunters, 5, size, size, s.episode_limit, "mixed", integers, integers, layout, agents,
            agents_in_obs="hunters",
        )  # fmt: skip
        self.n_goals, self.goal_size = self.n_prey, GOAL_SIZE + 1
        self.goal_types = (0,) * s.hares + (1,) * s.stags
        self.goal_names = (*(f"h{i + 1}" for i in range(s.hares)), *(f"S{i + 1}" for i in range(s.stags)))

    def reset(self, key: Array) -> tuple[Hunt, Timestep]:
        n = self.settings.hunters
        cells = scatter(key, self.settings.grid_size, n + self.n_prey)
        none = jnp.full(n, -1, jnp.int32)
        start = Hunt(cells[:n], cells[n:], jnp.ones(n, bool), jnp.ones(self.n_prey, bool), none, jnp.int32(0))
        return start, self._timestep(start, jnp.zeros(n))

    def step(self, state: Hunt, actions: Int[Array, " agent"], key: Array) -> tuple[Hunt, Timestep]:
        s, hunt = self.settings, state
        hunters = move(hunt.hunters, actions, hunt.hunting, s.grid_size)
        on = (hunters[:, None] == hunt.prey).all(-1) & hunt.hunting[:, None] & hunt.there
        noise = jax.random.uniform(key, (s.hunters, 1))
        sampled = on & (jnp.where(on, noise, -1.0) == jnp.where(on, noise, -1.0).max(0))
        n_hunters = on.sum(0)
        catches = jnp.where(self.is_stag, on & (n_hunters >= 2), sampled)
        worth = jnp.where(self.is_stag, s.stag_reward / jnp.maximum(n_hunters, 1), s.hare_reward)
        reward = (catches * worth).sum(1)
        caught = jnp.where(catches.any(1), catches.argmax(1), -1)
        new = Hunt(
            hunters, hunt.prey, hunt.hunting & ~catches.any(1), hunt.there & ~catches.any(0), caught.astype(jnp.int32),
            hunt.t + 1,
        )  # fmt: skip
        return new, self._timestep(new, reward)

    def goals(self, state: Hunt) -> Goals:
        return Goals(state.there, state.caught)

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        prey = obs[..., 3 * self.settings.hunters : -1].reshape(*obs.shape[:-1], self.n_prey, 3)
        features = relative_goals(prey, obs[..., :2], self.scale)
        is_stag = jnp.broadcast_to(self.is_stag[:, None], (*features.shape[:-1], 1))
        return jnp.concatenate([features, is_stag], -1)

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return steps_to(self.goal_features(obs), self.scale)

    def _timestep(self, hunt: Hunt, reward: Array) -> Timestep:
        hunters = jnp.concatenate([hunt.hunters, jnp.ones_like(hunt.hunters[:, :1])], 1) * hunt.hunting[:, None]
        prey = jnp.concatenate([hunt.prey, jnp.ones_like(hunt.prey[:, :1])], 1) * hunt.there[:, None]
        rest = jnp.append(prey.ravel(), hunt.t) * self.scale
        n = self.settings.hunters
        rows = each_first(hunters * self.scale).reshape(n, -1)
        stay = jnp.arange(5) == 0
        moves = stays_on_board(hunt.hunters, self.settings.grid_size) & hunt.hunting[:, None]
        return Timestep(
            obs=jnp.concatenate([rows, jnp.broadcast_to(rest, (n, rest.size))], 1),
            state=jnp.concatenate([rows[0], rest]),
            avail_actions=moves | stay,
            reward=reward,
            terminated=~hunt.hunting.any(),
            alive=hunt.hunting,
            info={
                "hares": (~hunt.there & ~self.is_stag).sum().astype(jnp.float32),
                "stags": (~hunt.there & self.is_stag).sum().astype(jnp.float32),
            },
        )

    def imagine(self, state: Any, described: np.ndarray) -> Any:
        hunters, prey = np.split(described[:-1].reshape(-1, 3) / self.scale, [self.settings.hunters])
        return state._replace(
            hunters=hunters[:, :2], hunting=hunters[:, 2] > 0.5, prey=prey[:, :2], there=prey[:, 2] > 0.5
        )

    def draw(self, state: Hunt) -> Scene:
        scene = board(self.settings.grid_size)
        for i, (cell, there) in enumerate(zip(state.prey, state.there, strict=True)):
            if there:
                stag = bool(self.is_stag[i])
                disc(scene, cell, 15 if stag else 10, RED if stag else BROWN, self.goal_names[i])
        for i, (cell, hunting) in enumerate(zip(state.hunters, state.hunting, strict=True)):
            if hunting:
                disc(scene, cell, 10, COLOURS[i % len(COLOURS)], f"{i + 1}", shift=3 * i - 4)
        return scene
