"""The naive agent model: predicts each other agent's next action from the focal agent's own history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.episode_buffer import FocalBatch, masked_mean, pick, time_first
from omg.components.layers import GRU, Linear, unroll_rows
from omg.envs.multiagentenv import Spec
from omg.modules.am.base import AgentModel, Inferred
from omg.utils.settings import fill, setting


@dataclass(frozen=True)
class BaseAMSettings:
    am_hidden_dim: int = setting(64, "units of the agent model's memory", above=0)
    am_loss_coef: float = setting(1.0, "weight of the agent model's own loss", low=0)


class ActionPredictor(eqx.Module):
    """Fully connected → GRU → one distribution per other agent."""

    fc1: Linear
    rnn: GRU
    fc2: Linear

    def __init__(self, input_size: int, hidden: int, output_size: int, key: Array):
        k_in, k_rnn, k_out = jax.random.split(key, 3)
        self.fc1 = Linear(input_size, hidden, k_in)
        self.rnn = GRU(hidden, hidden, k_rnn)
        self.fc2 = Linear(hidden, output_size, k_out)


class BaseAM(AgentModel):
    Settings = BaseAMSettings

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        self.settings = fill(BaseAMSettings, config)
        self.hidden_size = self.settings.am_hidden_dim
        self.output_size = (spec.n_agents - 1) * spec.n_actions

    def init(self, key):
        return {"base_am": ActionPredictor(self.own_size, self.hidden_size, self.output_size, key)}

    def infer(self, params, seen, memory):
        net = params["base_am"]
        memory = net.rnn.step(jax.nn.relu(net.fc1(seen.own)), memory)
        return self._probabilities(self._split(net.fc2(memory))), memory

    def infer_all(self, params, seen, memory):
        net = params["base_am"]
        hidden = unroll_rows(net.rnn, jax.nn.relu(net.fc1(seen.own)), memory)
        logits = self._split(net.fc2(hidden))
        return Inferred(self._probabilities(logits), rest=logits, memory=hidden)

    def loss(self, params, seen, batch, inferred, chosen, key):
        """Cross-entropy of the others' actions at the same time step."""
        loss, accuracy = action_loss(inferred.rest, batch)
        return self.settings.am_loss_coef * loss, {"am_loss": loss, "action_accuracy": accuracy}

    def predicted_actions(self, params, inferred):
        return jax.nn.softmax(inferred.rest, -1)

    def _split(self, flat: Float[Array, "*rows flat"]) -> Float[Array, "*rows other action"]:
        return flat.reshape(*flat.shape[:-1], self.spec.n_agents - 1, self.spec.n_actions)

    def _probabilities(self, logits: Array) -> Array:
        return jax.nn.softmax(logits, -1).reshape(*logits.shape[:-2], -1)


def action_loss(logits: Float[Array, "time batch seat other action"], batch: FocalBatch) -> tuple[Array, Array]:
    """Cross-entropy of the others' actions, and the accuracy of the most likely action."""
    actions = time_first(batch.others_actions)[:-1]
    mask = (time_first(batch.filled)[:-1, ..., None]) * time_first(batch.others_alive)[:-1]
    of_taken = pick(jax.nn.log_softmax(logits[:-1], -1), actions)
    right = logits[:-1].argmax(-1) == actions
    return masked_mean(-of_taken, mask), masked_mean(right.astype(jnp.float32), mask)


def living(batch: FocalBatch) -> Float[Array, "time batch seat other"]:
    """1 at every step that was taken while the other agent was alive."""
    return time_first(batch.filled[..., None] * batch.others_alive)


def observation_loss(decoded: Float[Array, "time batch seat other obs"], batch: FocalBatch) -> Float[Array, ""]:
    """The mean squared error of the others' present observations, while they are alive."""
    there = living(batch)
    return masked_mean(((decoded - time_first(batch.others_obs)) ** 2).mean(-1), there)


def later_action_loss(
    decoder: Callable[[Array], Array], who: Float[Array, "time batch seat who"], batch: FocalBatch, key: Array
) -> Float[Array, ""]:
    """Cross-entropy of the others' actions some steps later, decoded from `who` and what they see then.

    The distance is sampled once per update, uniformly among those of the longest episode.
    """
    obs, actions = time_first(batch.others_obs), time_first(batch.others_actions)
    there = living(batch)
    longest = jnp.maximum(batch.filled.sum(1).max(), 1).astype(jnp.int32)
    ahead = jax.random.randint(key, (), 0, longest)
    # Past the end: the last time step, at which no step was taken.
    at = jnp.minimum(jnp.arange(len(obs)) + ahead, len(obs) - 1)
    obs, actions, there = (jnp.take(x, at, axis=0) for x in (obs, actions, there))
    logits = decoder(jnp.concatenate([who, obs.reshape(*obs.shape[:-2], -1)], -1))
    of_taken = pick(jax.nn.log_softmax(logits.reshape(*actions.shape, -1), -1), actions)
    return masked_mean(-of_taken, there * time_first(batch.mask)[..., None])
