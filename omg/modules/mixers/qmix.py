"""QMIX: the team's value as a network of the agents' values that rises in each of them.

The weights come from the state by hypernetworks and are made non-negative, which is what makes it monotonic.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.linear import MLP, Linear
from omg.envs.multiagentenv import Spec


@dataclass(frozen=True)
class QMixSettings:
    mixing_embed_dim: int = 32
    hypernet_layers: int = 2
    hypernet_embed: int = 64


class QMixer(eqx.Module):
    Settings = QMixSettings

    hyper_w_1: MLP
    hyper_w_final: MLP
    hyper_b_1: Linear
    value: MLP
    n_agents: int = eqx.field(static=True)
    embed: int = eqx.field(static=True)

    def __init__(self, spec: Spec, settings: QMixSettings, key: Array):
        keys = jax.random.split(key, 4)
        self.n_agents, self.embed = spec.n_agents, settings.mixing_embed_dim
        inner = (settings.hypernet_embed,) * (settings.hypernet_layers - 1)
        self.hyper_w_1 = MLP((spec.state_size, *inner, self.embed * self.n_agents), keys[0])
        self.hyper_w_final = MLP((spec.state_size, *inner, self.embed), keys[1])
        self.hyper_b_1 = Linear(spec.state_size, self.embed, keys[2])
        self.value = MLP((spec.state_size, self.embed, 1), keys[3])

    def __call__(
        self, agent_qs: Float[Array, "*rows agent"], state: Float[Array, "*rows state"]
    ) -> Float[Array, "*rows"]:
        w_1 = jnp.abs(self.hyper_w_1(state)).reshape(*state.shape[:-1], self.n_agents, self.embed)
        hidden = jax.nn.elu((agent_qs[..., None] * w_1).sum(-2) + self.hyper_b_1(state))
        w_final = jnp.abs(self.hyper_w_final(state))
        return (hidden * w_final).sum(-1) + self.value(state)[..., 0]
