"""SMAC's interface to our environments, so that code written for `StarCraft2Env` can use them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from omg.envs.multiagentenv import MultiAgentEnv


class SMACInterface:
    """One environment, stepped from Python. Rewards are team rewards; `info["agent_rewards"]` has one per agent."""

    def __init__(self, env: MultiAgentEnv, seed: int = 0):
        self.env, self.spec = env, env.spec
        self.episode_limit = env.spec.episode_limit
        self.episodes = 0
        self._seed = seed
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self.state: Any = None

    def seed(self, seed: int | None = None) -> int:
        """Sets the seed of the following episodes if one is given, and returns the current seed."""
        if seed is not None:
            self._seed, self.episodes = seed, 0
        return self._seed

    def reset(self, key: Any = None) -> tuple[list[np.ndarray], np.ndarray]:
        """Starts an episode: the next one of the seed, or the one of a random key."""
        self.key = jax.random.fold_in(jax.random.key(self._seed), self.episodes) if key is None else key
        self.episodes += 1
        self.t = 0
        self.state, timestep = self._reset(self.key)
        self.timestep = jax.device_get(timestep)
        return self.get_obs(), self.get_state()

    def step(self, actions: Any) -> tuple[float, bool, dict[str, Any]]:
        """One step.

        Returns:
            The team reward, whether the episode ended (terminated or truncated), and `info`. `info["episode_limit"]` is
            set if the episode was truncated.
        """
        chosen = np.asarray(actions).reshape(-1).astype(np.int32)
        self.state, timestep = self._step(self.state, chosen, jax.random.fold_in(self.key, self.t))
        self.timestep = jax.device_get(timestep)
        self.t += 1
        info: dict[str, Any] = {name: float(value) for name, value in self.timestep.info.items()}
        info["agent_rewards"] = self.timestep.reward
        ended = bool(self.timestep.terminated)
        if not ended and self.t >= self.episode_limit:
            info["episode_limit"] = ended = True
        return float(self.spec.team_reward(jnp.asarray(self.timestep.reward))), ended, info

    def get_obs(self) -> list[np.ndarray]:
        return list(self.timestep.obs)

    def get_obs_agent(self, agent_id: int) -> np.ndarray:
        return self.timestep.obs[agent_id]

    def get_obs_size(self) -> int:
        return self.spec.obs_size

    def get_state(self) -> np.ndarray:
        return self.timestep.state

    def get_state_size(self) -> int:
        return self.spec.state_size

    def get_avail_actions(self) -> list[list[int]]:
        return self.timestep.avail_actions.astype(int).tolist()

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        return self.get_avail_actions()[agent_id]

    def get_total_actions(self) -> int:
        return self.spec.n_actions

    def get_alive(self) -> np.ndarray:
        return self.timestep.alive

    def get_stats(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.timestep.info.items()}

    def get_env_info(self) -> dict[str, int]:
        return {
            "state_shape": self.spec.state_size,
            "obs_shape": self.spec.obs_size,
            "n_actions": self.spec.n_actions,
            "n_agents": self.spec.n_agents,
            "episode_limit": self.episode_limit,
        }

    def render(self) -> Any:
        return self.env.render(self.state)

    def save_replay(self) -> None:
        """Does nothing: `--save_replay` draws replays."""

    def close(self) -> None:
        """Does nothing: there is nothing to release."""
