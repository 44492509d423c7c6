"""What learners share: their state, optimiser, target networks, and the parts they save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from omg.components.episode_buffer import EpisodeBatch
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import Spec
from omg.utils.settings import fill

Params = dict[str, Any]
Metrics = dict[str, Array]


@dataclass(frozen=True)
class LearnerSettings:
    gamma: float = 0.99
    optimiser: Literal["rmsprop", "adam"] = "rmsprop"
    lr: float = 5e-4
    optim_alpha: float = 0.99
    optim_eps: float = 1e-5
    grad_norm_clip: float = 10.0
    target_update_interval: int = 200
    double_q: bool = True
    reward_scale: float = 1.0
    bootstrap_at_limit: bool = True


class LearnerState(NamedTuple):
    """`params` and `target` hold networks under the names they are saved by."""

    params: Params
    target: Params
    opt_state: Any
    updates: Int[Array, ""]


class Learner:
    """Everything a learner knows besides its state. Subclasses say what their networks and their loss are."""

    Settings: type[LearnerSettings] = LearnerSettings
    on_policy = False
    plans = False
    """Learns from searches in the world itself (`hop_mac`)."""
    focal = False
    """Learns for one agent among others, from as many episodes in every seat."""

    def __init__(self, spec: Spec, mac: BasicMAC, config: Mapping[str, Any]):
        self.spec = spec
        self.mac = mac
        self.settings = fill(self.Settings, config)
        self.shared = spec.kind == "cooperative"
        """Whether an agent goes on earning after it is gone: what the others earn is its own."""

    def init(self, key: Array) -> LearnerState:
        params = self.init_params(key)
        # The target starts as a copy with buffers of its own, so that both can be donated to the compiled loop.
        target = jax.tree.map(jnp.copy, self.init_target(params))
        return LearnerState(params, target, self.init_optimiser(params), jnp.zeros((), jnp.int32))

    def init_params(self, key: Array) -> Params:
        raise NotImplementedError(f"{type(self).__name__} does not say what its networks are")

    def target_of(self, params: Params) -> Params:
        """The networks of which an older copy is kept."""
        return params

    def init_target(self, params: Params) -> Params:
        """Networks that gradients do not change: older copies, and what was trained before and stays."""
        return self.target_of(params)

    def acting(self, state: LearnerState) -> Any:
        """What the controller needs to act."""
        return state.params["agent"]

    def optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.settings.grad_norm_clip), self.step_rule())

    def step_rule(self) -> optax.GradientTransformation:
        s = self.settings
        if s.optimiser == "adam":
            return optax.adam(s.lr, eps=s.optim_eps)
        return optax.rmsprop(s.lr, decay=s.optim_alpha, eps=s.optim_eps, eps_in_sqrt=False)

    def init_optimiser(self, params: Params) -> Any:
        return self.optimiser().init(params)

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        raise NotImplementedError(f"{type(self).__name__} does not say what it minimises")

    def train(
        self, state: LearnerState, batch: EpisodeBatch, t_env: Array, since: Array, episode: Array, key: Array
    ) -> tuple[LearnerState, Metrics]:
        """One update. `episode` counts the episodes collected by now, `since` those collected by the update before."""
        gradient = jax.value_and_grad(self.loss, has_aux=True)
        (loss, metrics), grads = gradient(state.params, state.target, batch, t_env, key)
        updates, opt_state = self.optimiser().update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss, "grad_norm": optax.global_norm(grads), **metrics}
        state = LearnerState(params, state.target, opt_state, state.updates + 1)
        return self.refresh_target(state, since, episode), metrics

    def own_reward(self, batch: EpisodeBatch) -> Float[Array, "batch time agent"]:
        """What each agent earned at each step, in the units that are learned in."""
        return self.settings.reward_scale * batch.reward[:, :-1]

    def team_reward(self, batch: EpisodeBatch) -> Float[Array, "batch time"]:
        return self.spec.team_reward(self.own_reward(batch))

    def ended(self, batch: EpisodeBatch) -> Float[Array, "batch time"]:
        """Where nothing follows: at the end of the game and, unless values reach beyond, of the time allowed."""
        return self.out_of_time(batch.terminated[:, :-1], time_axis=1)

    def out_of_time(self, terminated: Array, time_axis: int) -> Array:
        if self.settings.bootstrap_at_limit:
            return terminated
        last = jnp.arange(terminated.shape[time_axis]) == self.spec.episode_limit - 1
        return jnp.maximum(terminated, jnp.expand_dims(last, [a for a in range(terminated.ndim) if a != time_axis]))

    def counted(self, filled: Float[Array, "*axes"], alive: Bool[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Whose steps are learned from. In a team game the fallen go on earning with the team, and the values before
        their fall are built on theirs; elsewhere whoever is gone is no part of the game.
        """
        return jnp.broadcast_to(filled, alive.shape) if self.shared else filled * alive

    def ended_for(self, ended: Float[Array, "*axes"], alive_next: Bool[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Where nothing follows for an agent: outside of team games also where it leaves while others play on."""
        if self.shared:
            return jnp.broadcast_to(ended, alive_next.shape)
        return jnp.maximum(ended, ~alive_next)

    def refresh_target(self, state: LearnerState, since: Array, episode: Array) -> LearnerState:
        """Copies the networks whenever another `target_update_interval` episodes have passed."""
        interval = self.settings.target_update_interval
        due = episode // interval > since // interval
        target = dict(state.target)
        for name, fresh in self.target_of(state.params).items():
            target[name] = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, target[name])
        return state._replace(target=target)

    def parts(self, state: LearnerState) -> dict[str, Any]:
        """What is saved, one file each: every network, the optimiser, and the older copies."""
        return {**state.params, "opt": state.opt_state, "target": state.target}

    def with_parts(self, state: LearnerState, parts: dict[str, Any]) -> LearnerState:
        return state._replace(
            params={name: parts[name] for name in state.params}, opt_state=parts["opt"], target=parts["target"]
        )
