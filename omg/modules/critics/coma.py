"""COMA's critic: for each agent, the value of each of its actions given the actions of the others."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.episode_buffer import EpisodeBatch
from omg.components.layers import MLP
from omg.envs.multiagentenv import Spec
from omg.utils.settings import setting


@dataclass(frozen=True)
class CriticSettings:
    critic_hidden_dim: int = setting(128, "hidden units of the critic", above=0)


class COMACritic(eqx.Module):
    """Input: state, the agent's observation and id, the others' current actions, all previous actions."""

    Settings = CriticSettings

    mlp: MLP
    n_actions: int = eqx.field(static=True)

    def __init__(self, spec: Spec, settings: CriticSettings, key: Array):
        n, a = spec.n_agents, spec.n_actions
        self.n_actions = a
        input_size = spec.state_size + spec.obs_size + 2 * n * a + n
        self.mlp = MLP((input_size, settings.critic_hidden_dim, settings.critic_hidden_dim, a), key)

    def __call__(self, batch: EpisodeBatch) -> Float[Array, "batch time agent action"]:
        rows, steps, n, _ = batch.obs.shape

        def for_each_agent(x: Float[Array, "batch time size"]) -> Array:
            return jnp.broadcast_to(x[:, :, None], (rows, steps, n, x.shape[-1]))

        joint = for_each_agent(jax.nn.one_hot(batch.actions, self.n_actions).reshape(rows, steps, -1))
        others = joint * jnp.repeat(1 - jnp.eye(n), self.n_actions, axis=1)
        before = for_each_agent(jax.nn.one_hot(batch.last_actions, self.n_actions).reshape(rows, steps, -1))
        who = jnp.broadcast_to(jnp.eye(n), (rows, steps, n, n))
        return self.mlp(jnp.concatenate([for_each_agent(batch.state), batch.obs, others, before, who], -1))
