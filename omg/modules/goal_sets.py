"""Goals that co-players may pursue: goals that the environment names, or goals learned from play (HOP+)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.envs.grid import GOAL_SIZE
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.modules.entities import Entities
from omg.modules.vae import VAE, VAESize
from omg.utils.settings import setting


@dataclass(frozen=True)
class GoalSettings(VAESize):
    """How goals are learned from play (hop_plus)."""

    learned_goals: bool = setting(False, "goals are learned from play (omg pretrain); false: named by the environment")
    goal_form: Literal["state_time_reward", "slots", "intentions"] = setting(
        "slots",
        "what a goal is: an entity (slots), an entity that is chosen by learned preferences (intentions), or a cluster "
        "of events in a latent space (state_time_reward: observation, time and reward)",
    )
    n_goal_clusters: int = setting(12, "number of goals in a latent space", above=0)
    n_intentions: int = setting(6, "goal_form intentions: how many", above=0)
    goal_hazard: float = setting(
        0.02,
        "goal_memory preferences, goal_form intentions, goals without places (strategies): probability per step that a "
        "goal is given up",
        low=0,
        high=1,
    )
    goal_latent_dim: int = setting(8, "latent size of the goals' VAE", above=0)
    goals_path: str | None = setting(None, "learned goals; null: the newest ones that fit")
    gate_distance: float | None = setting(
        None, "no inference beyond this distance from every goal, in steps (in a latent space: standard deviations)"
    )


class Event(NamedTuple):
    """One step of all agents in every environment, from `seen` to `shown`."""

    seen: Timestep
    env_state: Any
    shown: Timestep
    t: Int[Array, ""]


class GoalSet(Protocol):
    """`n` goals of `size` features; `types[g]` is the goal type that stays the same across episodes."""

    n: int
    size: int
    types: list[int]
    exclusive: bool
    """Whether who pursues one goal would not take the action that reaches another."""
    placed: bool
    """Whether goals have places, so that agents are nearer to some than to others."""
    chosen_anew: bool
    """Whether an agent that reached a goal chooses again, also if the goal stays open; false: it keeps to its goal, as
    to a strategy."""
    entities: int
    entity_size: int

    def surroundings(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows entity way"]: ...
    def features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]: ...
    def distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]: ...
    def open(self, env_state: Any, obs: Float[Array, "batch agent obs"]) -> Bool[Array, "batch goal"]: ...
    def reached(self, event: Event) -> Int[Array, "batch agent"]: ...


class EnvGoals:
    """The goals that the environment names: prey, drifts, strategies."""

    def __init__(self, env: MultiAgentEnv):
        self.env, self.exclusive = env, env.exclusive_goals
        self.placed = self.chosen_anew = type(env).goal_distance is not MultiAgentEnv.goal_distance
        self.n, self.size, self.types = env.n_goals, env.goal_size, list(env.goal_types)
        # Strategies are goals, but nothing that one could walk to.
        self.entities, self.entity_size = (self.n, self.size) if self.exclusive else (0, 0)

    def surroundings(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows entity way"]:
        return self.features(obs) if self.entities else jnp.zeros((*obs.shape[:-1], 0, 0))

    def features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        return self.env.goal_features(obs) if self.n else jnp.zeros((*obs.shape[:-1], 0, 0))

    def distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return self.env.goal_distance(obs)

    def open(self, env_state: Any, obs: Float[Array, "batch agent obs"]) -> Bool[Array, "batch goal"]:
        if not self.n:
            return jnp.ones((len(obs), 0), bool)
        return jax.vmap(self.env.goals)(env_state).open

    def reached(self, event: Event) -> Int[Array, "batch agent"]:
        if not self.n:
            return jnp.full(event.seen.alive.shape, -1, jnp.int32)
        return jax.vmap(self.env.goals)(event.env_state).reached


class GoalSpace(eqx.Module):
    """The encoder f_ψ of events, and the goals in its latent space."""

    vae: VAE
    goals: Float[Array, "goal latent"]

    def embed(self, obs: Float[Array, "*rows obs"], time: Array, reward: Array) -> Float[Array, "*rows latent"]:
        return self.vae.encode(describe_event(obs, time, reward)).mu

    def distances(self, latent: Float[Array, "*rows latent"]) -> Float[Array, "*rows goal"]:
        return jnp.sqrt(((latent[..., None, :] - self.goals) ** 2).sum(-1))


def describe_event(obs: Float[Array, "*rows obs"], time: Array, reward: Array) -> Float[Array, "*rows obs_and_two"]:
    """The input of f_ψ for an event; `time` is the fraction of the episode limit that has passed."""
    return jnp.concatenate([obs, time[..., None], reward[..., None]], -1)


class LearnedGoals:
    """Clusters of events with a reward. They never close, and each is a goal type of its own.

    A goal is reached wherever reward is given, so an action that reaches one does not exclude others. The networks see
    the entities around an agent where the layout of observations lists them.
    """

    exclusive = False
    placed = False
    chosen_anew = True

    def __init__(self, env: MultiAgentEnv, space: GoalSpace):
        self.env, self.space = env, space
        self.entities_of = Entities(env.spec) if env.spec.agents_in_obs else None
        self.entities, self.entity_size = (self.entities_of.n, GOAL_SIZE) if self.entities_of else (0, 0)
        self.n, self.size = space.goals.shape
        self.types = list(range(self.n))

    def features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        return jnp.broadcast_to(self.space.goals, (*obs.shape[:-1], self.n, self.size))

    def surroundings(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows entity way"]:
        return self.entities_of.features(obs) if self.entities_of else jnp.zeros((*obs.shape[:-1], 0, 0))

    def distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        """Between the observation and the decoded goal, in standard deviations per feature."""
        vae, size = self.space.vae, obs.shape[-1]
        wanted, scale = vae.decode(self.space.goals)[:, :size], vae.scale[:size]
        return jnp.sqrt((((obs[..., None, :] - wanted) / scale) ** 2).mean(-1))

    def open(self, env_state: Any, obs: Float[Array, "batch agent obs"]) -> Bool[Array, "batch goal"]:
        return jnp.ones((len(obs), self.n), bool)

    def reached(self, event: Event) -> Int[Array, "batch agent"]:
        reward = event.shown.reward
        time = jnp.broadcast_to(event.t / self.env.spec.episode_limit, reward.shape)
        embedded = self.space.embed(event.seen.obs.astype(jnp.float32), time, reward)
        nearest = self.space.distances(embedded).argmin(-1)
        return jnp.where((reward != 0) & event.seen.alive, nearest, -1)
