"""Predator–prey: JaxMARL's MPE simple_tag. The agents control the predators; the prey has a scripted policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.envs.grid import COLOURS
from omg.envs.jaxmarl_adapter import import_jaxmarl
from omg.envs.multiagentenv import GameType, Goals, MultiAgentEnv, Spec, Timestep, rows_of
from omg.envs.scene import LINES, Scene
from omg.utils.settings import UserError

DIRECTIONS = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
"""The directions of MPE's five actions."""
SIDES = DIRECTIONS[1:]
"""The four sides of the prey, which are the goals of the predators."""


@dataclass(frozen=True)
class PredatorPreySettings:
    """The settings in `env_args`. The environment configuration predator_prey.yaml explains them."""

    predators: int = 3
    obstacles: int = 2
    episode_limit: int = 25
    prey: Literal["flee", "random", "still"] = "flee"
    hesitation: float = 0.5
    approach: float = 5.0
    credit: Literal["own", "team"] = "own"


class PredatorPrey(MultiAgentEnv):
    """A predator that touches the prey earns 10 at every step of the contact; with `credit: team` all predators do.

    Random policies rarely touch the prey. Each predator therefore also earns `approach` per unit of distance by which
    it comes closer to the prey, and loses as much when the distance grows. Over an episode this adds up to at most
    `approach` times the initial distance. With `approach: 0` only catches are rewarded. `info["catches"]` counts the
    catches without this shaping.
    """

    Settings = PredatorPreySettings
    seat_colours = COLOURS

    def __init__(self, settings: PredatorPreySettings):
        s = settings
        if s.predators < 1 or s.obstacles < 0 or s.episode_limit < 1:
            raise UserError("predator_prey needs predators and episode_limit of 1 or more, and obstacles of 0 or more.")
        self.settings = s
        jaxmarl = import_jaxmarl()
        self.game = jaxmarl.make(
            "MPE_simple_tag_v3",
            num_good_agents=1,
            num_adversaries=s.predators,
            num_obs=s.obstacles,
            max_steps=s.episode_limit,
        )
        sizes = np.asarray(self.game.rad)
        self.touching = float(sizes[0] + sizes[s.predators])
        n, entities = s.predators, s.predators + 1 + s.obstacles
        obs_size = 4 + 2 * s.obstacles + 2 * n + 2
        state_size = 2 * entities + 2 * (n + 1)
        game_type: GameType = "mixed" if s.credit == "own" else "cooperative"
        position, velocity = rows_of(0, n, 2), rows_of(2 * entities, n, 2)
        agents = tuple(p + v for p, v in zip(position, velocity, strict=True))
        layout = (
            ("velocity", (2,)), ("position", (2,)), ("obstacles", (s.obstacles, 2)), ("predators", (n - 1, 2)),
            ("prey", (1, 2)), ("prey_velocity", (2,)),
        )  # fmt: skip
        self.spec = Spec(
            "predator_prey", n, 5, obs_size, state_size, s.episode_limit, game_type, obs_layout=layout,
            agents_in_state=agents, agents_in_obs="predators", entity_step=float(self.game.max_speed[0] * self.game.dt),
        )  # fmt: skip
        self.n_goals, self.goal_size = len(SIDES), 5
        self.goal_types = tuple(range(len(SIDES)))
        self.goal_names = ("left", "right", "below", "above")

    def reset(self, key: Array) -> tuple[Any, Timestep]:
        obs, state = self.game.reset(key)
        return (state, jnp.zeros(())), self._timestep(state, obs, jnp.zeros(self.spec.n_agents), jnp.zeros(()))

    def step(self, state: Any, actions: Int[Array, " agent"], key: Array) -> tuple[Any, Timestep]:
        game, catches = state
        k_prey, k_env = jax.random.split(key)
        moves = jnp.append(actions, self.prey_action(game, k_prey))
        by_agent = {name: moves[i] for i, name in enumerate(self.game.agents)}
        obs, after, _, _, _ = self.game.step_env(k_env, game, by_agent)
        touches = self._distance(after) < self.touching
        paid = touches if self.settings.credit == "own" else jnp.full(touches.shape, touches.sum())
        reward = 10.0 * paid + self.settings.approach * (self._distance(game) - self._distance(after))
        catches = catches + touches.sum()
        return (after, catches), self._timestep(after, obs, reward, catches)

    def goals(self, state: Any) -> Goals:
        """The four sides of the prey. A predator that touches the prey reached the side it is on."""
        game, n = state[0], self.spec.n_agents
        away = game.p_pos[:n] - game.p_pos[n]
        side = (away @ SIDES.T).argmax(-1).astype(jnp.int32)
        return Goals(jnp.ones(len(SIDES), bool), jnp.where(self._distance(game) < self.touching, side, -1))

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """The offset to each side of the prey, its length, and the velocity of the prey."""
        prey, velocity = obs[..., None, -4:-2], obs[..., None, -2:]
        offset = prey + self.touching * SIDES
        distance = jnp.sqrt((offset**2).sum(-1, keepdims=True))
        return jnp.concatenate([offset, distance, jnp.broadcast_to(velocity, offset.shape)], -1)

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return self.goal_features(obs)[..., 2]

    def _distance(self, game: Any) -> Float[Array, " agent"]:
        n = self.spec.n_agents
        return jnp.sqrt(((game.p_pos[:n] - game.p_pos[n]) ** 2).sum(-1))

    def prey_action(self, game_state: Any, key: Array) -> Int[Array, ""]:
        """The scripted policy of the prey.

        `flee` takes the action after which the nearest predator is farthest away, with a penalty for leaving the field.
        With probability `hesitation` it does nothing.
        """
        if self.settings.prey == "still":
            return jnp.int32(0)
        if self.settings.prey == "random":
            return jax.random.randint(key, (), 0, 5)
        n, game, state = self.settings.predators, self.game, game_state
        velocity = state.p_vel[n] * (1 - game.damping) + DIRECTIONS * game.accel[n] * game.dt
        ahead = state.p_pos[n] + 3 * game.dt * velocity
        predators = state.p_pos[:n] + game.dt * state.p_vel[:n]
        distance = jnp.sqrt(((ahead[:, None] - predators) ** 2).sum(-1)).min(-1)
        outside = jnp.maximum(abs(ahead) - 0.9, 0.0).sum(-1)
        away = (distance - 3 * outside).argmax()
        return jnp.where(jax.random.uniform(key) < self.settings.hesitation, 0, away)

    def _timestep(self, state: Any, obs: dict[str, Array], reward: Array, catches: Array) -> Timestep:
        n = self.spec.n_agents
        return Timestep(
            obs=jnp.stack([obs[name] for name in self.game.adversaries]),
            state=jnp.concatenate([state.p_pos.ravel(), state.p_vel[: n + 1].ravel()]),
            avail_actions=jnp.ones((n, 5), bool),
            reward=reward,
            terminated=jnp.zeros((), bool),
            alive=jnp.ones(n, bool),
            info={"catches": catches},
        )

    def imagine(self, state: Any, described: np.ndarray) -> Any:
        game, catches = state
        return game.replace(p_pos=described[: game.p_pos.size].reshape(game.p_pos.shape)), catches

    def draw(self, state: Any) -> Scene:
        game, _ = state
        size, half = 360, 1.5
        scene = Scene(size, size)
        edge = [size * (half - 1) / (2 * half), size * (half + 1) / (2 * half)]
        scene.rectangle((edge[0], edge[0], edge[1], edge[1]), outline=LINES)
        n = self.settings.predators
        colours = [COLOURS[i % len(COLOURS)] for i in range(n)]
        colours += [(192, 57, 43)] + [(150, 146, 138)] * self.settings.obstacles
        for i, ((x, y), radius, colour) in enumerate(zip(game.p_pos, self.game.rad, colours, strict=True)):
            scale = size / (2 * half)
            cx, cy, r = (float(x) + half) * scale, (half - float(y)) * scale, float(radius) * scale
            scene.disc(cx, cy, r, colour)
            if i < n:
                scene.text(cx, cy, str(i + 1))
        return scene
