"""Matrix games defined by their configuration: one-shot games, repeated games, and games with several states.

`payoff` is one tensor shared by all agents, indexed by their actions; `payoffs` has one such tensor per agent. A game
with several states lists them under `states`. Each state has its payoff and, as `next`, the following state: a name, or
a tensor of names indexed like the payoff (null ends the round). A round starts in the first state of the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.envs.grid import COLOURS
from omg.envs.multiagentenv import GameType, Goals, MultiAgentEnv, Spec, Timestep, rows_of
from omg.envs.scene import LINES, Scene
from omg.envs.strategies import FIRST, memory_one, situation, table_of
from omg.utils.settings import UserError, nearest

TEXT, CHOSEN = (60, 60, 60), (250, 226, 160)
END = -1
AGREEMENT = 0.8
"""The fraction of an agent's actions that a strategy must explain to be its strategy."""


@dataclass(frozen=True)
class MatrixGameSettings:
    """The settings in `env_args`: one of `payoff`, `payoffs` and `states`, the number of rounds, and the time limit.

    Without `episode_limit` the time limit is the length of the longest possible episode.
    """

    payoff: list | None = None
    payoffs: list | None = None
    states: dict | None = None
    rounds: int = 1
    episode_limit: int | None = None


class GameState(NamedTuple):
    """The environment state."""

    at: Int[Array, ""]
    """The index of the game's current state."""
    round: Int[Array, ""]
    last_actions: Int[Array, " agent"]
    """-1 before the first step."""
    explained: Int[Array, "agent strategy"]
    """How many actions of an agent were those of a strategy (no strategy where goals are actions)."""


class MatrixGame(MultiAgentEnv):
    """All agents observe the game's state and the last joint action, both one-hot.

    In a repeated game with one state and two actions the goals are strategies of memory one. At the end an agent has
    reached the one that explains most of its actions, if it explains enough of them and no other explains as many. In
    other games the goals are the actions.
    """

    Settings = MatrixGameSettings
    seat_colours = COLOURS

    def __init__(self, settings: MatrixGameSettings):
        s = settings
        states = s.states
        if states is None:
            states = {"game": {k: v for k, v in (("payoff", s.payoff), ("payoffs", s.payoffs)) if v is not None}}
        elif s.payoff is not None or s.payoffs is not None:
            raise UserError("a matrix game takes either env_args.states or a payoff, not both.")
        if s.rounds < 1:
            raise UserError(f"env_args.rounds is {s.rounds}; it must be 1 or more.")
        names = list(states)
        tensors = [_payoffs(name, states[name]) for name in names]
        if len({t.shape for t in tensors}) != 1:
            raise UserError("the payoffs of all states of a matrix game must have the same shape.")
        shared = all("payoff" in state for state in states.values())
        self.payoff = jnp.array(np.stack(tensors), jnp.float32)
        n, shape = tensors[0].shape[0], tensors[0].shape[1:]
        after = np.stack([_next(state.get("next"), names, shape) for state in states.values()])
        self.next = jnp.array(after)
        limit = s.episode_limit or s.rounds * _longest(after)
        self.rounds, self.n_states = s.rounds, len(names)
        self.actions = jnp.array(shape)
        size = self.n_states + n * max(shape)
        repeated = s.rounds > 1 and self.n_states == 1 and set(shape) == {2}
        known = memory_one() if repeated else {}
        self.strategies = jnp.array([table_of(code) for code in known.values()], jnp.int32).reshape(-1, FIRST + 1)
        self.goal_table = self.strategies * 2.0 - 1.0 if repeated else jnp.eye(max(shape))
        self.n_goals, self.goal_size = self.goal_table.shape
        self.goal_types, self.goal_names = tuple(range(self.n_goals)), tuple(known)
        self.exclusive_goals = not repeated
        agents = rows_of(self.n_states, n, max(shape))
        game_type = _game_type(tensors, shared)
        self.spec = Spec("matrix_game", n, max(shape), size, size, limit, game_type, agents_in_state=agents)
        # By convention the first action of a mixed game cooperates, as the scripted strategies have it.
        dilemma = self.spec.game_type == "mixed" and shape == (2,) * n
        self.action_names = ("cooperate", "defect") if dilemma else tuple(str(i) for i in range(max(shape)))

    def reset(self, key: Array) -> tuple[GameState, Timestep]:
        none = jnp.full(self.spec.n_agents, -1, jnp.int32)
        nothing = jnp.zeros((self.spec.n_agents, len(self.strategies)), jnp.int32)
        state = GameState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), none, nothing)
        return state, self._timestep(state, jnp.zeros(self.spec.n_agents), jnp.zeros((), bool))

    def step(self, state: GameState, actions: Int[Array, " agent"], key: Array) -> tuple[GameState, Timestep]:
        # The joint action as one index: a single lookup for any number of agents.
        sizes = self.payoff.shape[2:]
        joint = jnp.ravel_multi_index(tuple(actions), sizes, mode="clip")
        cells = self.payoff.reshape(self.n_states, self.spec.n_agents, -1)
        reward = cells[state.at, :, joint]
        after = self.next.reshape(self.n_states, -1)[state.at, joint]
        round_over = after == END
        rounds = state.round + round_over
        actions = actions.astype(jnp.int32)
        explained = state.explained
        if len(self.strategies):
            explained += actions[:, None] == self.strategies[:, situation(state.last_actions)].T
        new = GameState(jnp.where(round_over, 0, after), rounds, actions, explained)
        return new, self._timestep(new, reward, rounds >= self.rounds)

    def goals(self, state: GameState) -> Goals:
        """All goals are always open. An agent reached its last action, or at the end its strategy."""
        reached = state.last_actions
        if len(self.strategies):
            most = state.explained.max(-1)
            clear = (state.explained == most[:, None]).sum(-1) == 1
            end = min(self.rounds, self.spec.episode_limit)
            known = clear & (most >= AGREEMENT * end) & (state.round >= end)
            reached = jnp.where(known, state.explained.argmax(-1), -1)
        return Goals(jnp.ones(self.n_goals, bool), reached)

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        return jnp.broadcast_to(self.goal_table, (*obs.shape[:-1], *self.goal_table.shape))

    def own_first(self, obs: Float[Array, "*rows agent obs"]) -> Float[Array, "*rows agent obs"]:
        n, a = self.spec.n_agents, self.spec.n_actions
        last = obs[..., self.n_states :].reshape(*obs.shape[:-1], n, a)
        agent = jnp.arange(n)[:, None]
        last = last[..., agent, (agent + jnp.arange(n)) % n, :].reshape(*obs.shape[:-1], n * a)
        return jnp.concatenate([obs[..., : self.n_states], last], -1)

    def imagine(self, state: Any, described: np.ndarray) -> Any:
        last = described[self.n_states :].reshape(self.spec.n_agents, -1)
        # At the start there is no last action.
        return state._replace(last_actions=np.where(last.max(-1) > 0.5, last.argmax(-1), -1))

    def draw(self, state: GameState) -> Scene:
        """The last action of every agent; for two agents in the table of payoffs."""
        size, left = 300, 70
        scene = Scene(size, size)
        last, n, actions = np.asarray(state.last_actions), self.spec.n_agents, self.spec.n_actions
        rows, column = (actions if n == 2 else n), (size - left - 10) / actions
        row = (size - left - 10) / rows
        for j, name in enumerate(self.action_names):
            colour = COLOURS[1] if n == 2 else TEXT
            scene.text(left + (j + 0.5) * column, left - 14, name, colour)
        for i in range(rows):
            name = self.action_names[i] if n == 2 else f"agent {i + 1}"
            scene.text(left - 6, left + (i + 0.5) * row, name, COLOURS[0] if n == 2 else TEXT, right=True)
            for j in range(actions):
                box = [left + j * column, left + i * row, left + (j + 1) * column, left + (i + 1) * row]
                chosen = (last == (i, j)).all() if n == 2 else last[i] == j
                scene.rectangle(box, CHOSEN if chosen else None, LINES)
                if n == 2 and i < self.actions[0] and j < self.actions[1]:
                    own, other = (f"{float(self.payoff[int(state.at), k, i, j]):g}" for k in (0, 1))
                    scene.text(box[0] + column / 3, box[1] + row / 2, own, COLOURS[0])
                    scene.text(box[0] + 2 * column / 3, box[1] + row / 2, other, COLOURS[1])
        return scene

    def _timestep(self, state: GameState, reward: Array, terminated: Array) -> Timestep:
        n, a = self.spec.n_agents, self.spec.n_actions
        where = jax.nn.one_hot(state.at, self.n_states)
        obs = jnp.concatenate([where, jax.nn.one_hot(state.last_actions, a).ravel()])
        return Timestep(
            obs=jnp.broadcast_to(obs, (n, obs.size)),
            state=obs,
            avail_actions=jnp.arange(a) < self.actions[:, None],
            reward=reward,
            terminated=terminated,
            alive=jnp.ones(n, bool),
            info={},
        )


