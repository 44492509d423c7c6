"""Foraging: Jumanji's level-based foraging, with start positions of our own and a compact global state.

Jumanji's generator keeps agents out of every row whose number is a coordinate of some food, which with more food can be
all of them; ours places agents on any free cell. With `max_level: 1` (the default) whoever loads food first has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from jumanji.environments.routing.lbf.env import LevelBasedForaging
from jumanji.environments.routing.lbf.generator import RandomGenerator
from jumanji.environments.routing.lbf.types import Agent, Food, State
from PIL import Image, ImageDraw

from omg.envs.grid import SEEN, from_here, steps_to
from omg.envs.multiagentenv import Goals, MultiAgentEnv, Spec, Storage, Timestep
from omg.utils.settings import UserError

NOOP, UP, DOWN, LEFT, RIGHT, LOAD = range(6)

NOWHERE = -9
"""Beside no cell of any board."""


@dataclass(frozen=True)
class ForagingSettings:
    grid_size: int = 8
    players: int = 2
    food: int = 3
    episode_limit: int = 50
    sight: int | None = None
    max_level: int = 1
    force_coop: bool = False
    penalty: float = 0.0


class Foraging(MultiAgentEnv):
    """Two numbers of place and one of level for every food item and agent, as each agent sees them.

    All of them are divided by the board's size.
    """

    Settings = ForagingSettings

    def __init__(self, settings: ForagingSettings):
        s = settings
        _check(s)
        self.settings = s
        sight = s.grid_size if s.sight is None else s.sight
        generator = _Generator(s.grid_size, s.players, s.food, sight, max(s.max_level, 2), s.force_coop)
        generator.highest = s.max_level
        self.game = LevelBasedForaging(generator, time_limit=s.episode_limit + 1, penalty=s.penalty)
        size = 3 * (s.food + s.players)
        # Places and levels are small whole numbers. Networks see them in units of the board, replay keeps them whole.
        self.scale = 1 / s.grid_size
        whole = Storage("int8", self.scale) if s.grid_size <= 127 else Storage()
        self.spec = Spec("foraging", s.players, 6, size, size, s.episode_limit, "mixed", whole, whole)
        self.n_goals, self.goal_size = s.food, SEEN
        self.goal_kinds = (0,) * s.food
        self.goal_names = tuple(str(i + 1) for i in range(s.food))

    def reset(self, key: Array) -> tuple[State, Timestep]:
        state, timestep = self.game.reset(key)
        return state, self._show(state, timestep.observation, jnp.zeros(self.settings.players))

    def step(self, state: State, actions: Int[Array, " agent"], key: Array) -> tuple[State, Timestep]:
        # What was eaten before is out of the way, so that nobody beside it seems to have eaten it just now.
        food = state.food_items
        food = food.replace(position=jnp.where(food.eaten[:, None], NOWHERE, food.position))  # type: ignore[attr-defined]
        state, timestep = self.game.step(state.replace(food_items=food), actions)  # type: ignore[attr-defined]
        return state, self._show(state, timestep.observation, timestep.reward)

    def _show(self, state: State, seen, reward: Array) -> Timestep:
        food, agents = state.food_items, state.agents
        gone = food.eaten[:, None]
        foods = jnp.where(gone, jnp.array([-1, -1, 0]), jnp.concatenate([food.position, food.level[:, None]], 1))
        players = jnp.concatenate([agents.position, agents.level[:, None]], 1)
        return Timestep(
            obs=seen.agents_view.astype(jnp.float32) * self.scale,
            state=jnp.concatenate([foods.ravel(), players.ravel()]).astype(jnp.float32) * self.scale,
            avail_actions=seen.action_mask,
            reward=reward.astype(jnp.float32),
            terminated=food.eaten.all(),
            alive=jnp.ones(self.settings.players, bool),
            info={"food_eaten": food.eaten.mean()},
        )

    def goals(self, state: State) -> Goals:
        """Food. What lies eaten beside an agent that loads was eaten just now."""
        food, agents = state.food_items, state.agents
        beside = abs(agents.position[:, None] - food.position).sum(-1) == 1
        took = beside & food.eaten & agents.loading[:, None]
        return Goals(~food.eaten, jnp.where(took.any(-1), took.argmax(-1), -1).astype(jnp.int32))

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """Food as seen from here; instead of whether it is there its level (none: eaten, or out of sight)."""
        n = self.settings.food
        items = obs.reshape(*obs.shape[:-1], -1, 3)
        return from_here(items[..., :n, :], items[..., n, :2], self.scale)

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return steps_to(self.goal_features(obs), self.scale)

    def render(self, state: State) -> Image.Image:
        cell, n = 40, self.settings.grid_size
        picture = Image.new("RGB", (n * cell + 1, n * cell + 1), (247, 245, 240))
        draw = ImageDraw.Draw(picture)
        for i in range(n + 1):
            draw.line([(0, i * cell), (n * cell, i * cell)], fill=(214, 210, 200))
            draw.line([(i * cell, 0), (i * cell, n * cell)], fill=(214, 210, 200))

        def disc(position, radius: int, colour, label: str) -> None:
            y, x = (int(p) * cell + cell // 2 for p in position)
            draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)
            draw.text((x, y), label, fill="white", anchor="mm")

        for position, level, eaten in zip(
            state.food_items.position, state.food_items.level, state.food_items.eaten, strict=True
        ):
            if not eaten:
                disc(position, 11, (192, 57, 43), str(int(level)))
        colours = [(41, 98, 155), (39, 125, 90), (120, 80, 160), (190, 120, 30)]
        for i, (position, loading) in enumerate(zip(state.agents.position, state.agents.loading, strict=True)):
            disc(position, 16, colours[i % len(colours)], f"{i + 1}" + ("!" if loading else ""))
        return picture


class _Generator(RandomGenerator):
    """Food off the edge and never side by side; agents on any other cell."""

    highest: int = 1

    def __call__(self, key: Array) -> State:
        k_food, k_agents, k_food_level, k_agent_level, key = jax.random.split(key, 5)
        n = self.grid_size
        y, x = jnp.divmod(jnp.arange(n * n), n)
        free = (y > 0) & (y < n - 1) & (x > 0) & (x < n - 1)
        food = []
        for lots in jax.random.uniform(k_food, (self.num_food, n * n)):
            cell = jnp.where(free, lots, -1.0).argmax()
            food.append(cell)
            free &= abs(y - cell // n) + abs(x - cell % n) > 1
        foods = jnp.stack(food)
        lots = jax.random.uniform(k_agents, (n * n,)).at[foods].set(-1.0)
        agents = jax.lax.top_k(lots, self.num_agents)[1]

        levels = self.sample_levels(self.highest, (self.num_agents,), k_agent_level)
        most: Any = jnp.sort(levels)[:3].sum() if self.highest > 1 else jnp.int32(1)
        sampled = self.sample_levels(most, (self.num_food,), k_food_level)
        return State(
            agents=Agent(
                id=jnp.arange(self.num_agents),
                position=jnp.stack([agents // n, agents % n], 1),
                level=levels,
                loading=jnp.zeros(self.num_agents, bool),
            ),
            food_items=Food(
                id=jnp.arange(self.num_food),
                position=jnp.stack([foods // n, foods % n], 1),
                level=jnp.full(self.num_food, most) if self.force_coop else sampled,
                eaten=jnp.zeros(self.num_food, bool),
            ),
            step_count=jnp.zeros((), jnp.int32),
            key=key,
        )


def _check(s: ForagingSettings) -> None:
    if s.grid_size < 5:
        raise UserError(f"env_args.grid_size is {s.grid_size}; the smallest board is 5.")
    if s.players < 1 or s.food < 1 or s.max_level < 1 or s.episode_limit < 1:
        raise UserError("env_args.players, food, max_level and episode_limit must each be 1 or more.")
    if s.sight is not None and not 1 <= s.sight <= s.grid_size:
        raise UserError(f"env_args.sight is {s.sight}; it goes from 1 to grid_size ({s.grid_size}).")
    if (s.grid_size - 2) ** 2 - s.players <= 5 * s.food:
        most = ((s.grid_size - 2) ** 2 - s.players - 1) // 5
        raise UserError(f"a board of {s.grid_size}×{s.grid_size} holds at most {most} food items, not {s.food}.")
    if s.force_coop and s.max_level == 1 and s.players > 1:
        raise UserError("env_args.force_coop needs levels: add env_args.max_level=2.")
