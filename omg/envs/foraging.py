"""Level-based foraging: agents walk on a board and load food, alone or together, as their levels allow.

The rules are those of Jumanji's LevelBasedForaging (the tests compare the two step by step); initial positions and the
compact global state are our own. With `max_level: 1` (the default) one agent is enough to load any food, and the first
agent to load it gets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.grid import CELL, COLOURS, GOAL_SIZE, MOVE_NAMES, board, disc, relative_goals, steps_to
from omg.envs.multiagentenv import Goals, MultiAgentEnv, Spec, Storage, Timestep, rows_of
from omg.envs.scene import Scene
from omg.utils.settings import UserError

NOOP, UP, DOWN, LEFT, RIGHT, LOAD = range(6)
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], np.int32)
"""What every action adds to row and column."""
FOOD_COLOUR = (192, 57, 43)


@dataclass(frozen=True)
class ForagingSettings:
    """The settings in `env_args`. The environment configuration foraging.yaml explains them."""

    grid_size: int = 8
    players: int = 2
    food: int = 3
    episode_limit: int = 50
    sight: int | None = None
    max_level: int = 1
    force_coop: bool = False
    penalty: float = 0.0


class Board(NamedTuple):
    """Positions are rows and columns."""

    agents: Int[Array, "agent 2"]
    agent_level: Int[Array, " agent"]
    loading: Bool[Array, " agent"]
    """Whether each agent chose to load in the last step."""
    food: Int[Array, "food 2"]
    food_level: Int[Array, " food"]
    eaten: Bool[Array, " food"]
    taken: Int[Array, " agent"]
    """The food item that each agent loaded in the last step; -1: none."""


class Foraging(MultiAgentEnv):
    """Level-based foraging.

    An observation has row, column and level of every food item and agent, divided by the size of the board.
    The observing agent comes first among the agents. Items out of sight have the entries of an absent item.
    """

    Settings = ForagingSettings
    action_names = (*MOVE_NAMES, "load")
    seat_colours = COLOURS

    def __init__(self, settings: ForagingSettings):
        s = settings
        _check(s)
        self.settings = s
        self.sight = s.grid_size if s.sight is None else s.sight
        size = 3 * (s.food + s.players)
        # Positions and levels are small integers. Networks see them in units of the board; replay stores the integers.
        self.scale = 1 / s.grid_size
        whole = Storage("int8", self.scale) if s.grid_size <= 127 else Storage()
        agents = rows_of(3 * s.food, s.players, 3)
        layout = (("food", (s.food, 3)), ("players", (s.players, 3)))
        self.spec = Spec(
            "foraging", s.players, 6, size, size, s.episode_limit, "mixed", whole, whole, layout, agents, "players",
            partial=self.sight < s.grid_size - 1,
        )  # fmt: skip
        self.n_goals, self.goal_size = s.food, GOAL_SIZE
        self.goal_types = (0,) * s.food
        self.goal_names = tuple(str(i + 1) for i in range(s.food))

    def reset(self, key: Array) -> tuple[Board, Timestep]:
        """Food is off the border and never adjacent to food; agents are on any other cells."""
        s, n = self.settings, self.settings.grid_size
        # One sample of noise for everything: random number generators dominate the compile time.
        noise = jax.random.uniform(key, ((s.food + 1) * n * n + s.players + s.food,))
        cells, levels = noise[: (s.food + 1) * n * n].reshape(s.food + 1, n * n), noise[(s.food + 1) * n * n :]
        row, column = jnp.divmod(jnp.arange(n * n), n)
        free = (row > 0) & (row < n - 1) & (column > 0) & (column < n - 1)
        food = []
        for of_food in cells[:-1]:
            cell = jnp.where(free, of_food, -1.0).argmax()
            food.append(cell)
            free &= abs(row - cell // n) + abs(column - cell % n) > 1
        foods = jnp.stack(food)
        agents = jax.lax.top_k(cells[-1].at[foods].set(-1.0), s.players)[1]
        agent_level = (levels[: s.players] * s.max_level).astype(jnp.int32) + 1
        # Food needs at most the three weakest agents together; with `max_level: 1` a single agent.
        highest = jnp.sort(agent_level)[:3].sum() if s.max_level > 1 else jnp.int32(1)
        sampled = jnp.minimum((levels[s.players :] * highest).astype(jnp.int32) + 1, highest)
        state = Board(
            agents=jnp.stack([agents // n, agents % n], 1).astype(jnp.int32),
            agent_level=jnp.minimum(agent_level, s.max_level),
            loading=jnp.zeros(s.players, bool),
            food=jnp.stack([foods // n, foods % n], 1).astype(jnp.int32),
            food_level=jnp.full(s.food, highest) if s.force_coop else sampled,
            eaten=jnp.zeros(s.food, bool),
            taken=jnp.full(s.players, -1, jnp.int32),
        )
        return state, self._timestep(state, jnp.zeros(s.players))

    def step(self, state: Board, actions: Int[Array, " agent"], key: Array) -> tuple[Board, Timestep]:
        s = self.settings
        wanted = state.agents + jnp.asarray(MOVES)[actions]
        agents = jnp.where(self._blocked(state, wanted[:, None])[:, 0, None], state.agents, wanted)
        # Agents that chose the same cell stay where they were.
        same = (agents[:, None] == agents).all(-1) & ~jnp.eye(s.players, dtype=bool)
        agents = jnp.where(same.any(-1, keepdims=True), state.agents, agents)

        loading = actions == LOAD
        adjacent = abs(agents[:, None] - state.food).sum(-1) == 1
        levels = jnp.where(adjacent & loading[:, None] & ~state.eaten, state.agent_level[:, None], 0)
        together = levels.sum(0)
        eaten_now = together >= state.food_level
        # Too weak together: all agents pay the penalty. The rewards of a board add up to 1.
        penalty = jnp.where((together > 0) & ~eaten_now, s.penalty, 0.0)
        shares = levels * eaten_now * state.food_level - penalty
        total = jnp.maximum(together, 1) * state.food_level.sum()
        reward = jnp.where(together > 0, shares / total, 0.0).sum(-1)

        takes = adjacent & loading[:, None] & eaten_now
        taken = jnp.where(takes.any(-1), takes.argmax(-1), -1).astype(jnp.int32)
        state = state._replace(agents=agents, loading=loading, eaten=state.eaten | eaten_now, taken=taken)
        return state, self._timestep(state, reward)

    def _blocked(self, state: Board, cells: Int[Array, "agent move 2"]) -> Bool[Array, "agent move"]:
        """Cells that each agent cannot enter: off the board, on another agent, or on food."""
        outside = ((cells < 0) | (cells >= self.settings.grid_size)).any(-1)
        others = ~jnp.eye(self.settings.players, dtype=bool)[:, None]
        on_agent = ((cells[:, :, None] == state.agents).all(-1) & others).any(-1)
        on_food = ((cells[:, :, None] == state.food).all(-1) & ~state.eaten).any(-1)
        return outside | on_agent | on_food

    def _timestep(self, state: Board, reward: Array) -> Timestep:
        there = ~state.eaten[:, None]
        absent = jnp.array([-1, -1, 0])
        foods = jnp.where(there, jnp.concatenate([state.food, state.food_level[:, None]], 1), absent)
        players = jnp.concatenate([state.agents, state.agent_level[:, None]], 1)
        near_food = ((abs(state.agents[:, None] - state.food).sum(-1) == 1) & ~state.eaten).any(-1)
        avail = ~self._blocked(state, state.agents[:, None] + MOVES)
        return Timestep(
            obs=self._observe(state) * self.scale,
            state=jnp.concatenate([foods.ravel(), players.ravel()]).astype(jnp.float32) * self.scale,
            avail_actions=avail.at[:, LOAD].set(near_food),
            reward=reward.astype(jnp.float32),
            terminated=state.eaten.all(),
            alive=jnp.ones(self.settings.players, bool),
            info={"food_eaten": state.eaten.mean()},
        )

    def _observe(self, state: Board) -> Float[Array, "agent obs"]:
        """Every item within sight, in coordinates of the agent's window; the other agents in order of their seats."""
        n = self.settings.players
        order = np.array([[i, *(j for j in range(n) if j != i)] for i in range(n)])
        corner = jnp.maximum(state.agents - self.sight, 0)

        def view(position: Array, level: Array, exists: Array) -> Array:
            seen = (abs(position - state.agents[:, None]) <= self.sight).all(-1) & exists
            rows = jnp.concatenate([position - corner[:, None], level[..., None]], -1)
            return jnp.where(seen[..., None], rows, jnp.array([-1, -1, 0]))

        foods = (jnp.broadcast_to(x, (n, *x.shape)) for x in (state.food, state.food_level, ~state.eaten))
        agents = (state.agents[order], state.agent_level[order], jnp.ones((n, n), bool))
        both = jnp.concatenate([view(*foods), view(*agents)], 1)
        return both.reshape(n, -1).astype(jnp.float32)

    def goals(self, state: Board) -> Goals:
        """The goals are the food items."""
        return Goals(~state.eaten, state.taken)

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """Relative positions of the food items; the level takes the place of the existence flag (0: eaten, unseen)."""
        n = self.settings.food
        items = obs.reshape(*obs.shape[:-1], -1, 3)
        return relative_goals(items[..., :n, :], items[..., n, :2], self.scale)

    def goal_distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return steps_to(self.goal_features(obs), self.scale)

    def imagine(self, state: Any, described: np.ndarray) -> Any:
        food, agents = np.split(described.reshape(-1, 3) / self.scale, [self.settings.food])
        levels = food[:, 2].round()
        return state._replace(
            agents=agents[:, :2],
            loading=np.zeros(len(agents), bool),
            food=food[:, :2],
            food_level=levels,
            eaten=levels < 1,
        )

    def draw(self, state: Board) -> Scene:
        scene = board(self.settings.grid_size)
        for position, level, eaten in zip(state.food, state.food_level, state.eaten, strict=True):
            if not eaten:
                disc(scene, position, 11, FOOD_COLOUR, str(int(level)))
        for i, (position, loading) in enumerate(zip(state.agents, state.loading, strict=True)):
            disc(scene, position, 16, COLOURS[i % len(COLOURS)], f"{i + 1}" + ("!" if loading else ""))
            if self.spec.partial:
                row, column = (int(p) for p in position)
                box = (column - self.sight, row - self.sight, column + self.sight + 1, row + self.sight + 1)
                scene.sights.append(["rectangle", *(edge * CELL for edge in box)])
        return scene


def _check(s: ForagingSettings) -> None:
    if s.grid_size < 5:
        raise UserError(f"env_args.grid_size is {s.grid_size}; it must be 5 or more.")
    if s.players < 1 or s.food < 1 or s.max_level < 1 or s.episode_limit < 1:
        raise UserError("env_args.players, food, max_level and episode_limit must each be 1 or more.")
    if s.sight is not None and not 1 <= s.sight <= s.grid_size:
        raise UserError(f"env_args.sight is {s.sight}; it must be between 1 and grid_size ({s.grid_size}).")
    if (s.grid_size - 2) ** 2 - s.players <= 5 * s.food:
        most = ((s.grid_size - 2) ** 2 - s.players - 1) // 5
        raise UserError(f"a board of {s.grid_size}×{s.grid_size} holds at most {most} food items, not {s.food}.")
    if s.force_coop and s.max_level == 1 and s.players > 1:
        raise UserError("env_args.force_coop needs levels above 1: add env_args.max_level=2.")
