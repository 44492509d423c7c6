"""SMAC's own interface to any world of ours, so that whatever drives `StarCraft2Env` can drive it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from omg.envs.multiagentenv import MultiAgentEnv


class SMACInterface:
    """One world, stepped from Python. Rewards are the team's; `info` has each agent's as well."""

    def __init__(self, world: MultiAgentEnv, seed: int = 0):
        self.world, self.spec = world, world.spec
        self.episode_limit = world.spec.episode_limit
        self.episodes = 0
        self._seed = seed
        self._reset, self._step = jax.jit(world.reset), jax.jit(world.step)
        self.state: Any = None

    def seed(self, seed: int | None = None) -> int:
        """Sets the seed of the games to come, where one is given, and says what it is."""
        if seed is not None:
            self._seed, self.episodes = seed, 0
        return self._seed

    def reset(self, key: Any = None) -> tuple[list[np.ndarray], np.ndarray]:
        """A new game: the next of this seed, or the one of a key."""
        self.key = jax.random.fold_in(jax.random.key(self._seed), self.episodes) if key is None else key
        self.episodes += 1
        self.t = 0
        self.state, seen = self._reset(self.key)
        self.seen = jax.device_get(seen)
        return self.get_obs(), self.get_state()

    def step(self, actions: Any) -> tuple[float, bool, dict[str, Any]]:
        """The team's reward, whether the game is over (in time or not), and what else there is to know."""
        chosen = np.asarray(actions).reshape(-1).astype(np.int32)
        self.state, seen = self._step(self.state, chosen, jax.random.fold_in(self.key, self.t))
        self.seen = jax.device_get(seen)
        self.t += 1
        info: dict[str, Any] = {name: float(value) for name, value in self.seen.info.items()}
        info["agent_rewards"] = self.seen.reward
        over = bool(self.seen.terminated)
        if not over and self.t >= self.episode_limit:
            info["episode_limit"] = over = True
        return float(self.spec.team_reward(jnp.asarray(self.seen.reward))), over, info

    def get_obs(self) -> list[np.ndarray]:
        return list(self.seen.obs)

    def get_obs_agent(self, agent_id: int) -> np.ndarray:
        return self.seen.obs[agent_id]

    def get_obs_size(self) -> int:
        return self.spec.obs_size

    def get_state(self) -> np.ndarray:
        return self.seen.state

    def get_state_size(self) -> int:
        return self.spec.state_size

    def get_avail_actions(self) -> list[list[int]]:
        return self.seen.avail_actions.astype(int).tolist()

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        return self.get_avail_actions()[agent_id]

    def get_total_actions(self) -> int:
        return self.spec.n_actions

    def get_alive(self) -> np.ndarray:
        return self.seen.alive

    def get_stats(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.seen.info.items()}

    def get_env_info(self) -> dict[str, int]:
        return {
            "state_shape": self.spec.state_size,
            "obs_shape": self.spec.obs_size,
            "n_actions": self.spec.n_actions,
            "n_agents": self.spec.n_agents,
            "episode_limit": self.episode_limit,
        }

    def render(self) -> Any:
        return self.world.render(self.state)

    def save_replay(self) -> None:
        """The program draws replays by itself (`--save_replay`)."""

    def close(self) -> None:
        """Nothing is held open."""
