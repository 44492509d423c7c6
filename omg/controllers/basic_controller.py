"""The controller of recurrent policies, with or without an agent model (`basic_mac`; `multi_module_mac` with partners).

It builds the network's inputs, infers the agent model's embedding, unrolls the policy and selects actions. `params` is
a dictionary: the policy under "agent", the agent model's networks under their own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.components.action_selectors import REGISTRY as selector_REGISTRY
from omg.components.action_selectors import UNAVAILABLE
from omg.components.chunks import cut, joined
from omg.components.episode_buffer import EpisodeBatch, FocalBatch, time_first
from omg.components.layers import few_launches
from omg.controllers.base import Controller, Params, uniform_over
from omg.envs.grid import GOAL_SIZE
from omg.envs.multiagentenv import MultiAgentEnv, Spec, Timestep
from omg.modules.agents import REGISTRY as agent_REGISTRY
from omg.modules.agents import ConvRNNAgent, DuellingRNNAgent, IDVRNNAgent, MixRNNAgent, RNNAgent
from omg.modules.agents.conv_rnn_agent import frames_in
from omg.modules.am import REGISTRY as am_REGISTRY
from omg.modules.am import Inferred, MixAM, Seen, check_model
from omg.modules.entities import Entities, lists_entities
from omg.utils.settings import UserError, choose, fill, setting


@dataclass(frozen=True)
class MACSettings:
    policy_model: str = setting(
        "rnn", "policy network: rnn, idv_rnn (one per seat), duelling_rnn, or mix_rnn (for mix_am)"
    )
    am_model: str = setting(
        "none_am", "agent model: none_am, base_am, liam_am, meliba_am, mix_am, omg_am, omg_plus_am, oracle_am"
    )
    agent_output_type: Literal["q", "pi_logits"] = setting("q", "network outputs: q (action values) or pi_logits")
    action_selector: str = setting("epsilon_greedy", "action selector: epsilon_greedy or multinomial")
    obs_last_action: bool = setting(True, "the agent's last action is part of its input")
    obs_agent_id: bool = setting(True, "the agent's seat is part of its input")
    obs_relative: bool = setting(
        False, "places relative to the agent are part of its input (where observations list entities, as on boards)"
    )
    embedding_gain: float | None = setting(
        None,
        "scale of the embedding's initial weights in policy and critic (0: they start as without); null: not scaled",
        low=0,
    )
    embedding_lr: float | None = setting(
        None, "learning rate of the embedding's weights in policy and critic; null: lr", above=0, high=1
    )
    carry_memory: bool = setting(
        False, "with frozen partners: an episode starts with the policy's memory of the last one with them (RL²)"
    )


class Memory(NamedTuple):
    """The recurrent state of policy and agent model, and the last actions."""

    hidden: Float[Array, "batch agent hidden"]
    last_actions: Int[Array, "batch agent"]
    model: Float[Array, "batch agent model_hidden"]


class Unrolled(NamedTuple):
    """Outputs and recurrent states of a network along whole episodes."""

    outputs: Float[Array, "time batch agent action"]
    hidden: Float[Array, "time batch agent hidden"]


class BasicMAC(Controller):
    def __init__(self, spec: Spec, config: Mapping[str, Any]):
        self.spec = spec
        self.settings = fill(MACSettings, config)
        self.agent_class = choose(agent_REGISTRY, self.settings.policy_model, "policy_model")
        self.agent_settings = fill(self.agent_class.Settings, config)
        self.entities = Entities(spec, others=True) if self.relative_places() else None
        self.own_networks = issubclass(self.agent_class, IDVRNNAgent)
        selector = choose(selector_REGISTRY, self.settings.action_selector, "action_selector")
        self.selector = selector(fill(selector.Settings, config))
        self.am = choose(am_REGISTRY, self.settings.am_model, "am_model")(spec, self.own_size, config)
        if self.agent_class is MixRNNAgent and not isinstance(self.am, MixAM):
            raise UserError(
                f"policy_model=mix_rnn mixes the embeddings of am_model=mix_am, not {self.settings.am_model}."
            )
        if issubclass(self.agent_class, ConvRNNAgent) and not frames_in(spec.obs_layout):
            raise UserError(
                f"policy_model=conv_rnn needs frames, and observations of {spec.name} have none: use policy_model=rnn."
            )
        self.check_embedding_weights()
        self.obs_is_state = self.am.obs_is_state
        check_model(self.am, self.own_size, spec.state_size if self.obs_is_state else spec.obs_size)
        self.needs = self.am.needs
        self.carried_size = self._memory_size if self.settings.carry_memory else 0
        self.prior_size = self.carried_size + self.am.prior_size
        self.given_identity = self.am.given_identity
        if self.given_identity and self.carried_size:
            raise UserError("the oracle knows its partners: leave carry_memory out.")

    def relative_places(self) -> bool:
        """Whether places relative to the agent are part of its input."""
        if self.settings.obs_relative and not lists_entities(self.spec):
            raise UserError(
                f"obs_relative=true: the layout of observations of {self.spec.name} does not tell where things are. "
                "Leave it out."
            )
        return self.settings.obs_relative

    def check_embedding_weights(self) -> None:
        """Settings of the embedding's weights need an embedding, and a policy whose first layer they are in."""
        chosen = [name for name in ("embedding_gain", "embedding_lr") if getattr(self.settings, name) is not None]
        leave_out = " ".join(f"--{name}=null" for name in chosen)
        if chosen and not self.am.output_size:
            raise UserError(
                f"{' and '.join(chosen)}: there is no embedding without an agent model. Set am_model, or {leave_out}."
            )
        if chosen and self.agent_class not in (RNNAgent, DuellingRNNAgent, IDVRNNAgent):
            raise UserError(
                f"{' and '.join(chosen)}: for the first layer of rnn, duelling_rnn and idv_rnn only. With "
                f"policy_model={self.settings.policy_model}, set {leave_out}."
            )

    @classmethod
    def create(cls, env: MultiAgentEnv, config: Mapping[str, Any], artifacts: Mapping[str, Any]) -> BasicMAC:
        return cls(env.spec, config)

    @classmethod
    def settings_classes(cls, config: Mapping[str, Any]) -> list[type]:
        s = fill(MACSettings, config)
        return [
            MACSettings,
            choose(agent_REGISTRY, s.policy_model, "policy_model").Settings,
            choose(selector_REGISTRY, s.action_selector, "action_selector").Settings,
            choose(am_REGISTRY, s.am_model, "am_model").Settings,
        ]

    @classmethod
    def needs_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        return choose(am_REGISTRY, fill(MACSettings, config).am_model, "am_model").needs

    @property
    def own_size(self) -> int:
        """Size of the agent's own input: observation, relative places, last action, seat."""
        places = 0 if self.entities is None else self.entities.n * GOAL_SIZE
        last_action = self.spec.n_actions if self.settings.obs_last_action else 0
        return self.spec.obs_size + places + last_action + (self.spec.n_agents if self.settings.obs_agent_id else 0)

    @property
    def _memory_size(self) -> int:
        network = jax.eval_shape(lambda key: self.new_network(1, key), jax.random.key(0))
        return jax.eval_shape(lambda: network.init_hidden(1, 1)).shape[-1]

    @property
    def input_size(self) -> int:
        return self.own_size + self.am.output_size

    def new_network(self, outputs: int, key: Array) -> Any:
        """A network of the policy's architecture and inputs with this many outputs."""
        s, gain = self.spec, self.settings.embedding_gain

        def network(inputs: int) -> Any:
            return self.agent_class(inputs, outputs, s.n_agents, self.agent_settings, key, s.obs_layout)

        whole = network(self.input_size)
        if gain is None:
            return whole
        # Everything but the embedding's weights is as without an agent model.
        without = network(self.own_size)
        scaled = gain * first_weights(whole)[..., self.own_size :, :]
        return eqx.tree_at(first_weights, without, jnp.concatenate([first_weights(without), scaled], -2))

    def weighted(self, updates: Params, lr: float) -> Params:
        """The embedding's weights in policy and critic learn with the rate `embedding_lr` instead of `lr`."""
        rate, rows = self.settings.embedding_lr, np.s_[..., self.own_size : self.input_size, :]
        if rate is None:
            return updates

        def with_rate(network: Any) -> Any:
            return eqx.tree_at(first_weights, network, replace_fn=lambda step: step.at[rows].multiply(rate / lr))

        return {name: with_rate(x) if name in ("agent", "critic") else x for name, x in updates.items()}

    def init_params(self, key: Array) -> Params:
        k_agent, k_model = jax.random.split(key)
        return {"agent": self.new_network(self.spec.n_actions, k_agent), **self.am.init(k_model)}

    # --- acting

    def init_memory(self, params: Params, batch: int, seats: int | None = None, prior: Array | None = None) -> Memory:
        agents = seats or self.spec.n_agents
        if prior is None:
            prior = jnp.zeros((batch, agents, self.prior_size))
        carried, prior = jnp.split(prior, [self.carried_size], -1)
        hidden = carried if self.carried_size else params["agent"].init_hidden(batch, agents)
        model = self.am.init_memory(params, prior) if self.am.output_size else jnp.zeros((batch, agents, 0))
        return Memory(hidden, jnp.full((batch, agents), -1, jnp.int32), model)

    def select_actions(
        self,
        params: Params,
        seen: Timestep,
        memory: Memory,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, " seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], Memory]:
        obs = seen.obs.astype(jnp.float32)
        own = self.build_inputs(obs, memory.last_actions, seats)
        inputs, model = own, memory.model
        if self.am.output_size:
            embedding, model = self.am.infer(params, Seen(own, self.s_of(obs, seen.state)), memory.model)
            inputs = jnp.concatenate([own, embedding], -1)
        outputs, hidden = params["agent"].step(inputs, memory.hidden, seats)
        if self.settings.agent_output_type == "pi_logits":
            epsilon = jnp.where(test_mode, 0.0, self.selector.epsilon(t_env))
            outputs = self.policy(outputs, seen.avail_actions, epsilon)
        actions = self.selector.select_action(outputs, seen.avail_actions, t_env, key, test_mode)
        return actions, Memory(hidden, actions, model)

    def build_inputs(
        self,
        obs: Float[Array, "*rows agent obs"],
        last_actions: Int[Array, "*rows agent"],
        seats: Int[Array, "*any agent"] | None = None,
    ) -> Float[Array, "*rows agent input"]:
        """Each agent's own input. `seats` are the seats of the agent axis; None: all of them in order."""
        inputs = [obs]
        if self.entities is not None:
            places = self.entities.features(obs)
            inputs.append(places.reshape(*obs.shape[:-1], -1))
        if self.settings.obs_last_action:
            # The missing last action (-1) becomes all zeros.
            inputs.append(jax.nn.one_hot(last_actions, self.spec.n_actions))
        if self.settings.obs_agent_id:
            n = self.spec.n_agents
            agent_id = jnp.eye(n) if seats is None else jax.nn.one_hot(seats, n)
            inputs.append(jnp.broadcast_to(agent_id, (*obs.shape[:-1], n)))
        return jnp.concatenate(inputs, -1)

    def s_of(self, obs: Float[Array, "*rows agent obs"], state: Float[Array, "*rows state"]) -> Array:
        """s_t of every agent: its own observation, or with `obs_is_state` the global state."""
        if not self.obs_is_state:
            return obs
        return jnp.broadcast_to(state[..., None, :], (*obs.shape[:-1], state.shape[-1])).astype(jnp.float32)

    def policy(self, logits: Array, avail_actions: Array, epsilon: Array | float) -> Array:
        """Probabilities over the available actions, mixed with the uniform distribution with weight ε."""
        probabilities = jax.nn.softmax(jnp.where(avail_actions, logits, UNAVAILABLE), -1)
        return jnp.where(avail_actions, (1 - epsilon) * probabilities + epsilon * uniform_over(avail_actions), 0.0)

    def exploration(self, t_env: int) -> dict[str, float]:
        return {"epsilon": float(self.selector.epsilon(t_env))}

    # --- learning (time first)

    def unroll(self, params: Params, batch: EpisodeBatch) -> Unrolled:
        """A team's policy along every episode of a batch. Policies without an agent model only."""
        own = time_first(self.build_inputs(batch.obs, batch.last_actions))
        return self.unroll_on(params["agent"], Seen(own, own), jnp.zeros((*own.shape[:-1], 0)))

    def unroll_with_target(self, params: Params, target: Params, batch: EpisodeBatch) -> tuple[Unrolled, Unrolled]:
        """The same for the online and the target network."""
        own = time_first(self.build_inputs(batch.obs, batch.last_actions))
        nothing = jnp.zeros((*own.shape[:-1], 0))
        return self.unroll_both(params["agent"], target["agent"], Seen(own, own), nothing)

    def seen(self, batch: FocalBatch) -> Seen:
        """The inputs of the agent model along whole episodes."""
        own = self.build_inputs(batch.obs, batch.last_actions, None if batch.seat is None else batch.seat[:, None])
        # A replay plays single episodes: nothing is carried over, and the prior is empty.
        start = batch.prior[..., : self.carried_size] if self.carried_size and batch.prior.shape[-1] else None
        return Seen(time_first(own), time_first(batch.state if self.obs_is_state else batch.obs), start)

    def infer_all(
        self,
        params: Params,
        seen: Seen,
        batch: FocalBatch,
        starts: Float[Array, "chunk batch seat hidden"] | None = None,
    ) -> Inferred:
        """The agent model along whole episodes. `starts` are the memories from which all chunks but the first start."""
        prior = batch.prior[..., self.carried_size :] if self.am.prior_size else jnp.zeros((*batch.prior.shape[:-1], 0))
        first = self.am.init_memory(params, prior)
        if starts is None:
            return self.am.infer_all(params, seen, first)
        n, time = len(starts) + 1, len(seen.own)
        memory = jnp.concatenate([first[None], starts]).reshape(-1, *first.shape[1:])
        inferred = self.am.infer_all(params, Seen(cut(seen.own, n), cut(seen.s, n)), memory)
        return jax.tree.map(lambda x: joined(x, n, time), inferred)

    def carried(self, params: Params, batch: FocalBatch) -> Float[Array, "batch seat prior"]:
        """What an episode hands to the next one with the same partners.

        With `carry_memory` the policy's recurrent state after its last step, with `carry_over` the mean embedding.
        """
        seen, mask = self.seen(batch), time_first(batch.mask)
        inferred = self.infer_all(params, seen, batch).embedding
        parts = []
        if self.carried_size:
            hidden = self.unroll_on(params["agent"], seen, inferred).hidden
            last = jnp.maximum(time_first(batch.filled).sum(0).astype(jnp.int32) - 1, 0)
            parts.append(jnp.take_along_axis(hidden, last[None, ..., None], axis=0)[0])
        if self.am.prior_size:
            parts.append((inferred * mask[..., None]).sum(0) / jnp.maximum(mask.sum(0), 1)[..., None])
        return jnp.concatenate(parts, -1)

    def unroll_on(self, network: Any, seen: Seen, embedding: Float[Array, "time batch agent embedding"]) -> Unrolled:
        """A network along whole episodes, conditioned on an embedding."""
        inputs = jnp.concatenate([seen.own, embedding], -1)
        start = network.init_hidden(inputs.shape[1], inputs.shape[2]) if seen.start is None else seen.start
        return Unrolled(*network.unroll(inputs, start))

    def unroll_both(
        self, online: Any, target: Any, seen: Seen, embedding: Array, target_embedding: Array | None = None
    ) -> tuple[Unrolled, Unrolled]:
        """Online and target network: on a GPU in one scan, with half the launches."""
        other = embedding if target_embedding is None else target_embedding
        if not few_launches():
            return self.unroll_on(online, seen, embedding), self.unroll_on(target, seen, other)
        stacked = jax.tree.map(lambda a, b: jnp.stack([a, jax.lax.stop_gradient(b)]), online, target)
        both = jax.vmap(lambda network, e: self.unroll_on(network, seen, e))(stacked, jnp.stack([embedding, other]))
        return Unrolled(*(x[0] for x in both)), Unrolled(*(x[1] for x in both))


def first_weights(network: Any) -> Any:
    """The first layer's weights `[input, hidden]` of a policy or critic; with one network per seat those of all."""
    return getattr(network, "seats", network).fc1.weight


def before_each_step(
    hidden: Float[Array, "time *rows hidden"], start: Float[Array, "*rows hidden"] | None = None
) -> Float[Array, "time *rows hidden"]:
    """From the recurrent state after every step to the state before it (`start`, or zero, before the first)."""
    return jnp.concatenate([jnp.zeros_like(hidden[:1]) if start is None else start[None], hidden[:-1]])
