"""What co-players may be after: goals that the world names, or goals learned from play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.modules.vae import VAE
from omg.utils.settings import UserError


@dataclass(frozen=True)
class GoalSettings:
    """How goals are learned from play (hop_plus)."""

    learned_goals: bool = False
    goal_form: Literal["state", "trajectory", "state_time_reward"] = "state_time_reward"
    goal_choice: Literal["clustered", "continuous"] = "clustered"
    n_goal_clusters: int = 12
    goal_window: int = 5
    goal_latent_dim: int = 8
    goals_path: str | None = None
    gate_distance: float | None = None
    trajectories: str | None = None

    def __post_init__(self) -> None:
        for key in ("n_goal_clusters", "goal_window", "goal_latent_dim"):
            if getattr(self, key) < 1:
                raise UserError(f"{key} is {getattr(self, key)}; it must be 1 or more.")


class Moment(NamedTuple):
    """One step of everybody in every world: what was seen before it, and what it brought."""

    seen: Timestep
    world: Any
    shown: Timestep
    window: Float[Array, "batch agent window obs"]
    """What each agent saw in the last steps, the newest last."""
    t: Int[Array, ""]


class WorldGoals:
    """Prey, drifts, actions: whatever the world itself calls a goal."""

    window = 0

    def __init__(self, env: MultiAgentEnv):
        self.env = env
        self.n, self.size, self.kinds = env.n_goals, env.goal_size, list(env.goal_kinds)

    def features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        return self.env.goal_features(obs) if self.n else jnp.zeros((*obs.shape[:-1], 0, 0))

    def distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return self.env.goal_distance(obs)

    def open(self, world: Any) -> Bool[Array, "batch goal"]:
        if not self.n:
            batch = jax.tree.leaves(world)[0].shape[0]
            return jnp.ones((batch, 0), bool)
        return jax.vmap(self.env.goals)(world).open

    def reached(self, moment: Moment) -> Int[Array, "batch agent"]:
        if not self.n:
            return jnp.full(moment.seen.alive.shape, -1, jnp.int32)
        return jax.vmap(self.env.goals)(moment.world).reached


class GoalSpace(eqx.Module):
    """f_ψ and the goals in its latent space: centres of clusters, or moments of play as they were."""

    vae: VAE
    goals: Float[Array, "goal latent"]
    form: str = eqx.field(static=True)

    def embed(
        self, window: Float[Array, "*rows window obs"], time: Array, reward: Array
    ) -> Float[Array, "*rows latent"]:
        return self.vae.encode(describe(self.form, window, time, reward)).mu

    def distances(self, latent: Float[Array, "*rows latent"]) -> Float[Array, "*rows goal"]:
        return jnp.sqrt(((latent[..., None, :] - self.goals) ** 2).sum(-1))


def describe(
    form: str, window: Float[Array, "*rows window obs"], time: Array, reward: Array
) -> Float[Array, "*rows s"]:
    """A moment as the numbers that f_ψ sees; the time is a part of the time allowed."""
    if form == "trajectory":
        return window.reshape(*window.shape[:-2], -1)
    now = window[..., -1, :]
    if form == "state":
        return now
    return jnp.concatenate([now, time[..., None], reward[..., None]], -1)


def size_of(form: str, obs_size: int, window: int) -> int:
    return {"state": obs_size, "trajectory": window * obs_size, "state_time_reward": obs_size + 2}[form]


class LearnedGoals:
    """Clusters of what was so when reward came. Nothing closes them, and each is a kind of its own."""

    def __init__(self, env: MultiAgentEnv, space: GoalSpace, window: int):
        self.env, self.space = env, space
        self.n, self.size = space.goals.shape
        self.kinds = list(range(self.n))
        self.window = window if space.form == "trajectory" else 1

    def features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        return jnp.broadcast_to(self.space.goals, (*obs.shape[:-1], self.n, self.size))

    def distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        """Between the situation and the one that each goal decodes to, in standard deviations per entry."""
        vae, size = self.space.vae, obs.shape[-1]
        last = (
            slice(0, size) if self.space.form != "trajectory" else slice((self.window - 1) * size, self.window * size)
        )
        wanted, scale = vae.decode(self.space.goals)[:, last], vae.scale[last]
        return jnp.sqrt((((obs[..., None, :] - wanted) / scale) ** 2).mean(-1))

    def open(self, world: Any) -> Bool[Array, "batch goal"]:
        return jnp.ones((jax.tree.leaves(world)[0].shape[0], self.n), bool)

    def reached(self, moment: Moment) -> Int[Array, "batch agent"]:
        reward = moment.shown.reward
        time = jnp.broadcast_to(moment.t / self.env.spec.episode_limit, reward.shape)
        nearest = self.space.distances(self.space.embed(moment.window, time, reward)).argmin(-1)
        return jnp.where((reward != 0) & moment.seen.alive, nearest, -1)
