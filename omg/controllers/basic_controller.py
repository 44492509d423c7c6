"""The controller of a team that shares one kind of policy: builds its inputs, unrolls it, picks actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.components.action_selectors import REGISTRY as selector_REGISTRY
from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import EpisodeBatch
from omg.components.transforms import OneHot
from omg.envs.multiagentenv import Spec, Timestep
from omg.modules.agents import REGISTRY as agent_REGISTRY
from omg.modules.agents import Agent
from omg.utils.settings import choose, fill


@dataclass(frozen=True)
class MACSettings:
    policy_model: str = "rnn"
    am_model: str = "none_am"
    agent_output_type: Literal["q", "pi_logits"] = "q"
    action_selector: str = "epsilon_greedy"
    obs_last_action: bool = True
    obs_agent_id: bool = True


class Memory(NamedTuple):
    """What a team of `batch` worlds remembers between two steps."""

    hidden: Float[Array, "batch agent hidden"]
    last_actions: Int[Array, "batch agent"]


class Unrolled(NamedTuple):
    """A network's outputs and hidden states along whole episodes."""

    outputs: Float[Array, "batch time agent action"]
    hidden: Float[Array, "batch time agent hidden"]


class BasicMAC:
    """Holds settings and shapes only; the network is passed in, so that it can be trained, frozen or stacked."""

    Settings = MACSettings

    def __init__(self, spec: Spec, config: Mapping[str, Any]):
        self.spec = spec
        self.settings = fill(MACSettings, config)
        self.agent_class = choose(agent_REGISTRY, self.settings.policy_model, "policy_model")
        self.agent_settings = fill(self.agent_class.Settings, config)
        selector = choose(selector_REGISTRY, self.settings.action_selector, "action_selector")
        self.selector = selector(fill(selector.Settings, config))
        self.one_hot = OneHot(spec.n_actions)

    @property
    def input_size(self) -> int:
        last_action = self.spec.n_actions if self.settings.obs_last_action else 0
        return self.spec.obs_size + last_action + (self.spec.n_agents if self.settings.obs_agent_id else 0)

    def init_agent(self, key: Array) -> Agent:
        return self.agent_class(self.input_size, self.spec.n_actions, self.spec.n_agents, self.agent_settings, key)

    def init_memory(self, agent: Agent, batch: int, seats: int | None = None) -> Memory:
        agents = seats or self.spec.n_agents
        return Memory(agent.init_hidden(batch, agents), jnp.full((batch, agents), -1, jnp.int32))

    def build_inputs(
        self,
        obs: Float[Array, "*rows agent obs"],
        last_actions: Int[Array, "*rows agent"],
        seats: Int[Array, " agent"] | None = None,
    ) -> Float[Array, "*rows agent input"]:
        """What the network sees of each agent; `seats` says which agents these are, where it is not all in order."""
        parts = [obs]
        if self.settings.obs_last_action:
            parts.append(self.one_hot.transform(last_actions))
        if self.settings.obs_agent_id:
            n = self.spec.n_agents
            who = jnp.eye(n) if seats is None else jax.nn.one_hot(seats, n)
            parts.append(jnp.broadcast_to(who, (*obs.shape[:-1], n)))
        return jnp.concatenate(parts, -1)

    def unroll(self, agent: Agent, batch: EpisodeBatch) -> Unrolled:
        """The network along every episode of a batch, from an empty memory."""
        inputs = jnp.swapaxes(self.build_inputs(batch.obs, batch.last_actions), 0, 1)
        outputs, hidden = agent.unroll(inputs, agent.init_hidden(batch.batch_size, self.spec.n_agents))
        return Unrolled(jnp.swapaxes(outputs, 0, 1), jnp.swapaxes(hidden, 0, 1))

    def policy(self, logits: Array, avail_actions: Array, epsilon: Array | float) -> Array:
        """Probabilities over the available actions, each of them at least ε / (how many there are)."""
        chances = jax.nn.softmax(jnp.where(avail_actions, logits, UNAVAILABLE), -1)
        available = jnp.maximum(avail_actions.sum(-1, keepdims=True), 1)
        return jnp.where(avail_actions, (1 - epsilon) * chances + epsilon / available, 0.0)

    def select_actions(
        self,
        agent: Agent,
        seen: Timestep,
        memory: Memory,
        t_env: Array,
        key: Array,
        test_mode: bool,
        seats: Int[Array, " agent"] | None = None,
    ) -> tuple[Int[Array, "batch agent"], Memory]:
        inputs = self.build_inputs(seen.obs.astype(jnp.float32), memory.last_actions, seats)
        outputs, hidden = agent.step(inputs, memory.hidden, seats)
        actions = self.choose(outputs, seen.avail_actions, t_env, key, test_mode)
        return actions, Memory(hidden, actions)

    def choose(
        self, outputs: Array, avail_actions: Array, t_env: Array, key: Array, test_mode: bool
    ) -> Int[Array, "batch agent"]:
        """Actions from the network's outputs, as the action selector has it."""
        if self.settings.agent_output_type == "pi_logits":
            epsilon = 0.0 if test_mode else self.selector.epsilon(t_env)
            outputs = self.policy(outputs, avail_actions, epsilon)
        return self.selector.select_action(outputs, avail_actions, t_env, key, test_mode)
