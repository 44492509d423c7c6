"""QMIX: the team's value is a monotonic network of the agents' values.

Hypernetworks compute its weights from the state; their absolute values make it monotonic.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.layers import MLP, Linear
from omg.envs.multiagentenv import Spec
from omg.utils.settings import setting


@dataclass(frozen=True)
class QMixSettings:
    mixing_embed_dim: int = setting(32, "units of the mixing network", above=0)
    hypernet_layers: int = setting(2, "layers of the hypernetworks", above=0)
    hypernet_embed: int = setting(64, "hidden units of the hypernetworks", above=0)


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