def _payoffs(name: str, state: Any) -> np.ndarray:
    """The payoff tensor of a state: `[agent, action of agent 1, action of agent 2, …]`."""
    if not isinstance(state, dict):
        raise UserError(f"state {name!r} of the matrix game needs a payoff.")
    for key in state:
        if key not in ("payoff", "payoffs", "next"):
            raise UserError(f"unknown key {key!r} in state {name!r}.{nearest(key, ['payoff', 'payoffs', 'next'])}")
    if ("payoff" in state) == ("payoffs" in state):
        raise UserError(
            f"state {name!r} of the matrix game needs either payoff (shared) or payoffs (one tensor per agent)."
        )
    try:
        tensor = np.array(state.get("payoff", state.get("payoffs")), dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise UserError(f"the payoff of state {name!r} is not a full tensor of numbers.") from error
    if "payoff" in state:
        tensor = np.broadcast_to(tensor, (tensor.ndim, *tensor.shape))
    if tensor.ndim < 2 or tensor.shape[0] != tensor.ndim - 1:
        raise UserError(
            f"the payoffs of state {name!r} have shape {tensor.shape}; n agents need n tensors of n dimensions each."
        )
    return tensor


def _next(after: Any, names: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """The index of the following state for every joint action; `END` where the round ends."""

    def index(name: str | None) -> int:
        if name is None:
            return END
        if name not in names:
            raise UserError(f"the matrix game has no state {name!r}.{nearest(str(name), names)}")
        return names.index(name)

    table = np.array(after, dtype=object)
    if table.ndim and table.shape != shape:
        raise UserError(f"next has shape {table.shape} and the payoff has shape {shape}; they must be the same.")
    return np.broadcast_to(np.vectorize(index, otypes=[np.int32])(table), shape)


def _longest(after: np.ndarray) -> int:
    """The number of steps of the longest round."""

    def steps(at: int, path: tuple[int, ...]) -> int:
        if at in path:
            raise UserError(
                "the states of the matrix game form a cycle: add a time limit with env_args.episode_limit=N."
            )
        following = {int(s) for s in after[at].ravel()} - {END}
        return 1 + max((steps(s, (*path, at)) for s in following), default=0)

    return steps(0, ())


def _game_type(tensors: list[np.ndarray], shared: bool) -> GameType:
    if shared:
        return "cooperative"
    return "zero-sum" if all(np.allclose(t.sum(0), 0) for t in tensors) else "mixed"
