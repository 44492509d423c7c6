"""QTRAN-base: a free joint action value Q(s, h, u) and a state value V(s) that corrects the sum."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.layers import MLP
from omg.envs.multiagentenv import Spec
from omg.utils.settings import setting


@dataclass(frozen=True)
class QTranSettings:
    mixing_embed_dim: int = setting(32, "units of the mixing network", above=0)
    rnn_hidden_dim: int = setting(64, "units of the recurrent layer", above=0)


class QTranBase(eqx.Module):
    Settings = QTranSettings

    action_encoding: MLP
    q: MLP
    v: MLP

    def __init__(self, spec: Spec, settings: QTranSettings, key: Array):
        k_encoding, k_q, k_v = jax.random.split(key, 3)
        encoded, embed = settings.rnn_hidden_dim + spec.n_actions, settings.mixing_embed_dim
        self.action_encoding = MLP((encoded, encoded, encoded), k_encoding)
        self.q = MLP((spec.state_size + encoded, embed, embed, 1), k_q)
        self.v = MLP((spec.state_size, embed, embed, 1), k_v)

    def joint_q(
        self,
        hidden: Float[Array, "*rows agent hidden"],
        actions: Float[Array, "*rows agent action"],
        state: Float[Array, "*rows state"],
    ) -> Float[Array, "*rows"]:
        encoding = self.action_encoding(jnp.concatenate([hidden, actions], -1)).sum(-2)
        return self.q(jnp.concatenate([state, encoding], -1))[..., 0]

    def state_value(self, state: Float[Array, "*rows state"]) -> Float[Array, "*rows"]:
        return self.v(state)[..., 0]
